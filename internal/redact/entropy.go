package redact

import "math"

const (
	entropyName = "random"

	minToken = 20  // bytes of a token that is looked at
	maxToken = 128 // of its beginning, by which it is judged
	minBits  = 3.5 // of entropy for each byte: hexadecimal has 4 at most, English about 4.1 with its spaces
)

// tokenAt is a token that is being read.
type tokenAt struct {
	read    int64 // all before was looked at
	from    int64 // where the token begins, or -1
	decided bool
}

// readTokens finds tokens that look random. A token is judged when it has ended, or by its beginning.
func (s *Stream) readTokens() {
	t := &s.token
	for t.read = max(t.read, s.base); t.read < s.end(); t.read++ {
		switch in := s.r.token[s.at(t.read)]; {
		case in && t.from < 0:
			t.from, t.decided = t.read, false
		case in && !t.decided && t.read-t.from == maxToken:
			s.judge()
		case !in && t.from >= 0:
			s.judge()
			t.from = -1
		}
	}
	if s.ended && t.from >= 0 {
		s.judge()
	}
}

// judge decides on the token that ends, or is long enough, at the end of what was read.
func (s *Stream) judge() {
	t := &s.token
	if t.decided {
		return
	}
	t.decided = true
	if random(s.from(t.from, int(t.read-t.from))) {
		s.add(&span{from: t.from, to: t.read, rank: ofEntropy, name: entropyName, open: true,
			grow: growth{body: s.r.token, begin: t.read}})
	}
}

// random reports whether a token looks machine-made: it has letters and digits, and many different ones.
func random(token []byte) bool {
	var counts [256]int
	var letters, digits bool
	for _, b := range token {
		counts[b]++
		digits = digits || '0' <= b && b <= '9'
		letters = letters || 'a' <= lower(b) && lower(b) <= 'z'
	}
	if len(token) < minToken || !letters || !digits {
		return false
	}
	bits := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(token))
			bits -= p * math.Log2(p)
		}
	}
	return bits >= minBits
}
