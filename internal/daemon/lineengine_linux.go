package daemon

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/lineapi"
	"github.com/coppice-dev/coppice/internal/tournament"
)

// adapted adapts the engine to the line protocol.
type adapted struct{ backend }

// derive implements lineEngine.
func (a adapted) derive(purpose string) []byte { return a.store().Derive(purpose) }

// Checkout implements lineapi.Engine.
func (a adapted) Checkout(ctx context.Context, name, ref string, inPlace bool) (wire.MoveResult, error) {
	return a.backend.Checkout(ctx, name, wire.CheckoutRequest{Node: ref, InPlace: inPlace})
}

// TrialInside implements lineapi.Trier.
func (a adapted) TrialInside(
	ctx context.Context, name string, req wire.TrialRequest, by lineapi.Peer,
) (wire.Trial, error) {
	return a.backend.TrialInside(ctx, name, req, tournament.Asker(by))
}

// swept adapts the engine to the API. It removes the socket of a removed sandbox, and gives new sandboxes the
// daemon's defaults.
type swept struct {
	backend
	lines    *lines
	defaults Defaults
}

// Create implements httpapi.Sandboxes.
func (s swept) Create(
	ctx context.Context, req wire.CreateRequest, progress func(wire.Progress),
) (wire.Sandbox, error) {
	return s.backend.Create(ctx, s.defaults.fill(req), progress)
}

// Remove implements httpapi.Sandboxes.
func (s swept) Remove(ctx context.Context, names []string, force bool) ([]string, error) {
	removed, err := s.backend.Remove(ctx, names, force)
	s.lines.sweep()
	return removed, err
}

// RemoveWithLedger implements httpapi.Sandboxes.
func (s swept) RemoveWithLedger(ctx context.Context, name string, force bool) error {
	err := s.backend.RemoveWithLedger(ctx, name, force)
	s.lines.sweep()
	return err
}
