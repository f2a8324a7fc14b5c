package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Cursor is a position in a journal, after an event. The zero Cursor is before all events. The reader stores it; it
// stays valid across restarts.
type Cursor struct {
	Inode uint64 `json:"inode"` // of the file
	At    int64  `json:"at"`    // offset in it
	Sum   string `json:"sum"`   // of the bytes before At: inode numbers are reused
}

// sumBytes is the number of bytes before a position that identify it.
const sumBytes = 4 << 10

// From returns the events after a cursor, oldest first, and the cursor after the last of them. lost reports that some
// events in between are no longer kept.
func From(place Place, c Cursor) (evs []wire.NetEvent, next Cursor, lost bool, err error) {
	q, err := Query{}.in(place)
	if err != nil {
		return nil, c, false, err
	}
	dir := place.Dir
	before, now, err := both(dir)
	for _, f := range []*os.File{before, now} {
		if f != nil {
			defer f.Close()
		}
	}
	if err != nil {
		return nil, c, false, fault.Wrap(err, "read the journal in %s", dir)
	}
	next = c
	at, from := int64(0), before
	switch {
	case c == Cursor{}:
	case c.isIn(now):
		at, from = c.At, nil
	case c.isIn(before):
		at = c.At
	default:
		lost = true
	}
	for _, f := range []*os.File{from, now} {
		if f == nil {
			continue
		}
		more, end, err := events(f, at, q)
		if err != nil {
			return nil, c, false, fault.Wrap(err, "read the journal in %s", dir)
		}
		if evs, next, at = append(evs, more...), cursorAt(f, end), 0; next == (Cursor{}) {
			return nil, c, false, fault.New(fault.Internal, "the journal in %s changed while it was read", dir)
		}
	}
	return evs, next, lost, nil
}

// isIn reports whether c is a position in a file, which may be nil.
func (c Cursor) isIn(f *os.File) bool { return f != nil && c == cursorAt(f, c.At) }

// cursorAt returns the position at an offset of a file; the zero Cursor if the file is shorter.
func cursorAt(f *os.File, at int64) Cursor {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || at > st.Size {
		return Cursor{}
	}
	b := make([]byte, min(at, sumBytes))
	if _, err := f.ReadAt(b, at-int64(len(b))); err != nil && len(b) > 0 {
		return Cursor{}
	}
	sum := sha256.Sum256(b)
	return Cursor{st.Ino, at, hex.EncodeToString(sum[:8])}
}
