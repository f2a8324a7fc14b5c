//go:build linux && (amd64 || arm64) && cgo

package escape_test

// gvisorSettings are none: see TestGvisor of package box for why tier gvisor has a build of
// its own.
func gvisorSettings() []setting { return nil }
