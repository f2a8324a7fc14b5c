package client

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
)

// Sandbox is one sandbox of a daemon, by its name or id. That there is one is found
// out by the first call.
type Sandbox struct {
	c    *Client
	name string
}

// Sandbox gives a sandbox by its name or id.
func (c *Client) Sandbox(name string) *Sandbox { return &Sandbox{c: c, name: name} }

// New makes a sandbox; see Create. Its warnings are in the second result.
func (c *Client) New(ctx context.Context, req wire.CreateRequest) (*Sandbox, wire.Sandbox, error) {
	made, err := c.Create(ctx, req, nil)
	if err != nil {
		return nil, made, err
	}
	return c.Sandbox(made.ID), made, nil
}

// Name gives the name or id that the sandbox was asked for by.
func (s *Sandbox) Name() string { return s.name }

// Status gives its state.
func (s *Sandbox) Status(ctx context.Context) (wire.StatusResult, error) {
	return s.c.Status(ctx, s.name)
}

// Head gives the snapshot that the present descends from.
func (s *Sandbox) Head(ctx context.Context) (string, error) {
	r, err := s.c.Head(ctx, s.name)
	return r.Head, err
}

// Log gives the history, newest first.
func (s *Sandbox) Log(ctx context.Context) ([]wire.Snapshot, error) {
	r, err := s.c.Log(ctx, s.name)
	return r.Nodes, err
}

// Diff tells what changed from a to b, references both; b "" is the present.
func (s *Sandbox) Diff(ctx context.Context, a, b string) ([]wire.Change, error) {
	r, err := s.c.Diff(ctx, s.name, wire.DiffRequest{A: a, B: b})
	return r.Changes, err
}

// Patch writes the same as unified diffs.
func (s *Sandbox) Patch(ctx context.Context, a, b string, w io.Writer) error {
	return s.c.Patch(ctx, s.name, wire.DiffRequest{A: a, B: b}, w)
}

// Commit takes a snapshot of the present, and gives the old head when nothing had
// changed.
func (s *Sandbox) Commit(ctx context.Context, message string) (snapshot string, err error) {
	r, err := s.c.Commit(ctx, s.name, message)
	return r.Node, err
}

// Tag names a snapshot; ref "" is HEAD.
func (s *Sandbox) Tag(ctx context.Context, tag, ref string) error {
	_, err := s.c.SetTag(ctx, s.name, tag, ref)
	return err
}

// Checkout goes to a snapshot; the present is captured first.
func (s *Sandbox) Checkout(ctx context.Context, ref string) (wire.MoveResult, error) {
	return s.c.Checkout(ctx, s.name, wire.CheckoutRequest{Node: ref})
}

// Undo goes n snapshots back; the present is captured first.
func (s *Sandbox) Undo(ctx context.Context, n int) (wire.MoveResult, error) {
	return s.c.Undo(ctx, s.name, wire.UndoRequest{N: n})
}

// Fork makes n sandboxes that share everything with this one at a reference; "" is
// the present.
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

// Tournament runs candidates in forks, and finds the one that wins.
func (s *Sandbox) Tournament(ctx context.Context, req wire.TournamentRequest) (wire.TournamentResult, error) {
	return s.c.Tournament(ctx, s.name, req, nil)
}

// Start starts it, and its supervised command, where they do not run.
func (s *Sandbox) Start(ctx context.Context) error {
	_, err := s.c.Start(ctx, s.name)
	return err
}

// Stop ends all its processes.
func (s *Sandbox) Stop(ctx context.Context) error {
	_, err := s.c.Stop(ctx, s.name)
	return err
}

// Remove removes it, running or not, and what of its history nobody else needs.
func (s *Sandbox) Remove(ctx context.Context) error { return s.c.Remove(ctx, s.name, true) }
