//go:build linux

package engine

import (
	"context"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grants"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/restore"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// maxForks is how many sandboxes one fork request may make.
const maxForks = 10_000

// Fork makes sandboxes that share every layer with the sandbox. Without a reference it captures the present first. It
// makes all of them or none.
func (e *Engine) Fork(ctx context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error) {
	res, _, err := e.fork(ctx, name, req, nil)
	return res, err
}

// fork is Fork for a purpose of package tournament; nil means none. It also returns the snapshot that the forks start
// from.
func (e *Engine) fork(
	ctx context.Context, name string, req wire.ForkRequest, p *tournament.Purpose,
) (res wire.ForkResult, at timeline.SnapshotID, err error) {
	n := max(req.N, len(req.Names), 1)
	if err := checkFork(ctx, e, name, req, n); err != nil { // before a capture
		return res, at, err
	}
	parent, at, memory, err := e.forkPoint(ctx, name, req)
	if err != nil {
		return res, at, err
	}
	had := parent.Tier
	parent.Quarantine = nil
	if p == nil || !p.Trial { // a trial has the rules of its sandbox, and no others
		parent.Timed = nil
	}
	parent.Unkeyed = false
	if parent.Labels, err = label.Change(parent.Labels, req.Labels, nil); err != nil {
		return res, at, err
	}
	var warnings []string
	if len(req.Policy) > 0 || req.Tier != "" {
		warnings, err = e.Policies.Refork(ctx, &parent, req.Policy, req.Tier, func(p policy.Policy) error {
			_, err := e.chooser.chooseTier(ctx, p, &parent)
			return err
		})
		if err == nil {
			err = ignorable(ctx, e, &parent, at)
		}
		if err != nil {
			return res, at, err
		}
	}
	fresh := memory == nil && !req.SameIdentity
	if fresh {
		if err := identifyForks(ctx, e, &parent, at); err != nil {
			return res, at, err
		}
	}
	parent.Required = e.Boxes.Inherited(parent.Required, had, parent.Tier)
	if memory != nil {
		if err := e.Images.MayKeep(&parent); err != nil { // the forks may have another tier
			return res, at, err
		}
		if err := e.Policies.MayForkMemory(ctx, &parent); err != nil {
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
		if fresh && (len(rec.Foreign) > 0 || rec.Host) {
			if rec.MachineID, err = newMachineID(e.Rand); err != nil {
				return res, at, err
			}
		}
		if i < len(req.Names) {
			rec.Name = req.Names[i]
		} else if rec.Name, err = e.freshName(ctx, rec.ID, taken); err != nil {
			return res, at, err
		}
		taken[rec.Name] = true
		rec.From = parent.Name + "@" + string(at)
		rec.Halted = nil
		rec.Expires = nil // the expiry was asked for the parent only
		rec.Enforced, rec.Redo, rec.Mark, rec.Run, rec.Again, rec.Starting = nil, nil, "", nil, false, false
		devote(ctx, e, &rec, parent.ID, p)
		if firsts[i], err = e.first(ctx, &rec, at, timeline.CauseFork, "fork of "+parent.Name); err != nil {
			return res, at, err
		}
		rec.Head, rec.MountTop, rec.Gen = firsts[i].ID, firsts[i].ID, 1
		if memory != nil {
			firsts[i].Memory = memory
			rec.Quarantine = restore.Quarantine(rec.Created, rec.Head)
			rec.Run = runIn(&parent, memory)
		}
		recs[i] = rec
	}
	err = e.Book.Do(ctx, e.forkDrafts(ctx, &parent, at, imageOf(memory), recs), func(ctx context.Context) error {
		return e.DB.CreateSandboxes(ctx, recs, firsts)
	})
	if err != nil {
		return res, at, err
	}
	res.Sandboxes = make([]wire.Sandbox, n)
	e.Feed.Emit(events.Forked(&parent, at, recs)...)
	lacks := e.Grants.ForkGrants(ctx, &parent, recs, req.Grants)
	if memory != nil {
		e.Restorer.ReleaseForks(ctx, recs)
	}
	for i := range recs {
		res.Sandboxes[i] = e.wire(ctx, &recs[i])
		res.Sandboxes[i].Warnings = slices.Concat(warnings, lacks[i])
	}
	return res, at, nil
}

// devote sets what the record of a fork says about its purpose, if it has one.
func devote(ctx context.Context, e *Engine, rec *meta.Sandbox, of timeline.SandboxID, p *tournament.Purpose) {
	rec.Tournament, rec.Trial = "", nil
	if p == nil {
		return
	}
	rec.Tournament, rec.Trial = p.Tag, &meta.Trial{Of: of, Inside: audit.Inside(ctx)}
	if !p.Trial {
		return
	}
	rec.Labels, rec.Self = nil, wire.SelfOff // so trials are not nested
	if rec.Trial.Inside {
		e.budgets.Share(rec.ID, of)
	}
	if p.Limit > 0 {
		at := e.Now().UTC().Add(p.Limit + trialGrace).Truncate(time.Millisecond)
		rec.Expires = &at
	}
}

// trialGrace is the time after its limit at which a trial's fork expires if it was not removed.
const trialGrace = time.Minute

// checkFork refuses a request for n forks that cannot be carried out.
func checkFork(ctx context.Context, e *Engine, name string, req wire.ForkRequest, n int) error {
	if n > maxForks {
		return fault.New(fault.Invalid, "too many forks: %d; the limit is %d", n, maxForks).
			WithHint("create them in several requests")
	}
	for _, nn := range req.Names {
		if err := timeline.ValidName(nn); err != nil {
			return err
		}
		if err := e.nameFree(ctx, nn); err != nil {
			return err
		}
	}
	if req.Memory && req.SameIdentity {
		return fault.New(fault.Invalid, "a fork with memory is always re-keyed: cannot combine --memory and "+
			"--same-identity").WithHint("omit one of them: coppice fork %s --same-identity", name)
	}
	if err := grants.CheckFork(req.Grants); err != nil {
		return err
	}
	return label.Check(req.Labels)
}

// forkPoint finds the snapshot that forks start from, and with req.Memory the memory of its processes.
func (e *Engine) forkPoint(
	ctx context.Context, name string, req wire.ForkRequest,
) (rec meta.Sandbox, at timeline.SnapshotID, m *timeline.Memory, err error) {
	if req.At != "" {
		rec, h, err := e.Histories.Find(ctx, name)
		if err != nil {
			return rec, "", nil, err
		}
		if at, err = h.Resolve(req.At, e.Now()); err != nil || !req.Memory {
			return rec, at, nil, err
		}
		m, err = e.Images.Resumable(&rec, h.Snapshots[at])
		return rec, at, m, err
	}
	s, rec, err := e.acquire(ctx, name, "forking")
	if err != nil {
		return rec, "", nil, err
	}
	defer s.unlock(e)
	changed, err := e.budgets.MayChange(ctx, &rec)
	if err != nil {
		return rec, "", nil, err
	}
	t, err := e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, message: "before a fork", memory: req.Memory})
	if t.changed {
		changed()
	}
	return rec, rec.Head, t.memory, err
}

// runIn returns the supervised command of a fork whose processes resume, if it is in the image.
func runIn(parent *meta.Sandbox, m *timeline.Memory) *wire.Run {
	if parent.Run == nil || m.Run == "" || parent.Run.Exec != m.Run {
		return nil
	}
	run := *parent.Run
	run.Ended, run.Exit = nil, nil
	return &run
}
