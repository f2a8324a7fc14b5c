package client

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
)

// Sandbox is one sandbox of a daemon, by its name or ID. Whether it exists is checked by the first call.
type Sandbox struct {
	c    *Client
	name string
}

// Sandbox returns a handle for a sandbox by its name or ID, without a call to the daemon.
func (c *Client) Sandbox(name string) *Sandbox { return &Sandbox{c: c, name: name} }

// New creates a sandbox; see Create. The second result holds its warnings.
func (c *Client) New(ctx context.Context, req wire.CreateRequest) (*Sandbox, wire.Sandbox, error) {
	made, err := c.Create(ctx, req, nil)
	if err != nil {
		return nil, made, err
	}
	return c.Sandbox(made.ID), made, nil
}

// Name returns the name or ID that the handle was made with.
func (s *Sandbox) Name() string { return s.name }

// Status returns the state of the sandbox.
func (s *Sandbox) Status(ctx context.Context) (wire.StatusResult, error) {
	return s.c.Status(ctx, s.name)
}

// Head returns the snapshot that the live state descends from.
func (s *Sandbox) Head(ctx context.Context) (string, error) {
	r, err := s.c.Head(ctx, s.name)
	return r.Head, err
}

// Log returns the history, newest first.
func (s *Sandbox) Log(ctx context.Context) ([]wire.Snapshot, error) {
	r, err := s.c.Log(ctx, s.name)
	return r.Nodes, err
}

// Diff returns the changes from a to b, both references; b "" is the live state.
func (s *Sandbox) Diff(ctx context.Context, a, b string) ([]wire.Change, error) {
	r, err := s.c.Diff(ctx, s.name, wire.DiffRequest{A: a, B: b})
	return r.Changes, err
}

// Patch writes the changes from a to b to w, as unified diffs.
func (s *Sandbox) Patch(ctx context.Context, a, b string, w io.Writer) error {
	return s.c.Patch(ctx, s.name, wire.DiffRequest{A: a, B: b}, w)
}

// Commit takes a snapshot of the live state. It returns the old head if nothing changed.
func (s *Sandbox) Commit(ctx context.Context, message string) (snapshot string, err error) {
	r, err := s.c.Commit(ctx, s.name, message)
	return r.Node, err
}

// Tag tags a snapshot; ref "" is HEAD.
func (s *Sandbox) Tag(ctx context.Context, tag, ref string) error {
	_, err := s.c.SetTag(ctx, s.name, tag, ref)
	return err
}

// Checkout rewinds to a snapshot, after a capture of the live state.
func (s *Sandbox) Checkout(ctx context.Context, ref string) (wire.MoveResult, error) {
	return s.c.Checkout(ctx, s.name, wire.CheckoutRequest{Node: ref})
}

// Undo rewinds by n snapshots, after a capture of the live state.
func (s *Sandbox) Undo(ctx context.Context, n int) (wire.MoveResult, error) {
	return s.c.Undo(ctx, s.name, wire.UndoRequest{N: n})
}

// Fork creates n sandboxes that start from a snapshot of this one; ref "" is the live state.
func (s *Sandbox) Fork(ctx context.Context, ref string, n int) ([]*Sandbox, error) {
	r, err := s.c.Fork(ctx, s.name, wire.ForkRequest{At: ref, N: n})
	if err != nil {
		return nil, err
	}
	forks := make([]*Sandbox, len(r.Sandboxes))
	for i, f := range r.Sandboxes {
		forks[i] = s.c.Sandbox(f.ID)
	}
	return forks, nil
}

// Tournament runs candidates in forks, and selects the winner.
func (s *Sandbox) Tournament(ctx context.Context, req wire.TournamentRequest) (wire.TournamentResult, error) {
	return s.c.Tournament(ctx, s.name, req, nil)
}

// Start starts the sandbox and its supervised command, unless they run.
func (s *Sandbox) Start(ctx context.Context) error {
	_, err := s.c.Start(ctx, s.name)
	return err
}

// Stop stops all processes of the sandbox.
func (s *Sandbox) Stop(ctx context.Context) error {
	_, err := s.c.Stop(ctx, s.name)
	return err
}

// Remove removes the sandbox, even if it runs, and the parts of its history that no other sandbox uses.
func (s *Sandbox) Remove(ctx context.Context) error { return s.c.Remove(ctx, s.name, true) }
