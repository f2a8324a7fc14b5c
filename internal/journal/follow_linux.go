package journal

import (
	"context"
	"os"
	"path/filepath"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Follow calls fn with the events of a directory that Read would return, and then with each selected event that is
// appended, until ctx is canceled or fn returns an error, which Follow returns. The first call is with an event
// without a kind: from then on no appended event is missed. If q is ByTime, events that are read at once are ordered,
// but an event may be older than one that was read before. If more events than the journal keeps are appended between
// two reads, the oldest are left out.
func Follow(ctx context.Context, at Place, q Query, fn func(wire.NetEvent) error) error {
	q, err := q.in(at)
	if err != nil {
		return err
	}
	w := newWatch(at.Dir, pollEvery)
	defer w.close()
	return follow(ctx, w, q, fn)
}

// follow is Follow with a watch that was just started.
func follow(ctx context.Context, w *watch, q Query, fn func(wire.NetEvent) error) error {
	dir := w.dir
	evs, f, at, err := read(dir, q)
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	q.Last = 0
	if err == nil {
		err = fn(wire.NetEvent{})
		if err != nil {
			return err
		}
	}
	for {
		if err != nil {
			return fault.Wrap(err, "read the journal in %s", dir)
		}
		for _, ev := range evs {
			if err := fn(ev); err != nil {
				return err
			}
		}
		if w.pause(ctx); ctx.Err() != nil {
			return context.Cause(ctx)
		}
		evs, f, at, err = next(dir, f, at, q)
		q.order(evs)
	}
}

// next returns the events from offset at of file f on, which is or was the newest file. It closes f if another file
// has replaced it. While f is open, its inode number is not reused.
func next(dir string, f *os.File, at int64, q Query) ([]wire.NetEvent, *os.File, int64, error) {
	if f != nil {
		mine, err := f.Stat()
		if err != nil {
			return nil, f, at, err
		}
		if there, err := os.Lstat(filepath.Join(dir, current)); err == nil && os.SameFile(mine, there) {
			evs, at, err := events(f, at, q)
			return evs, f, at, err
		}
	}
	before, now, err := both(dir)
	if before != nil {
		defer before.Close()
	}
	if err != nil || now == nil {
		return nil, f, at, err
	}
	// Events that were appended to f before it was renamed come first, and then all events of the file in between, if
	// there was one.
	var evs []wire.NetEvent
	if f != nil {
		if evs, _, err = events(f, at, q); err != nil {
			now.Close()
			return nil, f, at, err
		}
	}
	if before != nil && !same(f, before) {
		more, _, err := events(before, 0, q)
		if err != nil {
			now.Close()
			return nil, f, at, err
		}
		evs = append(evs, more...)
	}
	if f != nil {
		f.Close()
	}
	more, at, err := events(now, 0, q)
	return append(evs, more...), now, at, err
}

// same reports whether two open files are the same file; f may be nil.
func same(f, g *os.File) bool {
	if f == nil {
		return false
	}
	a, errA := f.Stat()
	b, errB := g.Stat()
	return errA == nil && errB == nil && os.SameFile(a, b)
}
