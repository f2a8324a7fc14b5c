//go:build !linux

package rootspec

import "github.com/coppice-dev/coppice/internal/fault"

// Options configure Mount.
type Options struct{ IDMapFD int }

// Mount returns an error: it requires Linux.
func Mount(Spec, string, Options) error {
	return fault.New(fault.Unsupported, "sandboxes require Linux").
		WithHint("run the daemon on Linux and point COPPICE_HOST at it")
}
