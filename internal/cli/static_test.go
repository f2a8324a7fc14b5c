//go:build !cgo

package cli_test

// static says that the test's binary needs no other file to be started, so that it can be a
// kernel of tier gvisor.
const static = true
