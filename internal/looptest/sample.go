package looptest

import (
	"math/rand/v2"
	"testing"
)

// Sample returns which of the cases numbered from 0 a loop takes: the first, and the step to the
// next. It takes all of them, but with the race detector one in every, and with -short one in
// eight, each from a random one on.
func Sample(t *testing.T, every int) (first, step int) {
	t.Helper()
	switch {
	case Race:
		step = every
	case testing.Short():
		step = 8
	default:
		return 0, 1
	}
	first = rand.IntN(step)
	t.Logf("every %d cases from %d on", step, first)
	return first, step
}
