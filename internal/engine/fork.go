//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// maxForks is how many sandboxes one fork may make.
const maxForks = 10_000

// Fork makes sandboxes that share every layer with this one. Without a
// reference the present is captured first. Either all are made or none.
func (e *Engine) Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error) {
	res, _, err := e.fork(ctx, name, req, "")
	return res, err
}

// fork is Fork for the candidates of a tournament, or for "" none. It gives the
// snapshot that the forks begin at.
func (e *Engine) fork(ctx context.Context, name string, req wire.ForkRequest, tournament string) (res wire.ForkResult, at timeline.SnapshotID, err error) {
	n := max(req.N, len(req.Names))
	if n == 0 {
		n = 1
	}
	if n > maxForks {
		return res, at, fault.New(fault.Invalid, "%d forks at once: the limit is %d", n, maxForks).WithHint("make them in parts")
	}
	for _, nn := range req.Names {
		if err := timeline.ValidName(nn); err != nil {
			return res, at, err
		}
		if err := e.nameFree(ctx, nn); err != nil {
			return res, at, err
		}
	}
	parent, at, err := e.forkPoint(ctx, name, req.At)
	if err != nil {
		return res, at, err
	}
	parent.Timed = nil
	var warnings []string
	if len(req.Policy) > 0 || req.Tier != "" {
		if warnings, err = e.repolicy(ctx, &parent, req.Policy, req.Tier); err != nil {
			return res, at, err
		}
	}
	taken := make(map[string]bool, n)
	for _, nn := range req.Names {
		taken[nn] = true
	}
	recs := make([]meta.Sandbox, n)
	firsts := make([]timeline.Snapshot, n)
	for i := range recs {
		rec := parent
		if rec.ID, err = timeline.NewSandboxID(e.Rand); err != nil {
			return res, at, err
		}
		if i < len(req.Names) {
			rec.Name = req.Names[i]
		} else if rec.Name, err = e.freshName(ctx, rec.ID, taken); err != nil {
			return res, at, err
		}
		taken[rec.Name] = true
		rec.Created = e.Now().UTC().Truncate(time.Microsecond)
		rec.From = parent.Name + "@" + string(at)
		rec.Halted = nil
		rec.Expires = nil // it was the parent that was given so long
		rec.Enforced, rec.Redo, rec.Mark, rec.Run, rec.Again, rec.Starting, rec.Tournament = nil, nil, "", nil, false, false, tournament
		if firsts[i], err = e.first(ctx, &rec, at, timeline.CauseFork, "fork of "+parent.Name); err != nil {
			return res, at, err
		}
		rec.Head, rec.MountTop, rec.Gen = firsts[i].ID, firsts[i].ID, 1
		recs[i] = rec
	}
	done, err := e.undertake(ctx, e.forkDrafts(ctx, &parent, at, recs))
	if err != nil {
		return res, at, err
	}
	err = e.DB.CreateSandboxes(ctx, recs, firsts)
	done(err)
	if err != nil {
		return res, at, err
	}
	res.Sandboxes = make([]wire.Sandbox, n)
	e.forked(&parent, at, recs)
	for i := range recs {
		res.Sandboxes[i] = e.wire(ctx, &recs[i])
		res.Sandboxes[i].Warnings = warnings
	}
	return res, at, nil
}

// forkPoint finds the snapshot that forks begin at.
func (e *Engine) forkPoint(ctx context.Context, name, ref string) (meta.Sandbox, timeline.SnapshotID, error) {
	if ref != "" {
		rec, h, err := e.find(ctx, name)
		if err != nil {
			return rec, "", err
		}
		id, err := h.Resolve(ref, e.Now())
		return rec, id, err
	}
	s, rec, err := e.acquire(ctx, name, "forking")
	if err != nil {
		return rec, "", err
	}
	defer s.unlock(e)
	_, err = e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, message: "before a fork"})
	return rec, rec.Head, err
}
