//go:build cgo

package cli_test

// static reports whether the test binary is statically linked.
const static = false
