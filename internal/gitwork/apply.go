//go:build linux

package gitwork

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
)

// maxListedCommits is the maximum number of a sandbox's commits that a message lists.
const maxListedCommits = 100

// GitApply applies the changes of a sandbox to a branch of its repository. A refused apply has changed nothing; an
// apply is in the ledger before anything is changed. It first completes an earlier apply that was killed.
func (g *Git) GitApply(ctx context.Context, name string, req wire.GitApplyRequest) (out wire.GitApplied, err error) {
	a, err := ParseApply(req)
	if err != nil {
		return out, err
	}
	c, err := g.collectAs(ctx, name, req.Work)
	if err != nil {
		return out, err
	}
	return g.ApplyCollected(ctx, c, a, req.Message)
}

// ApplyCollected is GitApply for c. message is the message of the commit, if the way creates one; "" uses the
// messages of the sandbox's commits.
func (g *Git) ApplyCollected(
	ctx context.Context, c *Collected, a repo.Apply, message string,
) (out wire.GitApplied, err error) {
	if err := c.fits(a.Way); err != nil {
		return out, err
	}
	a.Base, a.Tip = c.Start, c.Work
	if a.Way == repo.Squash || a.Way == repo.Merge {
		if a.Message, err = c.message(ctx, message); err != nil {
			return out, err
		}
	}
	a.Do = func(now repo.Applied, write func() error) error {
		keep := context.WithoutCancel(ctx)
		said := audit.ByDaemon(g.applyRecord(c, a.Way, now))
		return g.config.Book.Do(keep, g.config.Book.Drafts(keep, &c.Rec, said...),
			func(context.Context) error { return write() })
	}
	got, err := c.Repo.Apply(ctx, a)
	if err != nil {
		return out, c.goOn(err)
	}
	trusted := Trusts(a.TrustAll, a.Trust)
	return wire.GitApplied{Way: string(a.Way), Onto: got.Ref.Short(), Old: string(got.Old), New: string(got.New),
		Work: string(c.Work), Commits: c.Commits, Message: a.Message,
		Changes: wireChanges(got.Changes), Marks: WireMarks(got.Marks, trusted), Skipped: wireSkipped(c.Skipped),
		Saved: got.Saved, DryRun: a.DryRun}, nil
}

// ParseApply parses a request. It does not check properties that depend on the sandbox.
func ParseApply(req wire.GitApplyRequest) (a repo.Apply, err error) {
	a = repo.Apply{Way: repo.Way(req.Way), Paths: slices.Clone(req.Paths), Trust: slices.Clone(req.Trust),
		TrustAll: req.TrustAll, DryRun: req.DryRun}
	if a.Way == "" {
		a.Way = repo.Squash
	}
	for _, p := range req.PathsRaw {
		a.Paths = append(a.Paths, string(p))
	}
	for _, p := range req.TrustRaw {
		a.Trust = append(a.Trust, string(p))
	}
	if req.Onto != "" {
		if a.Onto, err = repo.ParseBranch(req.Onto); err != nil {
			return a, err
		}
	}
	commits := a.Way == repo.Squash || a.Way == repo.Merge
	if !commits && (req.Message != "" || req.Author != "" || len(req.CoAuthors)+len(req.Trailers) > 0) {
		return a, fault.New(fault.Invalid, "cannot set a message, author or trailers with %s: it does not create a commit",
			a.Way).
			WithHint("omit them, or use squash or merge")
	}
	if req.Author != "" {
		if a.Author, err = repo.ParsePerson(req.Author); err != nil {
			return a, err
		}
	}
	for _, t := range req.Trailers {
		k, v, _ := strings.Cut(t, ":")
		a.Trailers = append(a.Trailers, repo.Trailer{Key: strings.TrimSpace(k), Value: strings.TrimSpace(v)})
	}
	for _, s := range req.CoAuthors {
		p, err := repo.ParsePerson(s)
		if err != nil {
			return a, err
		}
		a.Trailers = append(a.Trailers, repo.Trailer{Key: "Co-authored-by", Value: p.Name + " <" + p.Email + ">"})
	}
	return a, nil
}

// fits refuses a way that the export does not support.
func (c *Collected) fits(way repo.Way) error {
	whole := way == repo.Merge || way == repo.Rebase
	switch {
	case whole && c.Rec.Repo.Start != c.Rec.Repo.Base:
		return fault.New(fault.Unsupported,
			"sandbox %s started from uncommitted changes, which its commits include: %s would apply them too",
			c.Rec.Name, way).
			WithHint("use --squash or --patch, which exclude them")
	case whole && c.Work != c.Tip:
		return fault.New(fault.Conflict, "sandbox %s has uncommitted changes, and %s applies commits only",
			c.Rec.Name, way).
			WithHint("commit them in the sandbox: coppice exec %s -- git commit -am MESSAGE; or use --squash", c.Rec.Name)
	}
	return nil
}

// message returns the given message, or one made from the sandbox's commits.
func (c *Collected) message(ctx context.Context, said string) (string, error) {
	if strings.TrimSpace(said) != "" {
		return said, nil
	}
	commits, err := c.Repo.Commits(ctx, repo.OID(c.Rec.Repo.Base), c.Tip, maxListedCommits)
	if err != nil {
		return "", err
	}
	var list []string
	for _, k := range commits {
		if k.Message != "" {
			list = append(list, k.Message)
		}
	}
	switch title := "Apply " + c.Rec.Name; {
	case len(list) == 0:
		return title, nil
	case len(list) == 1 && c.Commits == 1:
		return list[0], nil
	default:
		var b strings.Builder
		fmt.Fprintf(&b, "%s\n", title)
		for _, m := range list {
			subject, _, _ := strings.Cut(m, "\n")
			fmt.Fprintf(&b, "\n* %s", strings.TrimSpace(subject))
		}
		if more := c.Commits - len(list); more > 0 {
			fmt.Fprintf(&b, "\n* and %d more", more)
		}
		return b.String(), nil
	}
}

// goOn adds a hint to an error of an apply.
func (c *Collected) goOn(err error) error {
	var conflicts *repo.Conflicts
	if errors.As(err, &conflicts) {
		return fault.New(fault.KindOf(err), "sandbox %s conflicts with the branch; nothing was changed",
			c.Rec.Name).Because(conflicts).
			WithHint("rebase the sandbox onto the branch: coppice git rebase %s; or resolve the conflict yourself: git merge "+
				"%.12s",
				c.Rec.Name, c.Work)
	}
	return err
}

// applyRecord returns the record of an apply.
func (g *Git) applyRecord(c *Collected, way repo.Way, now repo.Applied) format.Body {
	cleaner := g.config.Book.Cleaners.Formats()
	out := &format.Apply{
		Changes: int64(len(now.Changes)), Old: string(now.Old), Onto: string(now.Ref),
		Repo: cleaner.RecordText(c.Repo.Top), Way: string(way), Work: string(c.Work),
	}
	if way != repo.Patch {
		out.New = string(now.New)
	}
	room := limit.RecordNames
	for i, m := range now.Marks {
		if i > 0 && m.Path == now.Marks[i-1].Path {
			continue
		}
		p := cleaner.RecordText(m.Path)
		if room -= audit.EncodedLen(p); room < 0 {
			out.Marks = append(out.Marks, fmt.Sprintf("... and %d more", len(now.Marks)-i))
			break
		}
		out.Marks = append(out.Marks, p)
	}
	return out
}

// NeverApplied reports whether it is certain, after a crash, that a recorded apply did not happen. It is uncertain if
// only files changed, which the next apply restores if they were not all written, or if the repository or the branch
// no longer exists.
func (g *Git) NeverApplied(ctx context.Context, rec *meta.Sandbox, b *format.Apply) bool {
	onto, err := repo.ParseRef(b.Onto)
	if b.New == "" || err != nil {
		return false
	}
	r, err := g.config.Work.Repository(ctx, rec)
	if err != nil {
		return false
	}
	had, known, err := r.Had(ctx, onto, repo.OID(b.New), repo.OID(b.Old))
	return err == nil && known && !had
}
