//go:build linux

package initlink

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Argv0 is the argv[0] with which coppice-init runs as init.
const Argv0 = "coppice-init"

// FD is the descriptor of init's end of the link in a process that the keeper starts as init.
const FD = 3

// Ready reports that commands can be started, or in Err why not.
type Ready struct {
	Weak []plan.Item `json:"weak,omitempty"` // protections that are weaker than planned
	Err  *wire.Error `json:"err,omitempty"`
}
