//go:build linux

package engine

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The records that the engine makes. See audit.Book for how they are written.

// execRecord tells of a command that begins.
func execRecord(ctx context.Context, m *audit.Cleaners, rec *meta.Sandbox, req wire.ExecRequest) audit.Statement {
	c := m.For(ctx, rec, req.Env...)
	return audit.Statement{By: format.ByDaemon, Body: &format.Exec{
		Exec: req.ID, Args: c.RecordArgs(req.Cmd), Dir: c.RecordText(req.Dir),
		Env: c.RecordEnvNames(slices.Concat(rec.Env, req.Env)...), TTY: req.TTY, User: rec.User,
	}}
}

// exitRecords tell of the end of a command, with its snapshot, and of the limits that it
// came to; nothing where its end is recorded already. The caller, which records them, settles
// the command.
func (e *Engine) exitRecords(
	ctx context.Context, rec *meta.Sandbox, of *command, end ending, x wire.Exit, t taken,
) []audit.Statement {
	if !e.commands.isOpen(of) {
		return nil
	}
	c := e.cleaners.For(ctx, rec, end.Env...)
	kept, err := e.Policies.Evidence(ctx, rec)
	if err != nil {
		c = audit.Cleaner{} // nor is any text let through
	}
	exit := &format.Exit{Exec: of.id, Code: x.Code, Signal: x.Signal, Before: string(of.before), Snapshot: x.Head,
		ChangesTotal: int64(x.Paths),
		Output:       e.cleaners.KeepOutput(rec, c, end.Output, end.TTY, kept.Output.Value), Denials: e.denialsOf(ctx, of),
		Resources: format.Resources{MaxRSSBytes: end.Resources.MaxRSSBytes, SystemMicros: end.Resources.SystemMicros,
			UserMicros: end.Resources.UserMicros}}
	if t.changed {
		exit.Changes = changesOf(c, t)
	}
	if !of.at.IsZero() {
		exit.DurationNanos = max(0, e.Now().Sub(of.at).Nanoseconds())
	}
	switch {
	case x.Limit != "":
		exit.Reason = "limit: " + c.RecordText(x.Limit)
	case x.TimedOut:
		exit.Reason = "timeout"
	case x.Message != "":
		exit.Reason = c.RecordText(x.Message)
	case end.Stopped:
		exit.Reason = "the sandbox was stopped while the command ran"
	}
	out := []audit.Statement{audit.ByKeeper(exit)}
	for _, hit := range events.LimitsOf(x) {
		out = append(out, audit.ByKeeper(&format.Limit{Exec: of.id, Limit: c.RecordText(hit)}))
	}
	return out
}

// snapshotRecord tells of a snapshot. What is labelled from inside is the inside's word.
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

// startRecord tells what of a box is enforced, and what is not.
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

// createRecord tells of a sandbox that is made, from another one or not.
func (e *Engine) createRecord(rec *meta.Sandbox, parent timeline.SandboxID) audit.Statement {
	c := e.cleaners.Formats()
	b := &format.Create{
		Base: c.RecordText(rec.From), Driver: rec.Driver, From: string(parent), Snapshot: string(rec.Head),
	}
	if r := rec.Repo; r != nil {
		b.Repository, b.Commit = c.RecordText(r.Top), r.Base
		if r.Start != r.Base {
			b.Start = r.Start
		}
	}
	return audit.Statement{By: format.ByDaemon, Body: b}
}

// forkDrafts are the records of forks: of their parent, and of themselves.
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
