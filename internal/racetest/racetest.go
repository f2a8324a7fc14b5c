// Package racetest says what tests of other rooms do less of with the race detector, which
// makes them many times as slow.
package racetest

import (
	"math/rand/v2"
	"testing"
)

// Sample says which of the cases numbered from 0 a loop takes: the first, and how far the
// next one is. It takes all of them; with the race detector one of every so many, from a
// random one on.
func Sample(t *testing.T, every int) (first, step int) {
	t.Helper()
	if !Enabled {
		return 0, 1
	}
	first = rand.IntN(every)
	t.Logf("every case %d+%dn", first, every)
	return first, every
}
