//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Records that the engine makes. See audit.Book for how they are written.

// snapshotRecord returns the record of a snapshot. A message that was set from inside is recorded as a statement of
// the inside.
func snapshotRecord(
	ctx context.Context, m *audit.Cleaners, rec *meta.Sandbox, snap timeline.Snapshot,
) audit.Statement {
	by := format.ByDaemon
	if (snap.Cause == timeline.CauseMark || snap.Cause == timeline.CauseManual) && audit.Inside(ctx) {
		by = format.BySandbox
	}
	image := ""
	if snap.Memory != nil {
		image = snap.Memory.Image
	}
	return audit.Statement{By: by, Body: &format.Snapshot{
		Memory: image, Snapshot: string(snap.ID), Parent: string(snap.Parent), Cause: string(snap.Cause),
		Label: m.For(ctx, rec).RecordText(snap.Message), Changes: int64(snap.Stats.Paths),
	}}
}

// startRecord returns the record of what a box enforces, and of what it does not.
func startRecord(enforced Enforced) audit.Statement {
	out := &format.Start{}
	room := limit.RecordArgs / 2
	for _, it := range enforced.Items {
		text := it.Name
		if it.Detail != "" {
			text += ": " + limit.Cut(it.Detail, max(len("..."), min(limit.RecordText, room)))
		}
		room -= len(text)
		if it.State == wire.EnforcedOn {
			out.Enforced = append(out.Enforced, text)
		} else {
			out.Lacking = append(out.Lacking, it.State+" "+text)
		}
	}
	return audit.ByKeeper(out)
}

// createRecord returns the record of a new sandbox; parent is "" unless it is a fork.
func (e *Engine) createRecord(rec *meta.Sandbox, parent timeline.SandboxID) audit.Statement {
	c := e.cleaners.Formats()
	b := &format.Create{
		Base: c.RecordText(rec.From), Driver: rec.Driver, From: string(parent), Snapshot: string(rec.Head),
	}
	for _, p := range rec.Ignored {
		b.Ignored = append(b.Ignored, c.RecordText(p))
	}
	b.Labels = c.Labels(rec.Labels)
	if r := rec.Repo; r != nil {
		b.Repository, b.Commit = c.RecordText(r.Top), r.Base
		if r.Start != r.Base {
			b.Start = r.Start
		}
	}
	return audit.Statement{By: format.ByDaemon, Body: b}
}

// forkDrafts returns the records of forks: for their parent, and for themselves.
func (e *Engine) forkDrafts(
	ctx context.Context, parent *meta.Sandbox, at timeline.SnapshotID, image string, forks []meta.Sandbox,
) []ledger.Draft {
	out := make([]ledger.Draft, 0, 2*len(forks))
	for i := range forks {
		made := &format.Fork{Child: string(forks[i].ID), Snapshot: string(at), Memory: image}
		out = append(out, e.Book.Drafts(ctx, parent, audit.ByDaemon(made)...)...)
	}
	for i := range forks {
		out = append(out, e.Book.Drafts(ctx, &forks[i], e.createRecord(&forks[i], parent.ID))...)
	}
	return out
}
