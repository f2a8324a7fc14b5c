//go:build linux

package command

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
)

// execRecord returns the record of the start of a command.
func (r *Runner) execRecord(ctx context.Context, rec *meta.Sandbox, req wire.ExecRequest) audit.Statement {
	c := r.c.Cleaners.For(ctx, rec, req.Env...)
	return audit.Statement{By: format.ByDaemon, Body: &format.Exec{
		Exec: req.ID, Args: c.RecordArgs(req.Cmd), Dir: c.RecordText(req.Dir),
		Env: c.RecordEnvNames(slices.Concat(rec.Env, req.Env)...), TTY: req.TTY, User: policies.RunsAs(rec, r.c.UID),
	}}
}

// exitRecords returns the records of the exit of a command, with its snapshot, and of the limits that
// it reached; none if its exit is already recorded. The caller, which writes them, settles the command.
func (r *Runner) exitRecords(
	ctx context.Context, rec *meta.Sandbox, of *command, end Ended, x wire.Exit, t Taken,
) []audit.Statement {
	if !r.c.Register.isOpen(of) {
		return nil
	}
	c := r.c.Cleaners.For(ctx, rec, end.Env...)
	kept, err := r.c.Policies.Evidence(ctx, rec)
	if err != nil {
		c = audit.Cleaner{} // an empty Cleaner lets no text through
	}
	exit := &format.Exit{Exec: of.id, Code: x.Code, Signal: x.Signal, Before: string(of.before), Snapshot: x.Head,
		ChangesTotal: int64(x.Paths),
		Output:       r.c.Cleaners.KeepOutput(rec, c, end.Output, end.TTY, of.most.output(kept.Output.Value)),
		Denials:      r.denialsOf(ctx, of),
		Resources: format.Resources{MaxRSSBytes: end.Resources.MaxRSSBytes, SystemMicros: end.Resources.SystemMicros,
			UserMicros: end.Resources.UserMicros}}
	if t.Changed {
		exit.Changes = of.most.changes(t.Changes(c))
	}
	if !of.at.IsZero() {
		exit.DurationNanos = max(0, r.c.Now().Sub(of.at).Nanoseconds())
	}
	switch {
	case x.Limit != "":
		exit.Reason = "limit: " + c.RecordText(x.Limit)
	case x.TimedOut:
		exit.Reason = "timeout"
	case x.Message != "":
		exit.Reason = c.RecordText(x.Message)
	case end.Stopped:
		exit.Reason = stoppedMeanwhile
	}
	out := []audit.Statement{audit.ByKeeper(exit)}
	for _, hit := range events.LimitsOf(x) {
		out = append(out, audit.ByKeeper(&format.Limit{Exec: of.id, Limit: c.RecordText(hit)}))
	}
	return out
}

// denialsOf returns how many denials were recorded of the sandbox of a command since its start. For a
// command that an earlier daemon started, it counts records.
func (r *Runner) denialsOf(ctx context.Context, c *command) (n int64) {
	counted, seq := r.c.Register.denied(c)
	if !c.found || seq == 0 {
		return counted
	}
	since := ledger.Filter{From: seq + 1, Kinds: []format.Kind{format.KindDenial, format.KindNetwork}}
	for rd, err := range r.c.Ledger.Read(ctx, format.Sandbox(c.sandbox), since) {
		if err != nil {
			r.c.Log.Warn("could not count all denials of a command", "exec", c.id, "err", err)
			break
		}
		n += denials(rd.Body)
	}
	return n
}

// emitEnd publishes the event of the exit of a command.
func (r *Runner) emitEnd(ctx context.Context, rec *meta.Sandbox, c *command, x wire.Exit) {
	message := Message(ctx, r.c.Cleaners, rec, c.req)
	r.c.Feed.Emit(events.Limits(rec, c.id, message, x)...)
	r.c.Feed.Emit(events.Exited(rec, c.id, message, x))
}
