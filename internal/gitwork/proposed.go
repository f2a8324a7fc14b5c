//go:build linux

package gitwork

import (
	"archive/tar"
	"context"
	"io"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/proposal"
	"github.com/coppice-dev/coppice/internal/repo"
)

// describe returns the description of the proposal, proposal.json.
func (p *Proposing) describe(ctx context.Context, policy string) (*proposal.Proposal, error) {
	rec := &p.Rec
	out := &proposal.Proposal{
		Schema: proposal.Schema, Name: rec.Name, Title: p.req.Title, Sandbox: string(rec.ID), Created: rec.Created.UTC(),
		Time: p.g.config.Now().UTC(),
		Base: rec.Repo.Base, Start: string(p.Start), Tip: string(p.Tip), Work: string(p.Work), Branch: p.Branch.Short(),
		From: proposal.Text(rec.Repo.From),
		Tier: rec.Tier, Policy: policy, Snapshot: string(p.Snapshot),
	}
	n, err := p.Repo.Count(ctx, p.Start, p.Work)
	if err != nil {
		return nil, err
	}
	out.Commits = n
	for _, it := range rec.Enforced {
		text := proposal.Text(cutOff(it.Name, it.Detail))
		if it.State == wire.EnforcedOn {
			out.Enforced = append(out.Enforced, text)
		} else {
			out.Lacking = append(out.Lacking, it.State+" "+text)
		}
	}
	p.changed(out)
	for _, t := range p.tests {
		out.Tests = append(out.Tests,
			proposal.Test{Cmd: proposal.Text(t.Cmd), Code: t.Exit, MS: t.TimeMS, TimedOut: t.TimedOut,
				Output: proposal.Text(t.Tail)})
	}
	if err := p.recorded(ctx, out); err != nil {
		return nil, err
	}
	return out, p.lived(ctx, out)
}

// cutOff joins a name and a detail, truncated.
func cutOff(name, detail string) string {
	if detail == "" {
		return name
	}
	return name + ": " + detail
}

// changed fills in the changes.
func (p *Proposing) changed(out *proposal.Proposal) {
	s := &out.Stat
	for _, c := range p.changes {
		s.Files, s.Added, s.Deleted = s.Files+1, s.Added+c.Added, s.Deleted+c.Deleted
		if len(out.Changes) == proposal.MaxChanges {
			continue
		}
		ch := proposal.Change{Status: string(c.Status), Path: proposal.Path(c.Path), Binary: c.Binary, Added: c.Added,
			Deleted: c.Deleted}
		if c.OldPath != "" {
			ch.OldPath = proposal.Path(c.OldPath)
		}
		out.Changes = append(out.Changes, ch)
	}
	s.Marks, s.Skipped = len(p.marks), len(p.Skipped)
	for _, m := range p.marks[:min(len(p.marks), proposal.MaxMarks)] {
		out.Marks = append(out.Marks,
			proposal.Mark{Path: proposal.Path(m.Path), Kind: string(m.Kind), Why: proposal.Text(m.Why)})
	}
	for _, k := range p.Skipped[:min(len(p.Skipped), proposal.MaxSkipped)] {
		out.Skipped = append(out.Skipped, proposal.Skipped{Path: proposal.Path(k.Path), Why: proposal.Text(k.Why)})
	}
}

// recorded fills in the summary of the ledger.
func (p *Proposing) recorded(ctx context.Context, out *proposal.Proposal) error {
	var told Retelling
	for r, err := range p.g.config.Book.Ledger.Read(ctx, format.Sandbox(p.Rec.ID), ledger.Filter{}) {
		if err != nil {
			return err
		}
		told.Hear(r)
	}
	told.Into(out)
	at, err := p.g.config.API.LedgerCheckpoint(ctx)
	if err != nil {
		return err
	}
	out.Ledger.Key = at.Key
	out.Ledger.Origin, _, _ = strings.Cut(at.Key, "+")
	return nil
}

// lived fills in the history.
func (p *Proposing) lived(ctx context.Context, out *proposal.Proposal) error {
	h, layers, err := p.g.config.Layers.History(ctx, &p.Rec, p.Snapshot)
	if err != nil {
		return err
	}
	c := p.g.config.Book.Cleaners.For(ctx, &p.Rec)
	out.Stat.Snapshots = len(h.Snapshots)
	newest := h.Newest(proposal.MaxSnapshots)
	slices.Reverse(newest)
	for _, id := range newest {
		s := h.Snapshots[id]
		snap := proposal.Snapshot{
			ID: string(id), Parent: string(s.Parent), Cause: string(s.Cause),
			Message: proposal.Text(c.Redact(s.Message)), Time: s.Created.UTC(), Layers: layers[id],
		}
		out.Snapshots = append(out.Snapshots, snap)
	}
	return nil
}

// ExportProposal writes the files of the newest proposal of a sandbox, as a tar archive.
func (g *Git) ExportProposal(ctx context.Context, name string, w io.Writer) error {
	rec, err := g.config.Work.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	r, err := g.config.Work.Repository(ctx, &rec)
	if err != nil {
		return err
	}
	refs, err := r.Refs(ctx, proposalRef(rec.Name))
	if err != nil {
		return err
	}
	commit := refs[proposalRef(rec.Name)]
	if commit == "" {
		return fault.New(fault.NotFound, "sandbox %s has no proposal", rec.Name).
			WithHint("propose it first: coppice git propose %s", rec.Name)
	}
	said, err := readProposal(ctx, r, commit)
	if err != nil {
		return err
	}
	return writeProposal(ctx, r, commit, said, w)
}

// writeProposal writes the files of a proposal's commit, which is untrusted.
func writeProposal(ctx context.Context, r *repo.Repo, commit repo.OID, said *proposal.Proposal, w io.Writer) error {
	sizes, err := r.ReadRecord(ctx, commit)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	for _, name := range proposal.Names() {
		size, there := sizes[name]
		if !there || size > proposal.Limit(name) {
			return fault.New(fault.Invalid, "commit %s is not a proposal: %s is missing or too large", commit, name)
		}
		if err := tw.WriteHeader(
			&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: said.Time, Format: tar.FormatPAX}); err != nil {
			return fault.Wrap(err, "write %s", name)
		}
		if err := r.ReadFile(ctx, commit, name, size, tw); err != nil {
			return err
		}
	}
	return fault.Wrap(tw.Close(), "write the proposal")
}
