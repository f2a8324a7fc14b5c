//go:build linux && (amd64 || arm64)

package box

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/protocol"
)

// Held reports whether no process has run since the freeze, or since the last call: without a control group or a kernel
// of its own, a sandbox can arrange that a stopped process continues. If one has run, Held has stopped all again, and
// Procs and Suspects describe the processes as of now.
func (f *Frozen) Held(ctx context.Context) (bool, error) {
	if !f.loose {
		return true, nil
	}
	if err := wire.WriteFrame(f.conn, protocol.FrameHold, nil); err != nil {
		return false, unavailable(err)
	}
	var r protocol.HeldReply
	if err := reply(ctx, f.conn, &r); err != nil {
		return false, err
	}
	f.procs, f.suspects = r.Procs, suspectsOf(r.FrozenReply)
	return !r.Ran, nil
}
