//go:build !linux || !(amd64 || arm64)

package probe

import (
	"context"
	"runtime"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Probe returns an error: sandboxes need Linux.
func Probe(context.Context, Options) (Report, error) {
	return Report{},
		fault.New(fault.Unsupported, "sandboxes require Linux on amd64 or arm64; this is %s on %s", runtime.GOOS,
			runtime.GOARCH).
			WithHint("run the daemon in a Linux machine and point COPPICE_HOST at it")
}
