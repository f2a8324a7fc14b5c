//go:build linux && (amd64 || arm64)

package box

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/plan"
)

// SetPolicy makes the gate of the box enforce phases. When it returns without an error, connections that they
// do not allow have been cut. Tiers other than supervised and gvisor have no gate: Unsupported.
func (b *Box) SetPolicy(ctx context.Context, phases []plan.Phase) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpPolicy, Phases: phases}, nil))
}

// Net returns the current state of the gate of the box. Tiers other than supervised and gvisor have no gate:
// Unsupported.
func (b *Box) Net(ctx context.Context) (n wire.NetNow, err error) {
	err = anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpNet}, &n))
	return n, err
}
