package journal

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

// Query selects events. The zero Query selects all.
type Query struct {
	Last  int       // number of newest events; 0: all; negative: none
	Since time.Time // time of the oldest event; zero: all
	Kinds []string  // only these kinds; empty: all
	But   []string  // none of these kinds

	// ByTime orders events by their time. Otherwise they are in the order in which they were appended, which differs:
	// repeated denials are counted for some seconds before they are appended.
	ByTime bool

	key secretbox.Key // what lines are sealed by; see in
}

// in returns the query with the key of a place.
func (q Query) in(at Place) (Query, error) {
	key, err := at.key()
	q.key = key
	return q, fault.Wrap(err, "read the journal in %s", at.Dir)
}

func (q Query) wants(ev *wire.NetEvent) bool {
	return !ev.Time.Before(q.Since) && (len(q.Kinds) == 0 || slices.Contains(q.Kinds, ev.Kind)) &&
		!slices.Contains(q.But, ev.Kind)
}

// Newest returns the state of the newest file of a directory, which changes when an event is appended; nil if there
// is none.
func Newest(dir string) os.FileInfo {
	info, err := os.Lstat(filepath.Join(dir, current))
	if err != nil {
		return nil
	}
	return info
}

// Read returns the selected events of a directory, in the order in which they were appended. A directory
// without a journal has none.
func Read(at Place, q Query) ([]wire.NetEvent, error) {
	q, err := q.in(at)
	if err != nil {
		return nil, err
	}
	evs, f, _, err := read(at.Dir, q)
	if f != nil {
		f.Close()
	}
	return evs, fault.Wrap(err, "read the journal in %s", at.Dir)
}

// read is Read; it also returns the newest file, if there is one, and the offset of the next event in it.
func read(dir string, q Query) (evs []wire.NetEvent, f *os.File, at int64, err error) {
	before, f, err := both(dir)
	if f == nil { // nothing was appended since the other file became full
		before, f = nil, before
	}
	if before != nil {
		defer before.Close()
	}
	if err != nil {
		return nil, f, 0, err
	}
	for _, file := range []*os.File{before, f} {
		if file == nil {
			continue
		}
		more, n, err := events(file, 0, q)
		if err != nil {
			return nil, f, 0, err
		}
		evs, at = append(evs, more...), n
	}
	q.order(evs)
	if n := max(q.Last, 0); q.Last != 0 && len(evs) > n {
		evs = evs[len(evs)-n:]
	}
	return evs, f, at, nil
}

// order sorts events, which are in the order in which they were appended, as q asks.
func (q Query) order(evs []wire.NetEvent) {
	if q.ByTime {
		slices.SortStableFunc(evs, func(a, b wire.NetEvent) int { return a.Time.Compare(b.Time) })
	}
}

// both opens the two files in a consistent state; nil for a missing one.
func both(dir string) (before, now *os.File, err error) {
	lock, err := open(dir, lockName, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // nothing was ever appended
	}
	if err != nil {
		return nil, nil, err
	}
	defer lock.Close() // which unlocks it
	if err := flock(lock, unix.LOCK_SH); err != nil {
		return nil, nil, err
	}
	if before, err = open(dir, previous, os.O_RDONLY); errors.Is(err, fs.ErrNotExist) {
		before, err = nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if now, err = open(dir, current, os.O_RDONLY); errors.Is(err, fs.ErrNotExist) {
		now, err = nil, nil
	}
	return before, now, err
}

// events reads complete lines of a file from an offset on, and returns the offset of the next one. It skips lines
// that are not events.
func events(f *os.File, at int64, q Query) ([]wire.NetEvent, int64, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, at, maxFile+maxLine))
	if err != nil {
		return nil, at, err
	}
	var evs []wire.NetEvent
	for {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !whole {
			return evs, at, nil
		}
		if ev, ok := decode(q.key, line); ok && q.wants(&ev) {
			evs = append(evs, ev)
		}
		at += int64(len(line)) + 1
		b = rest
	}
}
