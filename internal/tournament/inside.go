//go:build linux

package tournament

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/tail"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Asker is the process in a sandbox that asks for a trial, as far as its socket tells.
type Asker struct {
	UID  *uint32 // its user, as this process sees it; nil: unknown
	User bool    // it is known to run as the sandbox's user
}

// Guests are the checks and effects of trials that processes of a sandbox ask for. The engine implements it.
type Guests interface {
	// MayAsk returns an error unless the sandbox is live, neither paused nor quarantined, and the asker runs as its user.
	MayAsk(ctx context.Context, id timeline.SandboxID, who Asker) error
	// Kill kills all processes of a fork. It waits for no other operation on the fork.
	Kill(ctx context.Context, fork string) error
	// Betrayed reports whether the processes of a fork were killed because they touched a honeytoken. What they touched is
	// noted for the parent, and if they were killed, its processes are killed too, as if they had touched it.
	Betrayed(ctx context.Context, fork string, parent *meta.Sandbox) (bool, error)
}

// endedError is the cause with which Tournaments ends a trial.
type endedError struct{ why string }

func (e *endedError) Error() string { return e.why }

// guest is a trial that a process of a sandbox asked for.
type guest struct{ end context.CancelCauseFunc }

// EndTrial ends the trial that a process of a sandbox asked for, if there is one. It does not wait for the end: the
// processes of the fork are killed as soon as possible. why completes "the sandbox ...". It must be called after the
// change that is the reason, so that a trial that does not know of the change has already begun here.
func (t *Tournaments) EndTrial(id timeline.SandboxID, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.guests[id]; g != nil {
		g.end(&endedError{"the sandbox " + why})
	}
}

// enter registers a trial of a sandbox until leave is called, and returns its context. It never waits.
func (t *Tournaments) enter(ctx context.Context, rec *meta.Sandbox) (context.Context, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.guests[rec.ID] != nil {
		return nil, fault.New(fault.Unavailable, "another trial of sandbox %s is running", rec.Name).
			WithHint("wait for its result; a sandbox runs one trial at a time")
	}
	if len(t.guests) >= limit.InsideTrialsAtOnce {
		return nil, fault.New(fault.Unavailable, "too many trials are running: %d", len(t.guests)).
			WithHint("try again in ten seconds, or run the command in this sandbox and rewind if it fails")
	}
	ctx, end := context.WithCancelCause(ctx)
	t.guests[rec.ID] = &guest{end}
	return ctx, nil
}

// leave ends the registration of the trial of a sandbox.
func (t *Tournaments) leave(id timeline.SandboxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.guests[id].end(nil)
	delete(t.guests, id)
}

// TrialInside is Trial for a process of the sandbox, which is not trusted: see docs/design/commands.md. The answer has
// no text of this host. A sandbox has one such trial at a time, and this process limit.InsideTrialsAtOnce.
func (t *Tournaments) TrialInside(
	ctx context.Context, id string, req wire.TrialRequest, who Asker,
) (res wire.Trial, err error) {
	switch {
	case strings.TrimSpace(req.Cmd) == "" || strings.ContainsRune(req.Cmd, 0):
		return res, fault.New(fault.Invalid, "invalid command: must not be empty or contain a NUL byte").
			WithHint("send a shell command")
	case len(req.Cmd) > limit.LineText:
		return res, fault.New(fault.Invalid, "the command is too large: %d bytes; the limit is %d", len(req.Cmd),
			limit.LineText).WithHint("write a script to a file of the sandbox first")
	case req.TimeoutMS < 0: // a longer one than the limit is shortened below
		return res, fault.New(fault.Invalid, "invalid timeout: must not be negative").
			WithHint("use a number of milliseconds")
	}
	if most := limit.InsideTrialTime.Milliseconds(); req.TimeoutMS == 0 || req.TimeoutMS > most {
		req.TimeoutMS = most
	}
	rec, err := t.config.DB.Sandbox(ctx, id)
	if err != nil {
		return res, err
	}
	caller := ctx
	ctx, err = t.enter(ctx, &rec)
	if err != nil {
		return res, err
	}
	defer t.leave(rec.ID)
	res, err = t.tryInside(ctx, &rec, req, who)
	switch why := context.Cause(ctx); {
	case err == nil || why == nil || fault.Is(err, fault.Denied):
		return res, err
	case caller.Err() != nil:
		return res, fault.New(fault.Cancelled, "the trial was ended with its client").Because(why)
	default:
		return res, fault.New(fault.Cancelled, "the trial was ended: %s; its fork was removed", why)
	}
}

// tryInside is TrialInside for a registered request.
func (t *Tournaments) tryInside(
	ctx context.Context, rec *meta.Sandbox, req wire.TrialRequest, who Asker,
) (res wire.Trial, err error) {
	if err := t.config.Guests.MayAsk(ctx, rec.ID, who); err != nil {
		return res, err
	}
	if err := t.config.Budgets.MayTry(ctx, rec); err != nil {
		return res, err
	}
	limit := time.Duration(req.TimeoutMS) * time.Millisecond
	one := wire.TournamentRequest{Base: req.At, Candidates: make([]wire.Candidate, 1)}
	tag, forks, at, err := t.makeForks(ctx, rec, one, Purpose{Trial: true, Limit: limit})
	if err != nil {
		return res, err
	}
	defer t.finish(tag)
	m := match{t: t, base: at, fork: forks[0], began: t.config.Now(), limit: limit, untold: true}
	after := context.WithoutCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = m.kill(after) }) // it is killed again
	x, _, err := m.run(ctx, req.Cmd, "trial: "+req.Cmd)
	stop()
	// Nothing runs in the fork any more when it is decided what may be told.
	kerr := m.kill(after)
	betrayed, berr := t.config.Guests.Betrayed(after, forks[0].ID, rec)
	berr = errors.Join(kerr, berr)
	removed := t.scratch(after, forks)
	ended := ""
	switch {
	case betrayed:
		ended = "a honeytoken was touched in the fork"
	case berr != nil:
		ended = "whether a honeytoken was touched in the fork is unknown"
	case ctx.Err() != nil:
		if ended = context.Cause(ctx).Error(); !errors.As(context.Cause(ctx), new(*endedError)) {
			ended = "its client disconnected"
		}
		err = context.Cause(ctx)
	}
	if ended != "" {
		x.Code = ExitNotRun
	}
	command := t.config.Cleaners.For(after, rec).RecordText(req.Cmd)
	told := t.config.Book.Record(after, rec, audit.Statement{By: format.BySandbox, Body: &format.Trial{
		Command: command, Ended: ended, Exit: int64(x.Code), Fork: forks[0].ID, Snapshot: string(at),
	}})
	if betrayed {
		return res, fault.New(fault.Denied, "the trial was ended")
	}
	if err := errors.Join(berr, removed, told, err); err != nil {
		return res, err
	}
	return wire.Trial{Cmd: req.Cmd, Exit: x.Code, TimeMS: t.config.Now().Sub(m.began).Milliseconds(), TimedOut: x.TimedOut,
		Tail: tail.Lines(strings.Join(m.told, "\n"))}, nil
}

// kill kills the processes of the fork, also those that the command has left behind.
func (m *match) kill(ctx context.Context) error {
	err := m.t.config.Guests.Kill(ctx, m.fork.ID)
	if err != nil {
		m.t.config.Log.Warn("could not stop the fork of a trial; will remove it", "sandbox", m.fork.Name, "err", err)
	}
	return err
}
