//go:build linux

package tournament

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/tail"
)

// Trial runs a command in a temporary fork of a sandbox. A command that fails is not an error.
func (t *Tournaments) Trial(ctx context.Context, name string, req wire.TrialRequest) (res wire.Trial, err error) {
	switch {
	case strings.TrimSpace(req.Cmd) == "" || strings.ContainsRune(req.Cmd, 0):
		return res, fault.New(fault.Invalid, "invalid test: must not be empty or contain a NUL byte").
			WithHint("for example: coppice ledger compare %s --test \"make test\"", name)
	case req.TimeoutMS < 0:
		return res, fault.New(fault.Invalid, "invalid timeout: must not be negative").WithHint("use a number of " +
			"milliseconds, or 0 for none")
	}
	rec, err := t.config.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	return t.try(ctx, &rec, req)
}

// try is Trial for a valid request, in a fork of the sandbox of rec. At most TrialsAtOnce run concurrently.
func (t *Tournaments) try(ctx context.Context, rec *meta.Sandbox, req wire.TrialRequest) (res wire.Trial, err error) {
	select {
	case t.trials <- struct{}{}:
		defer func() { <-t.trials }()
	case <-ctx.Done():
		return res, fault.New(fault.Cancelled, "the test of sandbox %s was interrupted before it began", rec.Name).
			Because(context.Cause(ctx))
	}
	one := wire.TournamentRequest{Base: req.At, Candidates: make([]wire.Candidate, 1)}
	limit := time.Duration(req.TimeoutMS) * time.Millisecond
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
