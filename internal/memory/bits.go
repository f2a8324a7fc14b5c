package memory

import "math/bits"

// pageSet is a set of the pages of a pack.
type pageSet []uint64

func newPageSet(pages uint32) pageSet { return make(pageSet, (pages+63)/64) }

func (s pageSet) has(i uint32) bool { return s[i/64]&(1<<(i%64)) != 0 }

// add adds n pages, starting at first; all must be within the pack.
func (s pageSet) add(first, n uint32) {
	for i := first; i < first+n; i++ {
		s[i/64] |= 1 << (i % 64)
	}
}

func (s pageSet) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// runs calls fn for each stretch of pages below the given number that are in the set, or that are not, in order.
func (s pageSet) runs(pages uint32, in bool, fn func(first, n uint32) error) error {
	for i := uint32(0); i < pages; {
		first := i
		for i < pages && s.has(i) == in {
			i++
		}
		if i > first {
			if err := fn(first, i-first); err != nil {
				return err
			}
		}
		for i < pages && s.has(i) != in {
			i++
		}
	}
	return nil
}
