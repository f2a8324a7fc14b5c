package scrub

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// Set finds the values of some secrets. It does not change until Wipe; several goroutines may use it. A nil Set finds
// nothing.
//
// It looks at four bytes at every eighth position. Wherever a form begins, one of the positions is in its first eight
// bytes, so a table of the four bytes at each of them tells whether a form may be there; only then are they compared.
type Set struct {
	grants  []string
	forms   []form
	longest int
	filter  filter // the words of places
	places  map[uint32][]place
	begins  filter     // the words with which a form begins
	first   [256][]int // forms by their first byte
}

// filter is a set of words, of which it may have more than were added.
type filter [1 << filterBits / 64]uint64

// place is a position in a form.
type place struct{ form, at int }

const (
	filterBits = 16
	step       = 8
	sample     = 4
)

// NewSet returns a Set that finds all of secrets whose values have at least 12 bytes.
func NewSet(secrets []Secret) *Set {
	s := &Set{places: map[uint32][]place{}}
	for i, secret := range secrets {
		s.grants = append(s.grants, secret.Grant)
		s.forms = append(s.forms, secret.forms(i)...)
	}
	// Of forms that begin at the same byte, the longest is replaced.
	slices.SortStableFunc(s.forms, func(a, b form) int { return len(b.text) - len(a.text) })
	for i, f := range s.forms {
		s.longest = max(s.longest, len(f.text))
		s.first[f.text[0]] = append(s.first[f.text[0]], i)
		s.begins.add(binary.LittleEndian.Uint32(f.text))
		for at := range step {
			w := binary.LittleEndian.Uint32(f.text[at:])
			s.filter.add(w)
			s.places[w] = append(s.places[w], place{i, at})
		}
	}
	if len(s.forms) == 0 {
		return nil
	}
	return s
}

func hash(w uint32) uint32 { return w * 0x9e3779b1 >> (32 - filterBits) }

func (f *filter) add(w uint32) {
	h := hash(w)
	f[h/64] |= 1 << (h % 64)
}

// has returns 1 if f may have w, else 0.
func (f *filter) has(w uint32) uint64 {
	h := hash(w)
	return f[h/64] >> (h % 64) & 1
}

// Wipe overwrites the values, after which s finds nothing. No other method may be in progress, or called later.
func (s *Set) Wipe() {
	if s == nil {
		return
	}
	for _, f := range s.forms {
		clear(f.text)
	}
	clear(s.places)
	s.forms = nil
}

// hit is a form at a position of a text.
type hit struct {
	at   int
	form *form
}

// find returns the first form in b: of those that begin there, the longest.
func (s *Set) find(b []byte) (first hit, found bool) {
	for i := s.skip(b, 0); i >= 0; i = s.skip(b, i+step) {
		if found && i >= first.at+step { // nothing begins earlier
			break
		}
		for _, p := range s.places[binary.LittleEndian.Uint32(b[i:])] {
			f := &s.forms[p.form]
			at := i - p.at
			if at < 0 || !bytes.HasPrefix(b[at:], f.text) {
				continue
			}
			if !found || at < first.at || at == first.at && len(f.text) > len(first.form.text) {
				first, found = hit{at, f}, true
			}
		}
	}
	return first, found
}

// skip returns the next position from i on, in steps, that the filter lets through; -1 is none.
func (s *Set) skip(b []byte, i int) int {
	f := &s.filter
	for ; len(b)-i >= 4*step; i += 4 * step { // several at once, since nearly all are filtered
		c := b[i : i+4*step : i+4*step]
		if f.has(binary.LittleEndian.Uint32(c))|f.has(binary.LittleEndian.Uint32(c[step:]))|
			f.has(binary.LittleEndian.Uint32(c[2*step:]))|f.has(binary.LittleEndian.Uint32(c[3*step:])) != 0 {
			break
		}
	}
	for ; i+sample <= len(b); i += step {
		if f.has(binary.LittleEndian.Uint32(b[i:])) != 0 {
			return i
		}
	}
	return -1
}

// replace replaces the forms in b, and calls told for each. What is before from is not changed. It returns the length
// of the end of b that may begin a longer form, in which it replaces nothing until there is more. If b is the last,
// that end is replaced too, unless it is shorter than any form.
func (s *Set) replace(b []byte, from int, last bool, told func(grant string)) (begun int) {
	if s == nil {
		return 0
	}
	put := func(at, n int, f *form) {
		if begin, end := max(at, from), at+n; begin < end {
			copy(b[begin:end], f.in[begin-at:])
			told(s.grants[f.grant])
		}
	}
	begun, longer := s.begun(b)
	for at := 0; ; {
		h, found := s.find(b[at:])
		if !found || at+h.at >= len(b)-begun {
			break
		}
		put(at+h.at, len(h.form.text), h.form)
		// A replacement may not complete another form with what follows it, so the search goes on behind it.
		if at += h.at + len(h.form.text); at > len(b)-begun {
			begun, longer = s.begun(b[at:])
		}
	}
	if last && begun >= leastForm {
		put(len(b)-begun, begun, longer)
	}
	return begun
}

// begun returns the length of the longest end of b with which a form begins, but which is not all of it, and the form.
func (s *Set) begun(b []byte) (int, *form) {
	for at := max(0, len(b)-s.longest+1); at < len(b); at++ {
		rest := b[at:]
		if len(rest) >= sample && s.begins.has(binary.LittleEndian.Uint32(rest)) == 0 {
			continue
		}
		for _, i := range s.first[rest[0]] {
			if f := &s.forms[i]; len(f.text) > len(rest) && bytes.HasPrefix(f.text, rest) {
				return len(rest), f
			}
		}
	}
	return 0, nil
}
