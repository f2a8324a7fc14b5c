//go:build linux

package engine

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// tournamentConfig returns the configuration of the Tournaments of an engine that has its Book.
func tournamentConfig(e *Engine) tournament.Config {
	return tournament.Config{
		DB: e.DB, Operations: tournamentCore{e}, Book: e.Book, Cleaners: e.cleaners, Feed: e.Feed, Rand: e.Rand,
		Now: e.Now, Log: e.Logger,
	}
}

// tournamentCore adapts the engine to tournament.Operations.
type tournamentCore struct{ e *Engine }

// Fork makes forks that belong to a tournament.
func (c tournamentCore) Fork(
	ctx context.Context, of timeline.SandboxID, req wire.ForkRequest, tag string,
) (res wire.ForkResult, at timeline.SnapshotID, err error) {
	return c.e.fork(ctx, string(of), req, tag)
}

// Exec runs a command in a sandbox.
func (c tournamentCore) Exec(
	ctx context.Context, id string, req wire.ExecRequest, stream io.ReadWriter,
) (wire.Exit, error) {
	return c.e.Commands.Exec(ctx, id, req, stream)
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
