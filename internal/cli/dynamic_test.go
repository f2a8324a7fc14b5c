//go:build cgo

package cli_test

// static says that the test's binary needs no other file to be started.
const static = false
