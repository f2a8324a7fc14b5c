package boxfs

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Watches is shared by all watchers of one sandbox. It has one inotify instance, of which a user usually may have
// 128, and limits how much is watched. The instance exists while there are watchers. One goroutine reads it and
// passes its events to the watchers, and never blocks on one. The zero value is ready to use, without the limit on
// all sandboxes. Its methods are safe for concurrent use.
type Watches struct {
	// All counts the watchers of all sandboxes; if nil, they are not counted.
	All *WatchersOfAll

	mu       sync.Mutex
	watchers map[*watcher]bool         // guarded by mu
	in       *os.File                  // nil without watchers; guarded by mu
	fd       int                       // of in; guarded by mu
	at       map[int]map[*watcher]bool // watchers by watch descriptor; guarded by mu
	read     chan struct{}             // closed when the reader of in has exited; guarded by mu
}

// WatchersOfAll counts the watchers of several Watches.
type WatchersOfAll struct{ n atomic.Int64 }

// join adds w; the caller must call leave afterwards.
func (s *Watches) join(w *watcher) error {
	many := func(n int, of string) error {
		return fault.New(fault.Unavailable, "%d watchers %s are open already", n, of).
			WithHint("close some, or watch a parent directory with recursive=true")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) >= limit.Watchers {
		return many(limit.Watchers, "of this sandbox")
	}
	if s.All != nil && s.All.n.Add(1) > limit.WatchersOfAll {
		s.All.n.Add(-1)
		return many(limit.WatchersOfAll, "of all sandboxes")
	}
	if s.in == nil {
		if err := s.open(); err != nil {
			if s.All != nil {
				s.All.n.Add(-1)
			}
			return err
		}
	}
	s.watchers[w] = true
	return nil
}

// open creates the instance and starts to read it. s.mu is held.
func (s *Watches) open() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fault.New(fault.Unavailable, "create an inotify instance").Because(err).
			WithHint("other programs use all of them; stop some, or raise it: sysctl fs.inotify.max_user_instances=1024")
	}
	s.in, s.fd = os.NewFile(uintptr(fd), "inotify"), fd
	s.watchers, s.at, s.read = map[*watcher]bool{}, map[int]map[*watcher]bool{}, make(chan struct{})
	go s.run(s.in, s.read)
	return nil
}

// leave removes w and its watches. The last watcher closes the instance, and waits until its reader exits.
func (s *Watches) leave(w *watcher) {
	s.mu.Lock()
	for n := range w.at {
		s.drop(w, n)
	}
	delete(s.watchers, w)
	if s.All != nil {
		s.All.n.Add(-1)
	}
	var over chan struct{}
	if len(s.watchers) == 0 {
		s.in.Close()
		s.in, over = nil, s.read
	}
	s.mu.Unlock()
	if over != nil {
		<-over
	}
}

// add watches the file that fd (O_PATH) refers to for w, and returns the watch descriptor.
func (s *Watches) add(w *watcher, fd int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := unix.InotifyAddWatch(s.fd, "/proc/self/fd/"+strconv.Itoa(fd), watched|unix.IN_EXCL_UNLINK)
	if err != nil {
		return 0, err
	}
	if s.at[n] == nil {
		if len(s.at) >= limit.WatchedDirectories {
			_, _ = unix.InotifyRmWatch(s.fd, uint32(n)) // it may be gone already
			return 0, unix.ENOSPC
		}
		s.at[n] = map[*watcher]bool{}
	}
	s.at[n][w] = true
	return n, nil
}

// remove removes one of the watches of w.
func (s *Watches) remove(w *watcher, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(w, n)
}

// drop removes one of the watches of w, and the kernel's watch if no other watcher needs it. s.mu is held.
func (s *Watches) drop(w *watcher, n int) {
	if !s.at[n][w] {
		return // the kernel has removed it
	}
	delete(s.at[n], w)
	if len(s.at[n]) == 0 {
		delete(s.at, n)
		_, _ = unix.InotifyRmWatch(s.fd, uint32(n)) // it may be gone already
	}
}

// run passes on events from in until in is closed.
func (s *Watches) run(in *os.File, read chan struct{}) {
	defer close(read)
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		var list []notice
		if err == nil {
			list, err = notices(buf[:n])
		}
		if err != nil {
			s.fail(in, err)
			return
		}
		s.hand(in, list)
	}
}

// fail ends all watchers with an error, unless the last one closed in.
func (s *Watches) fail(in *os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in != in || errors.Is(err, os.ErrClosed) {
		return
	}
	for w := range s.watchers {
		w.inbox.end(err)
	}
}

// hand passes each notice to its watchers.
func (s *Watches) hand(in *os.File, list []notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in != in {
		return
	}
	for _, n := range list {
		if n.mask&unix.IN_Q_OVERFLOW != 0 {
			for w := range s.watchers {
				w.inbox.put(n)
			}
			continue
		}
		for w := range s.at[n.wd] {
			w.inbox.put(n)
		}
		if n.mask&unix.IN_IGNORED != 0 {
			delete(s.at, n.wd)
		}
	}
}

// inbox has the notices that a watcher has not handled yet, at most limit.WatchQueue. Further ones are lost, and an
// overflow notice after the others reports that. The end of a watch is never lost.
type inbox struct {
	wake chan struct{} // receives when there is something to take

	mu   sync.Mutex
	list []notice // guarded by mu
	lost bool     // guarded by mu: notices were lost since list was full
	err  error    // ends the inbox; guarded by mu
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(n notice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.list) >= limit.WatchQueue && n.mask&unix.IN_IGNORED == 0 {
		b.lost = true
		return
	}
	b.list = append(b.list, n)
	b.rouse()
}

func (b *inbox) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.rouse()
}

// rouse wakes the watcher. b.mu is held.
func (b *inbox) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns all notices, or the error that ended the inbox.
func (b *inbox) take() ([]notice, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.list
	if b.lost {
		list = append(list, notice{wd: -1, mask: unix.IN_Q_OVERFLOW})
	}
	b.list, b.lost = nil, false
	if len(list) > 0 {
		return list, nil
	}
	return nil, b.err
}

// otherHalf is how long a watcher waits for the second half of a move: it follows immediately or never.
const otherHalf = 20 * time.Millisecond
