package looptest

import (
	"math/rand/v2"
	"testing"
)

// Sample returns which of the cases numbered from 0 a loop takes: the first, and the step to the
// next. It takes all of them; with the race detector it takes one in every, from a random one on.
func Sample(t *testing.T, every int) (first, step int) {
	t.Helper()
	if !Race {
		return 0, 1
	}
	first = rand.IntN(every)
	t.Logf("every case %d+%dn", first, every)
	return first, every
}
