package layer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Glance describes how the parts of a live root differ from an index, as far as stat(2) shows while processes
// keep writing.
type Glance struct {
	// Changed says that a capture would find something.
	Changed bool
	// Oldest and Newest are the times (ctime) of the first and the last change that was seen; they are set
	// with Changed.
	Oldest, Newest time.Time
	// Unsure says that unchanged-looking files were written so shortly before the last capture that only a
	// capture can decide.
	Unsure bool
}

// Glance reports whether there is something to capture. It uses Parts, Index, Plain, Head and TimesAside of in.
// Unlike Capture it may run while processes write: a change that it misses has a ctime after the start of the call.
func (s *Store) Glance(ctx context.Context, in CaptureInput) (g Glance, err error) {
	var unsure atomic.Bool
	w := s.newWalker(ctx, in)
	w.same = func(int, []string, int, string, *ent) bool {
		unsure.Store(true)
		return true
	}
	w.seen = new(span)
	trees, _, err := w.walk(in.Parts, in.Index)
	defer trees.close()
	switch {
	case moved(err):
		now := time.Now()
		return Glance{Changed: true, Oldest: now, Newest: now}, nil
	case err != nil:
		return g, fault.Wrap(err, "look for changes")
	}
	if err := trees.compare(ctx, in.Head); err != nil {
		return g, fault.Wrap(err, "look for changes")
	}
	g.Changed, g.Unsure = !trees.empty() && (!in.TimesAside || !trees.timesAlone()), unsure.Load()
	if g.Changed {
		g.Oldest, g.Newest = w.seen.times()
	}
	return g, nil
}

// moved reports whether err comes from a tree that changed while it was walked.
func moved(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.ESTALE)
}

// span is the time from the first to the last of some changes, in nanoseconds since 1970. A nil span ignores them. It
// may be used by several goroutines.
type span struct {
	mu          sync.Mutex
	first, last int64
}

func (s *span) add(ns int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == 0 || ns < s.first {
		s.first = ns
	}
	s.last = max(s.last, ns)
}

// times returns both ends, or the present time twice if nothing was added.
func (s *span) times() (first, last time.Time) {
	if s.first == 0 {
		now := time.Now()
		return now, now
	}
	return time.Unix(0, s.first), time.Unix(0, s.last)
}
