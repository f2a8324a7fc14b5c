//go:build linux && (amd64 || arm64)

package box

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/plan"
)

// SetPolicy has the gate of the box keep to phases from now on. When it returns without
// an error, what they do not allow is cut. Boxes of other tiers than supervised have no
// gate, which is Unsupported.
func (b *Box) SetPolicy(ctx context.Context, phases []plan.Phase) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpPolicy, Phases: phases}, nil))
}

// Net tells what the gate of the box is doing. Boxes of other tiers than supervised have
// no gate, which is Unsupported.
func (b *Box) Net(ctx context.Context) (n wire.NetNow, err error) {
	err = anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpNet}, &n))
	return n, err
}
