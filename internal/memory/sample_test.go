package memory

import (
	"math/rand/v2"
	"testing"
)

// sample says which of the cases numbered from 0 a loop takes: the first, and how far the
// next one is. It takes all of them; with the race detector, which makes each many times as
// slow, every eleventh, from a random one on.
func sample(t *testing.T) (first, step int) {
	t.Helper()
	if !raceDetector {
		return 0, 1
	}
	step = 11
	first = rand.IntN(step)
	t.Logf("every case %d+%dn", first, step)
	return first, step
}
