package memory

import (
	"encoding/binary"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// reader decodes values from the front of b. After the first value that is missing or too large it is bad, and
// returns zeros.
type reader struct {
	b   []byte
	bad bool
}

// magic reads the 16 bytes that identify the format. The last two are its version.
func (r *reader) magic(want string) error {
	kind := want[:len(want)-2]
	switch got := string(r.take(len(want))); {
	case got == want:
		return nil
	case strings.HasPrefix(got, kind):
		return fault.New(fault.Version, "unknown format %q", got).
			WithHint("use the version of coppice that wrote it, or a later one")
	}
	return fault.New(fault.Corrupt, "must begin with %q", kind)
}

// take returns the next n bytes, which alias b.
func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	p := r.b[:n]
	r.b = r.b[n:]
	return p
}

// array reads a digest.
func (r *reader) array() (d digest) {
	copy(d[:], r.take(len(d)))
	return d
}

// upTo reads an unsigned varint that is at most most.
func (r *reader) upTo(most uint64) int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most {
		r.bad = true
		return 0
	}
	r.take(n)
	return int(v)
}

// signed reads a signed varint.
func (r *reader) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 || v > maxPages || v < -maxPages {
		r.bad = true
		return 0
	}
	r.take(n)
	return v
}
