//go:build linux

package engine

import (
	"context"
	"errors"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// tournamentConfig returns the configuration of the Tournaments of an engine that has its Book.
func tournamentConfig(e *Engine) tournament.Config {
	return tournament.Config{
		DB: e.DB, Operations: tournamentCore{e}, Guests: guestCore{e}, Budgets: e.budgets,
		Book: e.Book, Cleaners: e.cleaners, Feed: e.Feed, Rand: e.Rand,
		Now: e.Now, Log: e.Logger,
	}
}

// tournamentCore adapts the engine to tournament.Operations.
type tournamentCore struct{ e *Engine }

// Fork makes forks for a purpose.
func (c tournamentCore) Fork(
	ctx context.Context, of timeline.SandboxID, req wire.ForkRequest, p tournament.Purpose,
) (res wire.ForkResult, at timeline.SnapshotID, err error) {
	res, at, err = c.e.fork(ctx, string(of), req, &p)
	if err == nil && p.Trial && audit.Inside(ctx) {
		if err := c.shareDecoys(ctx, of, res.Sandboxes); err != nil {
			return res, at, err
		}
	}
	if err == nil && p.Limit > 0 {
		c.e.Lifetimes.WakeExpiry()
	}
	return res, at, err
}

// shareDecoys gives forks the decoys of their parent, or removes the forks.
func (c tournamentCore) shareDecoys(ctx context.Context, of timeline.SandboxID, forks []wire.Sandbox) error {
	parent, err := c.e.DB.Sandbox(ctx, string(of))
	for i := 0; i < len(forks) && err == nil; i++ {
		fork := meta.Sandbox{ID: timeline.SandboxID(forks[i].ID), Name: forks[i].Name}
		err = c.e.Egress.ShareDecoys(&fork, &parent)
	}
	if err != nil {
		for _, f := range forks {
			err = errors.Join(err, c.e.removeOne(context.WithoutCancel(ctx), f.ID, true))
		}
	}
	return err
}

// Keep clears the mark of a fork.
func (c tournamentCore) Keep(ctx context.Context, id timeline.SandboxID) error {
	return c.e.DB.UpdateSandbox(ctx, id, func(r *meta.Sandbox) error { r.Trial = nil; return nil })
}

// Exec runs a command in a sandbox.
func (c tournamentCore) Exec(
	ctx context.Context, id string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	var most command.Evidence
	if audit.Inside(ctx) {
		most = command.Evidence{Output: limit.TrialOutput, Paths: limit.TrialPaths}
	}
	return c.e.Commands.ExecWithin(ctx, id, req, stream, most)
}

// Rekey gives a fork its own identity.
func (c tournamentCore) Rekey(ctx context.Context, id string) error {
	return c.e.Restorer.RekeyWithin(ctx, timeline.SandboxID(id))
}

// Halt kills all processes of a sandbox.
func (c tournamentCore) Halt(ctx context.Context, id string) error {
	s, _, err := c.e.acquire(ctx, id, "stopping a candidate")
	if err != nil {
		return nil // removed, or all forks are about to be
	}
	defer s.unlock(c.e)
	return c.e.stopBox(ctx, s, 0)
}

// Remove removes a sandbox and kills its processes.
func (c tournamentCore) Remove(ctx context.Context, id string) error {
	return c.e.removeOne(ctx, id, true)
}

// Checkout rewinds a sandbox to a snapshot.
func (c tournamentCore) Checkout(ctx context.Context, id timeline.SandboxID, to string) error {
	_, err := c.e.Checkout(ctx, string(id), wire.CheckoutRequest{Node: to})
	return err
}

// Head returns the head of a sandbox.
func (c tournamentCore) Head(ctx context.Context, id timeline.SandboxID) (string, error) {
	head, err := c.e.DB.Head(ctx, string(id))
	return string(head), err
}

// Weigh counts what differs between two snapshots.
func (c tournamentCore) Weigh(
	ctx context.Context, id string, from, to timeline.SnapshotID,
) (paths int, bytes int64, err error) {
	return c.e.Histories.Weigh(ctx, id, from, to)
}

// guestCore adapts the engine to tournament.Guests.
type guestCore struct{ e *Engine }

// MayAsk implements tournament.Guests.
func (c guestCore) MayAsk(ctx context.Context, id timeline.SandboxID, who tournament.Asker) error {
	b, rec, err := liveNow(ctx, c.e, string(id), "starting a trial")
	switch {
	case err != nil:
		return err
	case rec.Trial != nil:
		return fault.New(fault.Denied, "trials cannot be nested")
	case rec.Quarantine != nil:
		return fault.New(fault.Denied, "sandbox %s is quarantined", rec.Name)
	case b == nil:
		return fault.New(fault.Conflict, "sandbox %s is not live", rec.Name)
	}
	if paused, err := b.Paused(ctx); err != nil || paused {
		return fault.New(fault.Conflict, "sandbox %s is paused", rec.Name).Because(err)
	}
	if who.User {
		return nil
	}
	in, err := b.OpenRoot(ctx)
	if err != nil {
		return err
	}
	if in.Dir != nil {
		in.Dir.Close()
	}
	uid, ok := in.User.Outside()
	if err := in.Close(); err != nil {
		return fault.Wrap(err, "identify the user of sandbox %s", rec.Name)
	}
	if !ok || who.UID == nil || *who.UID != uid {
		return fault.New(fault.Denied, "only processes of the sandbox's user may start trials").
			WithHint("run it as user %d of the sandbox; a sandbox of an older version must be stopped and started again",
				in.User.UID)
	}
	return nil
}

// Kill implements tournament.Guests.
func (c guestCore) Kill(ctx context.Context, fork string) error {
	b := c.e.seen(timeline.SandboxID(fork)).box
	if b == nil {
		return nil // not started, or it has ended
	}
	return b.Stop(ctx, 0)
}

// Betrayed implements tournament.Guests.
func (c guestCore) Betrayed(ctx context.Context, fork string, parent *meta.Sandbox) (bool, error) {
	killed, err := c.e.Egress.Attribute(parent.ID, timeline.SandboxID(fork))
	if err != nil || !killed {
		return false, err
	}
	// Its watcher notes why, and captures. It does not start again, since its journal says that it was stopped.
	if b := c.e.seen(parent.ID).box; b != nil {
		err = b.Stop(ctx, 0)
	}
	return true, fault.Wrap(err, "stop sandbox %s, whose trial touched a honeytoken", parent.Name)
}
