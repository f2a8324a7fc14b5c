//go:build race

package looptest

// Race reports whether the race detector is on.
const Race = true
