//go:build linux

package engine

import (
	"context"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Mark sets the message of snapshots in a sandbox; see wire.MarkRequest. A long message is cut.
func (e *Engine) Mark(ctx context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error) {
	message := events.Cut(e.cleaners.Formats().Redact(strings.TrimSpace(req.Label)))
	switch {
	case req.Phase != wire.MarkPoint && req.Phase != wire.MarkBegin && req.Phase != wire.MarkEnd:
		return wire.CommitResult{}, fault.New(fault.Invalid, "unknown mark phase %q", events.Cut(req.Phase)).
			WithHint("use begin, end or none")
	case message == "" && req.Phase != wire.MarkEnd:
		return wire.CommitResult{}, fault.New(fault.Invalid, "a mark requires a message").
			WithHint("for example: coppice snapshot mark %s begin \"run tests\"", name)
	}
	s, rec, err := e.acquire(ctx, name, "marking")
	if err != nil {
		return wire.CommitResult{}, err
	}
	defer s.unlock(e)
	changed, err := e.budgets.MayChange(ctx, &rec)
	if err != nil {
		return wire.CommitResult{}, err
	}
	n, next := note{cause: timeline.CauseMark, message: message}, rec.Mark
	switch req.Phase {
	case wire.MarkBegin:
		n, next = note{cause: timeline.CauseAuto}, message // earlier changes belong to the previous mark
	case wire.MarkEnd:
		if next = ""; message == "" {
			message, n.message = rec.Mark, rec.Mark
		}
		if message == "" {
			return wire.CommitResult{}, fault.New(fault.Conflict, "sandbox %s has no open mark", rec.Name).
				WithHint("begin one first, or give a message: coppice snapshot mark %s end \"ran tests\"", rec.Name)
		}
	}
	run, _ := e.Commands.Supervised(s.Held)
	n.memory = run != nil && run.Capture.MemoryOnMark && e.liveBox(s) != nil && rec.Quarantine == nil
	t, err := e.capture(ctx, s, &rec, n)
	if err != nil {
		return wire.CommitResult{}, err
	}
	if t.changed {
		changed()
	}
	if next != rec.Mark {
		if err := e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error { r.Mark = next; return nil }); err != nil {
			return wire.CommitResult{}, err
		}
	}
	ev := events.About(&rec, wire.EventMark)
	ev.Snapshot, ev.Message, ev.Detail = string(t.id), message, req.Phase
	e.Feed.Emit(ev)
	return committed(&rec, t), nil
}

// committed returns the answer to a request that captured the present.
func committed(rec *meta.Sandbox, t taken) wire.CommitResult {
	return wire.CommitResult{
		Memory: images.WireMemory(t.memory), StillUS: t.stood.Microseconds(),
		Node: string(t.id), Head: string(rec.Head), Changed: t.changed, Paths: t.stats.Paths, Bytes: t.stats.Bytes,
	}
}
