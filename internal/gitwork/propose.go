//go:build linux

package gitwork

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/visible"
)

// A proposal is two references of the user's repository: refs/heads/coppice/NAME, the changes, and
// refs/coppice/proposals/NAME, whose commits have the files that package proposal defines, each with the previous
// proposal as its parent. The second is set first: if the process is killed between the two, proposing again sets
// both.

// proposalRef holds the newest proposal of a sandbox, by its name.
func proposalRef(name string) repo.Ref { return repo.Ref("refs/coppice/proposals/" + name) }

// BranchOf returns the branch that a sandbox starts on, which is also the one proposed. Not every name of a sandbox
// is valid in a branch name.
func BranchOf(name string) (repo.Ref, error) {
	ref, err := repo.ParseBranch("coppice/" + name)
	if err != nil {
		return "", fault.New(fault.Invalid, "invalid branch name coppice/%s", name).Because(err).
			WithHint("choose a name without .., .lock or a final dot; or create the sandbox without a repository: --no-repo")
	}
	return ref, nil
}

// maxTitle is the maximum length of a title, in bytes.
const maxTitle = 200

// Propose exports the changes of a sandbox, runs the requested tests in forks, and passes the changes to a
// reviewer. A refused proposal has set no reference. Conflict: the branch has other commits since, or is checked
// out.
func (g *Git) Propose(ctx context.Context, name string, req wire.ProposeRequest) (res wire.Proposed, err error) {
	if err := proposable(req); err != nil {
		return res, err
	}
	c, err := g.Collect(ctx, name)
	if err != nil {
		return res, err
	}
	if req.Work != "" && req.Work != string(c.Work) {
		return res, fault.New(fault.Conflict, "sandbox %s has changed since the diff", c.Rec.Name).
			WithHint("review it again: coppice diff %s", c.Rec.Name)
	}
	p, err := g.Prepare(ctx, c, req)
	if err != nil {
		return res, err
	}
	if err := p.test(ctx); err != nil {
		return res, err
	}
	if err := p.Hand(ctx); err != nil {
		return res, err
	}
	return p.result(), nil
}

// proposable checks a request.
func proposable(req wire.ProposeRequest) error {
	switch {
	case len(req.Title) > maxTitle || strings.ContainsFunc(req.Title, func(r rune) bool { return !visible.Rune(r) }):
		return fault.New(fault.Invalid, "invalid title: must be one line of at most %d bytes", maxTitle).
			WithHint("give a short title: -m TITLE")
	case len(req.Tests) > proposal.MaxTests:
		return fault.New(fault.Invalid, "too many tests: %d; the limit is %d", len(req.Tests), proposal.MaxTests).
			WithHint("combine several in one command")
	case req.TimeoutMS < 0 || req.TimeoutMS > limit.Trial.Milliseconds():
		return fault.New(fault.Invalid, "invalid timeout %d ms: must be from 0 to 24 hours", req.TimeoutMS).
			WithHint("give a number of milliseconds, or 0 for 24 hours")
	}
	for _, t := range req.Tests {
		if strings.TrimSpace(t) == "" || strings.ContainsRune(t, 0) {
			return fault.New(fault.Invalid, "invalid test: must not be empty or contain a NUL byte").WithHint("for example: " +
				"--test \"make test\"")
		}
	}
	return nil
}

// Proposing is a proposal in preparation. Create one with Git.Prepare.
type Proposing struct {
	*Collected
	Branch repo.Ref // the branch that is set to the proposed commit

	g       *Git
	req     wire.ProposeRequest
	trusted func(repo.Mark) bool // reports whether the user has reviewed the mark

	old     repo.OID // current value of the branch
	before  repo.OID // the previous proposal
	changes []repo.Change
	marks   []repo.Mark
	tests   []wire.Trial

	made     *proposal.Proposal
	proposal repo.OID
}

// Prepare computes a proposal of c, and checks whether it may be made. It sets no reference.
func (g *Git) Prepare(ctx context.Context, c *Collected, req wire.ProposeRequest) (*Proposing, error) {
	trust := slices.Clone(req.Trust)
	for _, b := range req.TrustRaw {
		trust = append(trust, string(b))
	}
	p := &Proposing{Collected: c, g: g, req: req, trusted: Trusts(req.TrustAll, trust)}
	if err := p.look(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// look fills in the proposal, and refuses an invalid one.
func (p *Proposing) look(ctx context.Context) (err error) {
	if p.Work == p.Start {
		return fault.New(fault.Conflict, "sandbox %s has no changes", p.Rec.Name).
			WithHint("compare it: coppice diff %s", p.Rec.Name)
	}
	if p.Branch, err = BranchOf(p.Rec.Name); err != nil {
		return err
	}
	if err := p.free(ctx); err != nil {
		return err
	}
	if p.changes, err = p.Repo.Diff(ctx,
		repo.DiffOptions{From: p.Start, To: p.Work, Renames: true, Stat: true}); err != nil {
		return err
	}
	if p.marks, err = p.Repo.Marks(ctx, p.changes); err != nil {
		return err
	}
	if i := slices.IndexFunc(p.marks, func(m repo.Mark) bool { return !p.trusted(m) }); p.req.Guard && i >= 0 {
		left := slices.DeleteFunc(slices.Clone(p.marks), p.trusted)
		return fault.New(fault.Denied, "the proposal has files that a forge or a reviewer's machine would run or trust").
			Because(&repo.Untrusted{Marks: left}).
			WithHint("review each of them, then trust it: --trust %s", proposal.Path(left[0].Path))
	}
	return nil
}

// free reads the references, and refuses a branch that is not at the last proposal of this sandbox: it has other
// commits, or belongs to another sandbox.
func (p *Proposing) free(ctx context.Context) error {
	refs, err := p.Repo.Refs(ctx, p.Branch)
	if err != nil {
		return err
	}
	p.old = refs[p.Branch]
	if refs, err = p.Repo.Refs(ctx, proposalRef(p.Rec.Name)); err != nil {
		return err
	}
	p.before = refs[proposalRef(p.Rec.Name)]
	if err := p.Repo.Settable(ctx, p.Branch, p.old); err != nil || p.old == "" {
		return err
	}
	ours, err := p.proposedBefore(ctx)
	if err == nil && !ours {
		err = fault.New(fault.Conflict, "branch %s has changed since sandbox %s was last proposed",
			p.Branch.Short(), p.Rec.Name).
			WithHint("rename the branch, then propose again: git branch -m %s NAME", p.Branch.Short())
	}
	return err
}

// proposedBefore reports whether the branch is at the last proposal of this sandbox, or at the one before: if a
// process was killed between the two references, only the first is set.
func (p *Proposing) proposedBefore(ctx context.Context) (bool, error) {
	at := p.before
	for range 2 {
		if at == "" {
			return false, nil
		}
		last, err := readProposal(ctx, p.Repo, at)
		if err != nil {
			return false, fault.Wrap(err, "read the last proposal of %s, in %s", p.Rec.Name, proposalRef(p.Rec.Name))
		}
		if last.Sandbox == string(p.Rec.ID) && last.Work == string(p.old) {
			return true, nil
		}
		parents, err := p.Repo.Parents(ctx, at)
		if err != nil || len(parents) == 0 {
			return false, err
		}
		at = parents[0]
	}
	return false, nil
}

// readProposal reads the proposal in a commit, which is untrusted.
func readProposal(ctx context.Context, r *repo.Repo, commit repo.OID) (*proposal.Proposal, error) {
	var b strings.Builder
	if err := r.ReadFile(ctx, commit, proposal.FileProposal, proposal.Limit(proposal.FileProposal), &b); err != nil {
		return nil, err
	}
	return proposal.Decode([]byte(b.String()))
}

// test runs the tests in sequence, each in a fork of the proposed state.
func (p *Proposing) test(ctx context.Context) error {
	c := p.g.config.Book.Cleaners.For(ctx, &p.Rec)
	for _, cmd := range p.req.Tests {
		t, err := p.g.config.API.Trial(ctx, string(p.Rec.ID),
			wire.TrialRequest{Cmd: cmd, At: string(p.Snapshot), TimeoutMS: p.req.TimeoutMS})
		if err != nil {
			return err
		}
		t.Cmd, t.Tail = c.Redact(t.Cmd), c.Redact(t.Tail)
		p.tests = append(p.tests, t)
	}
	return nil
}

// Hand records the proposal, writes it, and sets the references. The ledger in the proposal includes that record.
// It can be cancelled with ctx until the proposal is written; another record then says that the sandbox was not
// proposed.
func (p *Proposing) Hand(ctx context.Context) error {
	keep, book := context.WithoutCancel(ctx), p.g.config.Book
	said := audit.ByDaemon(&format.Propose{
		Base: p.Rec.Repo.Base, Branch: string(p.Branch), Changes: int64(len(p.changes)), Marks: int64(len(p.marks)),
		Snapshot: string(p.Snapshot), Start: string(p.Start), Tip: string(p.Tip), Work: string(p.Work),
	})
	return book.Do(keep, book.Drafts(keep, &p.Rec, said...), func(context.Context) error { return p.write(ctx) })
}

// write writes the proposal, and sets the references. It ends with ctx until the proposal is written.
func (p *Proposing) write(ctx context.Context) (err error) {
	policy, err := p.g.config.API.Policy(ctx, string(p.Rec.ID))
	if err != nil {
		return err
	}
	text := p.g.config.Book.Cleaners.For(ctx, &p.Rec).Redact(policy.Text)
	if p.made, err = p.describe(ctx, policy.Digest); err != nil {
		return err
	}
	files, err := p.files(ctx, text)
	defer func() { err = errors.Join(err, files.close()) }()
	if err != nil {
		return err
	}
	rec := repo.Record{Files: files.all, Message: fmt.Sprintf("Propose %s\n\n%s", p.Rec.Name, p.req.Title),
		Author: Person(ctx, p.Repo), To: proposalRef(p.Rec.Name), Old: p.before}
	if p.before != "" {
		rec.Parents = []repo.OID{p.before}
	}
	if p.proposal, err = p.Repo.Record(ctx, rec); err != nil {
		return fault.Wrap(err, "store the proposal of %s", p.Rec.Name)
	}
	return p.Repo.SetRef(context.WithoutCancel(ctx), p.Branch, p.Work, p.old, "coppice: propose "+p.Rec.Name)
}

// proposalFiles are the files of a proposal's commit; some are in the scratch directory until they are closed.
type proposalFiles struct {
	all     []repo.File
	spooled []*os.File
}

func (f *proposalFiles) close() (err error) {
	for _, s := range f.spooled {
		err = errors.Join(err, s.Close())
	}
	return err
}

// files writes the files of the proposal. The caller must close them, even after an error.
func (p *Proposing) files(ctx context.Context, policy string) (*proposalFiles, error) {
	f := &proposalFiles{}
	said, err := proposal.Encode(p.made)
	if err != nil {
		return f, err
	}
	for name, text := range map[string][]byte{proposal.FileProposal: said,
		proposal.FileReport: proposal.Report(p.made, policy), proposal.FilePolicy: []byte(policy)} {
		f.all = append(f.all, repo.File{Name: name, Content: strings.NewReader(string(text))})
	}
	err = f.spool(p.g.config.Scratch(), proposal.FilePatch, func(w io.Writer) error {
		return p.Repo.Patch(ctx, repo.DiffOptions{From: p.Start, To: p.Work, Renames: true}, w)
	})
	if err == nil {
		err = f.spool(p.g.config.Scratch(), proposal.FileLedger,
			func(w io.Writer) error { return p.g.config.API.ExportLedger(ctx, string(p.Rec.ID), w) })
	}
	return f, err
}

// spool writes a possibly large file to disk, unlinked.
func (f *proposalFiles) spool(scratch, name string, write func(io.Writer) error) error {
	s, err := os.CreateTemp(scratch, "proposal-")
	if err != nil {
		return fault.Wrap(err, "create %s", name)
	}
	f.spooled = append(f.spooled, s)
	if err := os.Remove(s.Name()); err != nil {
		return fault.Wrap(err, "create %s", name)
	}
	if err := write(s); err != nil {
		return err
	}
	n, err := s.Seek(0, io.SeekCurrent)
	if err == nil && n > proposal.Limit(name) {
		return fault.New(fault.Invalid, "%s of the proposal is too large: %d bytes; the limit is "+
			"%d", name, n, proposal.Limit(name)).
			WithHint("split the change into several proposals")
	}
	if err == nil {
		_, err = s.Seek(0, io.SeekStart)
	}
	f.all = append(f.all, repo.File{Name: name, Content: s})
	return fault.Wrap(err, "write %s", name)
}

// result returns the answer to the request.
func (p *Proposing) result() wire.Proposed {
	s := p.made.Stat
	return wire.Proposed{
		Sandbox: p.Rec.Name, Title: p.req.Title, Repo: *WireRepo(p.Rec.Repo), Branch: p.Branch.Short(),
		Ref: string(proposalRef(p.Rec.Name)), Proposal: string(p.proposal),
		Start: string(p.Start), Tip: string(p.Tip), Work: string(p.Work), Snapshot: string(p.Snapshot),
		Commits: p.made.Commits,
		Files:   s.Files, Added: s.Added, Deleted: s.Deleted, Marks: WireMarks(p.marks, p.trusted), Tests: p.tests,
		Summary: proposal.Summary(p.made),
	}
}
