//go:build linux

package engine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// Trial runs a command in a fork of a sandbox, which is removed then, as the forks of a
// tournament are that does not end. How the command ends is no error.
func (e *Engine) Trial(ctx context.Context, name string, req wire.TrialRequest) (res wire.Trial, err error) {
	switch {
	case strings.TrimSpace(req.Cmd) == "" || strings.ContainsRune(req.Cmd, 0):
		return res, fault.New(fault.Invalid, "a trial without a command, or one with a zero byte").
			WithHint("as in: coppice compare %s --test \"make test\"", name)
	case req.TimeoutMS < 0:
		return res, fault.New(fault.Invalid, "a negative timeout").WithHint("give a number of milliseconds, or 0 for none")
	}
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	return e.trial(ctx, &rec, req)
}

// trial is Trial of what was checked. So many run at once as candidates of a tournament.
func (e *Engine) trial(ctx context.Context, rec *meta.Sandbox, req wire.TrialRequest) (res wire.Trial, err error) {
	select {
	case e.trials <- struct{}{}:
		defer func() { <-e.trials }()
	case <-ctx.Done():
		return res, context.Cause(ctx)
	}
	tag, forks, at, err := e.draw(ctx, rec, wire.TournamentRequest{Base: req.At, Candidates: make([]wire.Candidate, 1)})
	if err != nil {
		return res, err
	}
	defer e.playing.drop(tag)
	defer func() { err = errors.Join(err, e.scratch(context.WithoutCancel(ctx), forks)) }()
	m := match{e: e, base: at, fork: forks[0], began: e.Now(), limit: time.Duration(req.TimeoutMS) * time.Millisecond}
	x, _, err := m.run(ctx, req.Cmd, "test: "+req.Cmd)
	if ctx.Err() != nil {
		return res, fault.New(fault.Cancelled, "the test of sandbox %s was broken off; its fork is removed", rec.Name).
			Because(context.Cause(ctx))
	}
	return wire.Trial{Cmd: req.Cmd, Exit: x.Code, TimeMS: e.Now().Sub(m.began).Milliseconds(), TimedOut: x.TimedOut,
		Tail: end(strings.Join(m.told, "\n"))}, err
}
