//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Start starts a sandbox: its supervised command if it has one, whatever its restart policy, or else its box, so that
// commands need not wait for it.
func (e *Engine) Start(ctx context.Context, name string) (wire.StatusResult, error) {
	if err := e.startUp(ctx, name); err != nil {
		return wire.StatusResult{}, err
	}
	return e.Status(ctx, name)
}

func (e *Engine) startUp(ctx context.Context, name string) error {
	s, rec, err := e.acquire(ctx, name, "starting")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	run, halted := e.Commands.Supervised(s.Held)
	if rec.Run == nil || rec.Run.Remove || run != nil && !halted {
		_, err := e.start(ctx, s, &rec)
		return err
	}
	exit, err := e.Commands.StartAgain(ctx, commandHeld{e, s}, &rec)
	if err == nil && exit != nil {
		return cannotStart(&rec, exit)
	}
	return err
}

// cannotStart returns the error for a supervised command that can no longer be run.
func cannotStart(rec *meta.Sandbox, exit *wire.Exit) *fault.Error {
	return fault.New(fault.Conflict, "cannot start the command of sandbox %s again: %s", rec.Name, exit.Message).
		WithHint("start another command: coppice run --in %s --detach -- CMD", rec.Name)
}

// Stop ends all processes of a sandbox and captures their changes.
func (e *Engine) Stop(ctx context.Context, name string) (wire.StopResult, error) {
	return e.stopIf(ctx, name, func(*meta.Sandbox) bool { return true })
}

// stopIf is Stop if still returns true once the lock of the sandbox is held.
func (e *Engine) stopIf(ctx context.Context, name string, still func(*meta.Sandbox) bool) (wire.StopResult, error) {
	s, rec, err := e.acquireToEnd(ctx, e.acquire, name, "stopping", "was stopped", limit.CaptureStopSeconds*time.Second)
	if err != nil {
		return wire.StopResult{}, err
	}
	defer s.unlock(e)
	var res wire.StopResult
	if !still(&rec) {
		return res, nil
	}
	e.Tournaments.EndTrial(rec.ID, "was stopped")
	if b := e.liveBox(s); b != nil {
		if res.Stopped, err = procsInTime(ctx, b); err != nil {
			e.Logger.Warn("could not count the processes of a sandbox before stopping it", "err", err)
			res.Uncounted = true
		}
	}
	e.Commands.Halt(s.Held)
	if err := e.stopBox(ctx, s, stopGrace); err != nil {
		return wire.StopResult{}, err
	}
	_, err = e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, message: "stopped"})
	res.Head = string(rec.Head)
	return res, err
}

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 5 * time.Second
