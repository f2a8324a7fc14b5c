//go:build linux

package gitwork

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/repo"
)

// maxTold is the maximum number of uncommitted files that are reported.
const maxTold = 1000

// GitDiff compares the files of a sandbox with its start in the repository.
func (g *Git) GitDiff(ctx context.Context, name string, req wire.GitDiffRequest) (out wire.GitDiff, err error) {
	c, err := g.collectAs(ctx, name, req.Work)
	if err != nil {
		return out, err
	}
	return g.DiffCollected(ctx, c, req)
}

// DiffCollected is GitDiff for c.
func (g *Git) DiffCollected(
	ctx context.Context, c *Collected, req wire.GitDiffRequest,
) (out wire.GitDiff, err error) {
	opt, err := g.DiffOptions(c, req)
	if err != nil {
		return out, err
	}
	var branch repo.Ref
	if req.Pending && opt.Have == "" {
		if branch, opt.Have, err = c.Repo.Onto(ctx); err != nil {
			return out, err
		}
	}
	changes, had, err := c.Repo.DiffPending(ctx, opt)
	if err != nil {
		return out, err
	}
	marks, err := c.Repo.Marks(ctx, changes)
	if err != nil {
		return out, err
	}
	return wire.GitDiff{Repo: *WireRepo(c.Rec.Repo), Start: string(c.Start), Tip: string(c.Tip), Work: string(c.Work),
		Snapshot: string(c.Snapshot), Commits: c.Commits,
		Changes: wireChanges(changes), Marks: WireMarks(marks, func(repo.Mark) bool { return false }),
		Skipped: wireSkipped(c.Skipped), Applied: had, Onto: string(opt.Have), Branch: branch.Short()}, nil
}

// GitPatch writes the same difference as a patch that git applies. Names in it have no control bytes; contents
// are unchanged.
func (g *Git) GitPatch(ctx context.Context, name string, req wire.GitDiffRequest, w io.Writer) error {
	c, err := g.collectAs(ctx, name, req.Work)
	if err != nil {
		return err
	}
	return g.PatchCollected(ctx, c, req, w)
}

// PatchCollected is GitPatch for c.
func (g *Git) PatchCollected(ctx context.Context, c *Collected, req wire.GitDiffRequest, w io.Writer) error {
	opt, err := g.DiffOptions(c, req)
	if err != nil {
		return err
	}
	if req.Pending && opt.Have == "" {
		if _, opt.Have, err = c.Repo.Onto(ctx); err != nil {
			return err
		}
	}
	return c.Repo.Patch(ctx, opt, w)
}

// DiffOptions returns the options for a request. TooLarge: it selects too many paths.
func (g *Git) DiffOptions(c *Collected, req wire.GitDiffRequest) (repo.DiffOptions, error) {
	if err := g.config.CheckPaths(req.Paths); err != nil {
		return repo.DiffOptions{}, err
	}
	for _, p := range req.Paths {
		if err := repo.CheckPath(p); err != nil {
			return repo.DiffOptions{}, err
		}
	}
	opt := repo.DiffOptions{From: c.Start, To: c.Work, Paths: req.Paths, Renames: true, Stat: req.Stat}
	if req.Onto == "" {
		return opt, nil
	}
	if !req.Pending {
		return opt, fault.New(fault.Invalid, "onto requires pending").WithHint("set pending, or omit onto")
	}
	var err error
	opt.Have, err = repo.ParseOID(req.Onto)
	return opt, err
}

func wireChanges(changes []repo.Change) []wire.GitChange {
	out := make([]wire.GitChange, len(changes))
	for i, c := range changes {
		w := wire.GitChange{Status: string(c.Status), Mode: modeOrNone(c.Mode), OldMode: modeOrNone(c.OldMode),
			Binary: c.Binary, Added: c.Added, Deleted: c.Deleted}
		w.SetName(c.Path)
		w.SetOld(c.OldPath)
		out[i] = w
	}
	return out
}

func modeOrNone(m repo.Mode) string {
	if m == 0 {
		return ""
	}
	return m.String()
}

// WireMarks returns marks in their wire form; trusted reports which of them the user has reviewed.
func WireMarks(marks []repo.Mark, trusted func(repo.Mark) bool) []wire.GitMark {
	out := make([]wire.GitMark, len(marks))
	for i, m := range marks {
		out[i] = wire.GitMark{Kind: string(m.Kind), Why: m.Why, Trusted: trusted(m)}
		out[i].SetName(m.Path)
	}
	return out
}

// Trusts reports which marks the user has reviewed, according to a request.
func Trusts(all bool, paths []string) func(repo.Mark) bool {
	looked := make(map[string]bool, len(paths))
	for _, p := range paths {
		looked[p] = true
	}
	return func(m repo.Mark) bool { return all || looked[m.Path] }
}

func wireSkipped(skipped []repo.Skipped) (out []wire.GitSkipped) {
	for i, s := range skipped {
		if i == maxTold || i > 0 && s == skipped[i-1] {
			continue
		}
		w := wire.GitSkipped{Why: s.Why}
		w.SetName(s.Path)
		out = append(out, w)
	}
	return out[:min(len(out), maxTold)]
}
