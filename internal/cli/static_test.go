//go:build !cgo

package cli_test

// static reports whether the test binary is statically linked, so that it can be the kernel of tier gvisor.
const static = true
