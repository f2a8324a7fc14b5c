//go:build linux && (amd64 || arm64) && cgo

package escape_test

// gvisorSettings returns none: see TestGvisor of package box for why tier gvisor needs a separate build.
func gvisorSettings() []setting { return nil }
