package redact

import (
	"cmp"
	"slices"
)

// piece is the number of bytes that are read before decided output is written.
const piece = 32 << 10

// Stream redacts one stream of bytes, given in pieces of any size, which do not affect the output. It buffers only
// bytes that may still be part of a secret: the beginning of a searched word, the near bytes of a rule whose key was
// found, and, if there are patterns, a line, of which it searches 2 KiB at a time. A secret without an end is not
// buffered.
//
// It is not safe for concurrent use.
type Stream struct {
	r *Redactor

	buf    []byte // input that was not written yet; the automaton has read all of it
	base   int64  // position of buf in the input
	before int    // byte before base, or -1
	ended  bool   // buf is the end of the input

	state   int32    // of the automaton
	keys    []keyAt  // found keys whose heads were not tried yet
	print   int64    // position of the fingerprint of the last mark in the input
	last    []*span  // last span with a body of each rule
	growing []*span  // spans whose ends are not known
	lines   []lineAt // of each pattern
	token   tokenAt

	cover cover
}

// keyAt is a rule's key in the input.
type keyAt struct {
	at   int64
	rule int
}

// span is a part of the input that is replaced.
type span struct {
	from, to int64
	rank     rank
	size     int // length of the found word: of several values the longest is named
	index    int // index of the rule or pattern
	name     string
	print    string // fingerprint; "": computed from the covered bytes

	grow growth
	open bool // it may grow beyond to
}

// rank decides which of several spans a mark names: the smallest rank.
type rank int

const (
	ofSecret rank = iota
	ofRule
	ofPattern
	ofEntropy
)

// growth is the state of a growing span.
type growth struct {
	body    *class
	most    int64 // maximum end; 0: none
	begin   int64 // position of the body
	ran     int64 // end of the body, as far as it is known
	rule    *machine
	escaped bool // the previous byte was a backslash that takes this byte along
	quote   bool
	stopped bool // the body has ended; a tail may follow
}

// Stream returns a new Stream.
func (r *Redactor) Stream() *Stream {
	return &Stream{
		r: r, before: -1, print: -1,
		last: make([]*span, len(r.rules)), lines: make([]lineAt, len(r.patterns)),
		token: tokenAt{from: -1}, cover: cover{r: r},
	}
}

// Append appends to dst the decided output for the input up to and including src.
func (s *Stream) Append(dst, src []byte) []byte {
	for len(src) > 0 {
		n := min(len(src), piece)
		s.read(src[:n])
		dst = s.release(dst)
		src = src[n:]
	}
	return dst
}

// Finish appends to dst the output for the buffered bytes, at the end of the input. The Stream can be used again.
func (s *Stream) Finish(dst []byte) []byte {
	s.ended = true
	dst = s.release(dst)
	buf := s.buf[:0]
	*s = *s.r.Stream()
	s.buf = buf
	return dst
}

// end returns the position of the end of the known input.
func (s *Stream) end() int64 { return s.base + int64(len(s.buf)) }

// from returns at most n bytes of the input from a position on.
func (s *Stream) from(at int64, n int) []byte {
	b := s.buf[at-s.base:]
	return b[:min(n, len(b))]
}

// at returns the byte at a position, or -1 before the beginning.
func (s *Stream) at(at int64) int {
	if at < s.base {
		return s.before
	}
	return int(s.buf[at-s.base])
}

// read reads a piece of the input, and finds words in it.
func (s *Stream) read(src []byte) {
	at := s.end()
	s.buf = append(s.buf, src...)
	words, state := s.r.words, s.state
	rows, shift := words.rows, words.shift
	for i, b := range src {
		c := words.class[b]
		if state >= words.dense {
			var found bool
			if state, found = words.step(state, c); found {
				s.found(state, at+int64(i)+1)
			}
			continue
		}
		state = rows[int(state)<<shift|int(c)]
		if state < 0 {
			state &^= hit
			s.found(state, at+int64(i)+1)
		}
	}
	s.state = state
}

// found records the words that end at to.
func (s *Stream) found(state int32, to int64) {
	s.r.words.each(state, func(word int32) {
		for _, f := range s.r.finds[word] {
			if f.rule != ofForm {
				s.keys = append(s.keys, keyAt{to - int64(f.size), f.rule})
				continue
			}
			known := s.r.secrets[f.secret]
			sp := &span{from: to - int64(f.size), to: to, rank: ofSecret, size: f.size, name: known.name, print: known.print}
			if before := s.at(sp.from - 1); f.left && before >= 0 && s.r.base64[before] {
				sp.from--
			}
			if f.right {
				sp.grow = growth{body: s.r.base64, begin: to, most: to + 1}
				sp.open = true
			}
			s.add(sp)
		}
	})
}

// add adds a span. Spans may be added in any order.
func (s *Stream) add(sp *span) {
	if sp.open {
		s.grow(sp)
	}
	if sp.open {
		s.growing = append(s.growing, sp)
	}
	if sp.open || sp.to > sp.from {
		s.cover.spans = append(s.cover.spans, sp)
	}
}

// release writes the decided output.
func (s *Stream) release(dst []byte) []byte {
	s.growing = slices.DeleteFunc(s.growing, func(sp *span) bool { s.grow(sp); return !sp.open })
	s.tryKeys()
	for i := range s.lines {
		s.readLines(i)
	}
	if s.r.entropy {
		s.readTokens()
	}
	return s.let(dst, s.decided())
}

// tryKeys tries the heads of rules whose near bytes are known, in the order of the input.
func (s *Stream) tryKeys() {
	slices.SortFunc(s.keys, func(a, b keyAt) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.rule, b.rule))
	})
	s.keys = slices.DeleteFunc(s.keys, func(k keyAt) bool {
		near := nearest
		if k.rule >= 0 {
			near = s.r.rules[k.rule].near
		}
		if !s.ended && s.end() < k.at+int64(near) {
			return false
		}
		if k.rule == ofMark {
			if match := marks().FindIndex(s.from(k.at, near)); match != nil {
				s.print = k.at + int64(match[1]-markTail)
			}
			return true
		}
		s.try(k)
		return true
	})
}

// try tries the head of a rule at its key.
func (s *Stream) try(k keyAt) {
	l := s.r.rules[k.rule]
	m := l.ready()
	if before := s.at(k.at - 1); m.left != nil && before >= 0 && m.left[before] {
		return
	}
	near := s.from(k.at, l.near)
	if !l.worth(near) {
		return
	}
	match := m.head.FindSubmatchIndex(near)
	if match == nil {
		return
	}
	from, to := secret(match)
	if k.at+int64(from) == s.print {
		return // name and fingerprint of a mark look like a key and its value
	}
	sp := &span{from: k.at + int64(from), to: k.at + int64(to), rank: ofRule, index: k.rule, name: l.name}
	if m.body == nil {
		s.add(sp)
		return
	}
	// If the last span of the rule continues here, this one would end with it.
	sp.to = k.at + int64(match[1])
	if last := s.last[k.rule]; last != nil && last.grow.begin <= sp.to && sp.to <= last.grow.ran {
		return
	}
	sp.grow = growth{body: m.body, begin: sp.to, quote: l.quote, rule: &m}
	sp.open = true
	s.last[k.rule] = sp
	s.add(sp)
}

// grow extends a span over the known input.
func (s *Stream) grow(sp *span) {
	g := &sp.grow
	for ; !g.stopped; sp.to++ {
		if g.most > 0 && sp.to == g.most {
			g.stopped = true
			break
		}
		if sp.to == s.end() {
			g.stopped = s.ended
			break
		}
		switch b := s.at(sp.to); {
		case g.escaped:
			g.escaped = false
		case g.quote && b == '\\':
			g.escaped = true
		case !g.body[b]:
			g.stopped = true
		}
		if g.stopped {
			break
		}
	}
	g.ran = sp.to
	if !g.stopped {
		return
	}
	if g.rule == nil || g.rule.tail == nil {
		sp.open = false
		return
	}
	if s.ended || s.end() >= sp.to+nearTail {
		if match := g.rule.tail.FindIndex(s.from(sp.to, nearTail)); match != nil {
			sp.to += int64(match[1])
		}
		sp.open = false
	}
}

// decided returns the position of the first undecided byte.
func (s *Stream) decided() int64 {
	at := s.end()
	if s.ended {
		return at
	}
	at -= int64(s.r.words.depth[s.state])
	if before := s.at(at - 1); before >= 0 && s.r.base64[before] {
		at-- // a form in base64 also takes the byte before it
	}
	for _, k := range s.keys {
		at = min(at, k.at)
	}
	for _, sp := range s.growing {
		if sp.grow.stopped {
			at = min(at, sp.to)
		}
	}
	for _, l := range s.lines {
		at = min(at, l.at)
	}
	if s.token.from >= 0 && !s.token.decided {
		at = min(at, s.token.from)
	}
	return max(at, s.base)
}

// let writes the input up to a position.
func (s *Stream) let(dst []byte, to int64) []byte {
	n := int(to - s.base)
	if n > 0 {
		dst = s.cover.put(dst, s.buf[:n], s.base)
		s.before = int(s.buf[n-1])
		s.buf = s.buf[:copy(s.buf, s.buf[n:])]
		s.base = to
	}
	if s.ended {
		dst = s.cover.end(dst)
	}
	return dst
}
