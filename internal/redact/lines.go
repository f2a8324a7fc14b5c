package redact

import "bytes"

// lineAt is the position of a pattern in the input.
type lineAt struct {
	at   int64 // everything before was searched
	seen int64 // no line ends between at and here
}

// readLines searches with one pattern. A line is searched as a whole; a line longer than window is searched in parts,
// each of which starts where no earlier match can have begun.
func (s *Stream) readLines(i int) {
	l := &s.lines[i]
	for l.at < s.end() {
		l.seen = max(l.seen, l.at)
		part := s.from(l.at, window)
		if n := bytes.IndexByte(part[l.seen-l.at:], '\n'); n >= 0 {
			n += int(l.seen - l.at)
			s.search(i, part[:n], n)
			l.at += int64(n) + 1
			continue
		}
		switch l.seen = l.at + int64(len(part)); {
		case len(part) == window:
			l.at += int64(s.search(i, part, MaxMatch))
		case s.ended:
			l.at += int64(s.search(i, part, len(part)))
		default:
			return
		}
	}
}

// search finds the matches that begin in the first bytes of part, and returns how many bytes are searched.
func (s *Stream) search(i int, part []byte, first int) (done int) {
	done = first
	p, at := s.r.patterns[i], s.lines[i].at
	if !bytes.Contains(part, p.has) {
		return done
	}
	for _, match := range p.re.FindAllSubmatchIndex(part, -1) {
		if match[0] >= first {
			break
		}
		from, to := secret(match)
		s.add(&span{from: at + int64(from), to: at + int64(to), rank: ofPattern, index: i, name: p.name})
		done = max(done, match[1])
	}
	return done
}
