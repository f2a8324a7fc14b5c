package redact

import "math"

const (
	entropyName = "random"

	minToken = 20  // minimum length of a token, in bytes
	maxToken = 128 // length of the prefix by which a longer token is judged
	minBits  = 3.5 // minimum entropy of a byte: hexadecimal has at most 4 bits, English with its spaces about 4.1
)

// tokenAt is the state of reading tokens.
type tokenAt struct {
	read    int64 // everything before was read
	from    int64 // begin of the current token, or -1
	decided bool
}

// readTokens finds tokens that look random. A token is judged at its end, or by its first maxToken bytes.
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

// judge decides about the current token, of which the bytes before t.read are judged.
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

// random reports whether a token looks machine-made: it has letters and digits, and enough entropy.
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
