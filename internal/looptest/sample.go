package looptest

import (
	"math/rand/v2"
	"testing"
)

// Sample selects the cases, numbered from 0, that a loop runs: the first, and the step to the next. It selects
// all of them. With the race detector it selects one in every, and with -short one in eight, starting at a random
// one.
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
