//go:build linux

package engine

import (
	"context"
	"slices"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What is done is in the ledger before it is done, or at the latest before anybody is
// told: what cannot be recorded is refused. A record of what did not come about after all
// has another one behind it that says so (format.Undone); after a crash reconcile writes
// that. What makes room on the disk is done first, and told afterwards: see owe.

// testimony is what a record tells, and by whose word.
type testimony struct {
	by   format.Observer
	body format.Body
}

func byDaemon(bodies ...format.Body) (out []testimony) {
	for _, b := range bodies {
		out = append(out, testimony{format.ByDaemon, b})
	}
	return out
}

func byKeeper(b format.Body) testimony { return testimony{format.ByKeeper, b} }

// drafts makes records of a sandbox as it is now.
func (e *Engine) drafts(ctx context.Context, rec *meta.Sandbox, tell ...testimony) []ledger.Draft {
	digest := rec.Policy
	if len(rec.Timed) > 0 {
		if all, err := e.Policies.Phases(ctx, rec); err == nil {
			digest = all[0].Digest
		}
	}
	out := make([]ledger.Draft, len(tell))
	for i, s := range tell {
		out[i] = ledger.Draft{Sandbox: format.Sandbox(rec.ID), Name: rec.Name, Observer: s.by, Policy: digest,
			Tier: rec.Tier, Body: s.body}
	}
	return out
}

// write appends records, after those that could not be told when they happened. They are
// on the disk when it returns.
func (e *Engine) write(ctx context.Context, drafts []ledger.Draft) ([]format.Record, error) {
	if len(drafts) == 0 {
		return nil, nil
	}
	ctx = context.WithoutCancel(ctx)
	late := e.takeUnsaid()
	got, err := e.Ledger.Append(ctx, slices.Concat(late, drafts)...)
	if fault.Is(err, fault.NotFound) && len(late) > 0 { // a ledger was removed meanwhile, and with it what was to be told
		for i := range late {
			if _, lerr := e.Ledger.Append(ctx, late[i]); lerr != nil && !fault.Is(lerr, fault.NotFound) {
				e.keepUnsaid(late[i : i+1])
			}
		}
		late = nil
		got, err = e.Ledger.Append(ctx, drafts...)
	}
	if err != nil {
		e.keepUnsaid(late)
		hintRoom(err, "make room on the file system of %s, for example with: coppice gc", e.Home)
		return nil, fault.Wrap(err, "record what is done with sandbox %s", drafts[0].Name)
	}
	return got[len(late):], nil
}

// record is write for one sandbox.
func (e *Engine) record(ctx context.Context, rec *meta.Sandbox, tell ...testimony) error {
	_, err := e.write(ctx, e.drafts(ctx, rec, tell...))
	return err
}

// note is record for what has happened already, and nobody can be refused any more: what
// cannot be written now is written with what is next.
func (e *Engine) note(ctx context.Context, rec *meta.Sandbox, tell ...testimony) {
	e.noteDrafts(ctx, e.drafts(ctx, rec, tell...))
}

func (e *Engine) noteDrafts(ctx context.Context, drafts []ledger.Draft) {
	if _, err := e.write(ctx, drafts); err != nil {
		e.Logger.Error("not in the ledger yet", "sandbox", drafts[0].Name, "kind", drafts[0].Body.Kind(), "err", err)
		if !fault.Is(err, fault.NotFound) { // the ledger was removed
			e.keepUnsaid(drafts)
		}
	}
}

func (e *Engine) takeUnsaid() []ledger.Draft {
	e.mu.Lock()
	defer e.mu.Unlock()
	late := e.unsaid
	e.unsaid = nil
	return late
}

// keepUnsaid keeps records for later. Of too many the newest are counted.
func (e *Engine) keepUnsaid(drafts []ledger.Draft) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsaid = append(e.unsaid, drafts...)
	over := len(e.unsaid) - limit.RecordsUnsaid
	if over <= 0 {
		return
	}
	e.unsaid = e.unsaid[:limit.RecordsUnsaid]
	if lost, ok := e.unsaid[limit.RecordsUnsaid-1].Body.(*format.Lost); ok {
		lost.Count += int64(over)
		return
	}
	e.unsaid[limit.RecordsUnsaid-1] = ledger.Draft{Sandbox: format.Host, Name: string(format.Host),
		Observer: format.ByDaemon,
		Body:     &format.Lost{Count: int64(over) + 1, Reason: "the ledger could not be written"}}
}

// undertake records what is about to be done. The caller says with done how it ended: with
// an error it is told that it did not come about.
func (e *Engine) undertake(ctx context.Context, drafts []ledger.Draft) (done func(error), err error) {
	e.doing.Add(1)
	got, err := e.write(ctx, drafts)
	if err != nil {
		e.doing.Add(-1)
		return func(error) {}, err
	}
	return func(cause error) {
		if cause != nil {
			e.undone(ctx, drafts, got, cause)
		}
		e.doing.Add(-1)
	}, nil
}

// undone tells that what records tell did not come about.
func (e *Engine) undone(ctx context.Context, drafts []ledger.Draft, got []format.Record, cause error) {
	c := e.cleaners.Formats()
	if rec, err := e.DB.Sandbox(ctx, string(drafts[0].Sandbox)); err == nil {
		c = e.cleaners.For(ctx, &rec)
	}
	reason := c.RecordText(cause.Error())
	out := slices.Clone(drafts)
	for i := range out {
		out[i].Observer, out[i].Body = format.ByDaemon, &format.Undone{Seq: got[i].Seq, Reason: reason}
	}
	e.noteDrafts(ctx, out)
}

// telling is a record that is being written while something else is done.
type telling struct {
	drafts []ledger.Draft
	got    []format.Record
	err    error
	done   chan struct{}
}

// tell begins to record.
func (e *Engine) tell(ctx context.Context, rec *meta.Sandbox, what ...testimony) *telling {
	t := &telling{drafts: e.drafts(ctx, rec, what...), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.got, t.err = e.write(ctx, t.drafts)
	}()
	return t
}

// wait waits until it is recorded. It may be called again.
func (t *telling) wait() error {
	<-t.done
	return t.err
}

// execRecord tells of a command that begins.
func (e *Engine) execRecord(ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest) testimony {
	c := e.cleaners.For(ctx, rec, req.Env...)
	return testimony{format.ByDaemon, &format.Exec{
		Exec: req.ID, Args: c.RecordArgs(req.Cmd), Dir: c.RecordText(req.Dir),
		Env: c.RecordEnvNames(slices.Concat(rec.Env, req.Env)...), TTY: req.TTY, User: rec.User,
	}}
}

// exitRecords tell of the end of a command, with its snapshot, and of the limits that it
// came to; nothing where its end is recorded already. The caller, which records them, settles
// the command.
func (e *Engine) exitRecords(
	ctx context.Context, rec *meta.Sandbox, of *command, end ending, x wire.Exit, t taken,
) []testimony {
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
	out := []testimony{byKeeper(exit)}
	for _, hit := range events.LimitsOf(x) {
		out = append(out, byKeeper(&format.Limit{Exec: of.id, Limit: c.RecordText(hit)}))
	}
	return out
}

// snapshotRecord tells of a snapshot. What is labelled from inside is the inside's word.
func (e *Engine) snapshotRecord(ctx context.Context, rec *meta.Sandbox, snap timeline.Snapshot) testimony {
	by := format.ByDaemon
	if (snap.Cause == timeline.CauseMark || snap.Cause == timeline.CauseManual) && Inside(ctx) {
		by = format.BySandbox
	}
	image := ""
	if snap.Memory != nil {
		image = snap.Memory.Image
	}
	return testimony{by,
		&format.Snapshot{Memory: image, Snapshot: string(snap.ID), Parent: string(snap.Parent), Cause: string(snap.Cause),
			Label: e.cleaners.For(ctx, rec).RecordText(snap.Message), Changes: int64(snap.Stats.Paths)}}
}

// startRecord tells what of a box is enforced, and what is not.
func startRecord(enforced Enforced) testimony {
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
	return byKeeper(out)
}

// createRecord tells of a sandbox that is made, from another one or not.
func (e *Engine) createRecord(rec *meta.Sandbox, parent timeline.SandboxID) testimony {
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
	return testimony{format.ByDaemon, b}
}

// forkDrafts are the records of forks: of their parent, and of themselves.
func (e *Engine) forkDrafts(
	ctx context.Context, parent *meta.Sandbox, at timeline.SnapshotID, image string, forks []meta.Sandbox,
) []ledger.Draft {
	out := make([]ledger.Draft, 0, 2*len(forks))
	for i := range forks {
		out = append(out,
			e.drafts(ctx, parent, byDaemon(&format.Fork{Child: string(forks[i].ID), Snapshot: string(at), Memory: image})...)...)
	}
	for i := range forks {
		out = append(out, e.drafts(ctx, &forks[i], e.createRecord(&forks[i], parent.ID))...)
	}
	return out
}

// tournamentRecord tells of candidates that were tried from a snapshot on.
func (e *Engine) tournamentRecord(res wire.TournamentResult) testimony {
	cleaner := e.cleaners.Formats()
	out, room := &format.Tournament{Snapshot: res.Base, Winner: cleaner.RecordText(res.Winner)}, limit.RecordNames
	for i, b := range res.Branches {
		c := format.Candidate{Name: cleaner.RecordText(b.Name), Outcome: "passed", Sandbox: b.ID}
		switch b.TestExit {
		case 0:
		case exitTimeout:
			c.Outcome = "out of time"
		case exitNotRun:
			c.Outcome = "could not be run"
		default:
			c.Outcome = "failed"
		}
		if b.Score != nil {
			c.Score = strconv.FormatFloat(*b.Score, 'g', -1, 64)
		}
		if room -= audit.EncodedLen(c.Name); room < 0 {
			out.Candidates = append(out.Candidates,
				format.Candidate{Name: "... and " + itoa(len(res.Branches)-i) + " more", Outcome: "not listed"})
			break
		}
		out.Candidates = append(out.Candidates, c)
	}
	return testimony{format.ByDaemon, out}
}

// dropRecords tell of snapshots that are gone.
func dropRecords(reason string, gone []timeline.SnapshotID) (out []testimony) {
	for part := range slices.Chunk(gone, limit.RecordIDs) {
		d := &format.Drop{Reason: reason}
		for _, id := range part {
			d.Snapshots = append(d.Snapshots, string(id))
		}
		out = append(out, byDaemon(d)...)
	}
	return out
}

// insideKey marks a context of what the inside of a sandbox asks for.
type insideKey struct{}

// FromInside gives a context in which it is a sandbox's inside that asks.
func FromInside(ctx context.Context) context.Context {
	return context.WithValue(ctx, insideKey{}, true)
}

// Inside reports whether it is a sandbox's inside that asks.
func Inside(ctx context.Context) bool { return ctx.Value(insideKey{}) != nil }
