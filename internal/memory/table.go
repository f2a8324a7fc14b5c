package memory

import "hash/maphash"

// place is the location of a page.
type place struct {
	pack uint32 // as in a run: 1 + index of the pack; own for the pack that is being planned
	page uint32
}

// table finds pages by digest. Its memory is bounded by the number of pages that it is made for: about 45 bytes a
// page.
type table struct {
	// The sandbox chooses the content of its memory, and so the digests. A secret seed prevents it from choosing
	// digests that collide.
	seed    maphash.Seed
	slots   []uint32 // 0: empty; else 1 + index in digests
	digests []digest
	places  []place
}

// newTable makes a table for up to n pages.
func newTable(n int) *table {
	size := 16
	for size < 2*n {
		size *= 2
	}
	return &table{seed: maphash.MakeSeed(), slots: make([]uint32, size), digests: make([]digest, 0, n),
		places: make([]place, 0, n)}
}

// put returns the place of a page, and whether it was known. If not, at becomes its place.
func (t *table) put(d digest, at place) (place, bool) {
	mask := uint64(len(t.slots) - 1)
	for i := maphash.Bytes(t.seed, d[:]) & mask; ; i = (i + 1) & mask {
		switch n := t.slots[i]; {
		case n == 0:
			t.digests, t.places = append(t.digests, d), append(t.places, at)
			t.slots[i] = uint32(len(t.digests))
			return at, false
		case t.digests[n-1] == d:
			return t.places[n-1], true
		}
	}
}
