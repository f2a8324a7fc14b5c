//go:build linux

package travel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
)

// A fetched proposal is from another user, and trusted only as far as incoming checks it: objects like those
// exported from a sandbox, records by the signatures and the tree of their log. The changes, the marks and the
// summary of the records are computed from these. Where the proposal claims something different, incoming notes
// the difference.

// incoming is a checked proposal of a remote.
type incoming struct {
	*trip
	commit  repo.OID           // that contains the proposal
	says    *proposal.Proposal // its claims; contradict corrects them
	policy  string             // text of its policy
	work    repo.OID           // the proposed commit
	start   repo.OID           // the commit that the work is based on
	changes []repo.Change      // from start to work
	marks   []repo.Mark
	commits int               // from start to work
	log     *format.Verified  // the verified ledger
	told    gitwork.Retelling // summary of the records
	bound   bool              // a record says that this work was proposed
	differs []string          // claims that differ from what was found
}

// look checks the proposal in a commit, and its branch, which is at head.
func (t *Travel) look(ctx context.Context, tr *trip, head, commit repo.OID) (in *incoming, err error) {
	in = &incoming{trip: tr, commit: commit, work: head}
	verify := func(ctx context.Context) error { return t.verify(ctx, in) }
	for _, step := range []func(context.Context) error{in.read, in.fits, in.compare, verify} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	in.contradict()
	return in, nil
}

// read reads the claims of the proposal. It refuses a commit with files that are not those of a proposal.
func (in *incoming) read(ctx context.Context) error {
	sizes, err := in.repo.ReadRecord(ctx, in.commit)
	if err != nil {
		return err
	}
	for name, size := range sizes {
		switch most := proposal.Limit(name); {
		case most == 0:
			return fault.New(fault.Invalid, "unknown file %.80q in the proposal", name)
		case size > most:
			return fault.New(fault.Invalid, "%s of the proposal is too large: %d bytes; the limit is %d", name, size, most)
		}
	}
	for _, name := range proposal.Names() {
		if _, ok := sizes[name]; !ok {
			return fault.New(fault.Invalid, "%s is missing in the proposal", name)
		}
	}
	said, err := in.text(ctx, proposal.FileProposal)
	if err != nil {
		return err
	}
	if in.says, err = proposal.Decode(said); err != nil {
		return err
	}
	rules, err := in.text(ctx, proposal.FilePolicy)
	in.policy = string(rules)
	return err
}

// text reads a file of the proposal that is small enough for memory.
func (in *incoming) text(ctx context.Context, name string) ([]byte, error) {
	var b bytes.Buffer
	err := in.repo.ReadFile(ctx, in.commit, name, proposal.Limit(name), &b)
	return b.Bytes(), err
}

// fits checks that the proposal has this name and this branch, and is based on a commit that the user has.
func (in *incoming) fits(ctx context.Context) error {
	p := in.says
	switch {
	case p.Name != in.Name:
		return fault.New(fault.Invalid, "proposal %s belongs to sandbox %.80q", in.Name, p.Name)
	case p.Branch != "coppice/"+in.Name:
		return fault.New(fault.Invalid, "proposal %s belongs to branch %.80q", in.Name, p.Branch)
	case p.Work != string(in.work):
		return fault.New(fault.Invalid, "proposal %s is for commit %.64s, but its branch is at %s", in.Name,
			p.Work, in.work).
			WithHint("only one of the two was pushed; ask the author to push again")
	}
	base, start := repo.OID(p.Base), repo.OID(p.Start)
	own, err := in.repo.Own(ctx, base)
	if fault.Is(err, fault.NotFound) || err == nil && !own {
		return fault.New(fault.Conflict, "base commit %.64s of the proposal not found on a branch of %s", base, in.repo.Top).
			WithHint("fetch it: git fetch %s; if it is not there, ask the author to push %s first",
				in.Remote, orBranch(p.From))
	}
	if err != nil {
		return err
	}
	if start != base {
		if parents, err := in.repo.Parents(ctx, start); err != nil || len(parents) != 1 || parents[0] != base {
			return fault.New(fault.Invalid, "invalid start commit %.64s of the proposal: its only parent must be the base",
				start).Because(err)
		}
		if _, err := in.repo.Examine(ctx, base, start); err != nil {
			return err
		}
	}
	in.start = start
	got, err := in.repo.Examine(ctx, start, in.work)
	in.commits = got.Commits
	return err
}

// orBranch returns the name of a branch for a hint, if the name is valid.
func orBranch(name string) string {
	if _, err := repo.ParseBranch(name); err != nil {
		return "the branch"
	}
	return name
}

// compare computes the changes and their marks. The patch in the proposal is not read.
func (in *incoming) compare(ctx context.Context) (err error) {
	if in.changes, err = in.repo.Diff(ctx,
		repo.DiffOptions{From: in.start, To: in.work, Renames: true, Stat: true}); err != nil {
		return err
	}
	in.marks, err = in.repo.Marks(ctx, in.changes)
	return err
}

// verify verifies the records, and summarizes them.
func (t *Travel) verify(ctx context.Context, in *incoming) (err error) {
	f, err := os.CreateTemp(t.c.Repos.Scratch(), "ledger-")
	if err != nil {
		return fault.Wrap(err, "store the ledger of the proposal")
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	if err := in.repo.ReadFile(ctx, in.commit, proposal.FileLedger, proposal.Limit(proposal.FileLedger), f); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	var (
		snapshots = map[string]bool{}
		rules     = map[string]bool{}
		sandbox   = format.Sandbox(in.says.Sandbox)
	)
	in.log, err = format.VerifyBundle(ctx, f, size, format.Demands{Each: func(r *format.Record) {
		in.told.Hear(r)
		rules[r.Policy] = true
		if id := snapshotOf(r.Body); id != "" {
			snapshots[id] = true
		}
		if p, is := r.Body.(*format.Propose); is {
			in.bound = p.Work == string(in.work) && p.Start == string(in.start)
		}
	}})
	switch {
	case err != nil:
		return fault.Wrap(err, "verify the ledger of the proposal")
	case in.log.Sandbox != sandbox:
		return fault.New(fault.Corrupt, "the ledger of the proposal belongs to sandbox %s, but the proposal names "+
			"%.80q", in.log.Sandbox,
			in.says.Sandbox)
	case in.log.Records < in.says.Ledger.Records:
		return fault.New(fault.Corrupt, "the ledger of the proposal has %d records, but the proposal states "+
			"%d", in.log.Records,
			in.says.Ledger.Records)
	case !snapshots[in.says.Snapshot]:
		return fault.New(fault.Corrupt, "no record in the ledger names the proposed snapshot %.40q", in.says.Snapshot)
	case !rules[in.says.Policy]:
		return fault.New(fault.Corrupt, "no record in the ledger names the policy of the proposal")
	}
	if policy.DigestOf([]byte(in.policy)) != in.says.Policy {
		in.differs = append(in.differs,
			"the policy text does not match the digest in the records: secrets were redacted, or more "+
				"was changed")
	}
	return nil
}

// snapshotOf returns the snapshot of a record; "" if it has none.
func snapshotOf(b format.Body) string {
	switch b := b.(type) {
	case *format.Snapshot:
		return b.Snapshot
	case *format.Exit:
		return b.Snapshot
	case *format.Create:
		return b.Snapshot
	case *format.Rollback:
		return b.From
	}
	return ""
}

// contradict notes where the claims of the proposal differ from what was found, and corrects them.
func (in *incoming) contradict() {
	p := in.says
	note := func(what string, says, found any) {
		if fmt.Sprint(says) != fmt.Sprint(found) {
			in.differs = append(in.differs, fmt.Sprintf("%s: the proposal states %v, found %v", what, says, found))
		}
	}
	added, deleted := 0, 0
	changes := make([]proposal.Change, 0, len(in.changes))
	for _, c := range in.changes {
		added, deleted = added+c.Added, deleted+c.Deleted
		one := proposal.Change{Status: string(c.Status), Path: proposal.Path(c.Path), Binary: c.Binary, Added: c.Added,
			Deleted: c.Deleted}
		if c.OldPath != "" {
			one.OldPath = proposal.Path(c.OldPath)
		}
		changes = append(changes, one)
	}
	marks := make([]proposal.Mark, 0, len(in.marks))
	for _, m := range in.marks {
		marks = append(marks, proposal.Mark{Path: proposal.Path(m.Path), Kind: string(m.Kind), Why: m.Why})
	}
	note("files", p.Stat.Files, len(changes))
	note("lines added", p.Stat.Added, added)
	note("lines deleted", p.Stat.Deleted, deleted)
	note("marks", p.Stat.Marks, len(marks))
	note("commits", p.Commits, in.commits)
	p.Stat.Files, p.Stat.Added, p.Stat.Deleted, p.Stat.Marks, p.Commits = len(changes), added, deleted,
		len(marks), in.commits
	p.Changes, p.Marks = changes[:min(len(changes), proposal.MaxChanges)], marks[:min(len(marks), proposal.MaxMarks)]
	said := p.Ledger
	p.Commands, p.Refused = nil, nil
	in.told.Into(p)
	p.Ledger.Records, p.Ledger.Origin, p.Ledger.Key = in.log.Records, in.log.Log.Origin, in.log.Key
	note("commands", said.Commands, p.Ledger.Commands)
	note("failed commands", said.Failed, p.Ledger.Failed)
	note("refused connections", said.NetRefused, p.Ledger.NetRefused)
	note("refused files and system calls", said.FileRefused, p.Ledger.FileRefused)
	note("bytes sent", said.BytesOut, p.Ledger.BytesOut)
	if !in.bound {
		in.differs = append(in.differs,
			"no record says that this commit was proposed: the records are authentic, but may belong to other work")
	}
}
