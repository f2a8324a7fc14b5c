//go:build linux

package tournament

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Trial runs a command in a temporary fork of a sandbox. A command that fails is not an error.
func (t *Tournaments) Trial(ctx context.Context, name string, req wire.TrialRequest) (res wire.Trial, err error) {
	switch {
	case strings.TrimSpace(req.Cmd) == "" || strings.ContainsRune(req.Cmd, 0):
		return res, fault.New(fault.Invalid, "invalid test: must not be empty or contain a NUL byte").
			WithHint("for example: coppice ledger compare %s --test \"make test\"", name)
	case req.TimeoutMS < 0 || req.TimeoutMS > limit.Trial.Milliseconds():
		return res, fault.New(fault.Invalid, "invalid timeout %d ms: must be from 0 to 24 hours", req.TimeoutMS).
			WithHint("use a number of milliseconds, or 0 for 24 hours")
	case req.TimeoutMS == 0:
		req.TimeoutMS = limit.Trial.Milliseconds()
	}
	rec, err := t.config.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	return t.try(ctx, &rec, req)
}

// queue is the queue of the trials of one sandbox.
type queue struct {
	slots chan struct{} // holds one value for each trial that runs, or waits for one of Tournaments.trials
	users int           // trials that run or wait; guarded by Tournaments.mu
}

// ofOne returns the maximum number of concurrent trials of one sandbox: it leaves a slot for others if it can.
func (t *Tournaments) ofOne() int { return max(1, min(limit.TrialsOfOne, t.TrialsAtOnce()-1)) }

// join returns the slots of the trials of a sandbox, until the caller calls part.
func (t *Tournaments) join(id timeline.SandboxID) (slots chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[id]
	if q == nil {
		q = &queue{slots: make(chan struct{}, t.ofOne())}
		t.queues[id] = q
	}
	q.users++
	return q.slots
}

// part ends the use of the slots of a sandbox.
func (t *Tournaments) part(id timeline.SandboxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[id]
	if q.users--; q.users == 0 {
		delete(t.queues, id)
	}
}

// try is Trial for a valid request, in a fork of the sandbox of rec. At most TrialsAtOnce run concurrently, and ofOne
// of each sandbox: who may test one sandbox does not keep others waiting.
func (t *Tournaments) try(ctx context.Context, rec *meta.Sandbox, req wire.TrialRequest) (res wire.Trial, err error) {
	own := t.join(rec.ID)
	defer t.part(rec.ID)
	for _, slots := range []chan struct{}{own, t.trials} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return res, fault.New(fault.Cancelled, "the test of sandbox %s was interrupted before it began", rec.Name).
				Because(context.Cause(ctx))
		}
	}
	limit := time.Duration(req.TimeoutMS) * time.Millisecond
	one := wire.TournamentRequest{Base: req.At, Candidates: make([]wire.Candidate, 1)}
	tag, forks, at, err := t.makeForks(ctx, rec, one, Purpose{Trial: true, Limit: limit})
	if err != nil {
		return res, err
	}
	defer t.finish(tag)
	defer func() { err = errors.Join(err, t.scratch(context.WithoutCancel(ctx), forks)) }()
	m := match{t: t, base: at, fork: forks[0], began: t.config.Now(), limit: limit}
	x, _, err := m.run(ctx, req.Cmd, "test: "+req.Cmd)
	if ctx.Err() != nil {
		return res, fault.New(fault.Cancelled, "the test of sandbox %s was interrupted; its fork was removed", rec.Name).
			Because(context.Cause(ctx))
	}
	return wire.Trial{Cmd: req.Cmd, Exit: x.Code, TimeMS: t.config.Now().Sub(m.began).Milliseconds(), TimedOut: x.TimedOut,
		Tail: tail.Lines(strings.Join(m.told, "\n"))}, err
}
