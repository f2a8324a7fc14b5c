//go:build linux

package initlink

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Argv0 is the argv[0] with which coppice-init runs as init.
const Argv0 = "coppice-init"

// FD is the descriptor at which a process that the keeper starts as init has its end of the
// link.
const FD = 3

// Ready says that commands can be started, or why not.
type Ready struct {
	Weak []plan.Item `json:"weak,omitempty"` // protections that are weaker than planned
	Err  *wire.Error `json:"err,omitempty"`
}
