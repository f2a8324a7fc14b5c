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

// SetSecrets replaces the grants of the box, also for commands that start from now on. When it returns without an
// error, requests in progress whose grants are gone or revoked have been cut. Unavailable: they have been cut, too, but
// no request can get a secret. Conflict: the inside does not trust the gate's authority. Unsupported: the tier has no
// gate that inspects HTTPS, or the keeper is of an older version.
func (b *Box) SetSecrets(ctx context.Context, s plan.Secrets) error {
	return anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpSecrets, Secrets: &s}, nil))
}
