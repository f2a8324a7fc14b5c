package daemon

import (
	"context"
	"log/slog"

	"github.com/coppice-dev/coppice/internal/fault"
)

// engineConfig is what newEngine gets.
type engineConfig struct {
	Home             string // absolute, 0700, locked
	RealUID, RealGID int    // outside the daemon's user namespace; -1 when it has none
	Log              *slog.Logger
}

// newEngine wires the rooms below into an engine.
func newEngine(context.Context, engineConfig) (backend, error) {
	return nil, fault.New(fault.Unsupported, "this build has no engine")
}
