package boxfs

import (
	"context"
	"encoding/binary"
	"errors"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

const watched = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// Watch calls yield with changes of the files in the directory at p, or of the file at p, until ctx ends, yield
// returns an error, or the watched file or directory is removed. With recursive, it also reports changes in the
// directories below, including new ones. The first event has no kind: no later change is missed. If too many changes
// happen at once, yield takes too long, or there are more directories than Limits.Watches, an overflow event reports
// it. It fails with Unavailable beyond limit.Watchers of one sandbox, or limit.WatchersOfAll. Only links in p are
// followed.
func (r *Root) Watch(ctx context.Context, p string, recursive bool, yield func(wire.FileEvent) error) error {
	if err := r.valid(p); err != nil {
		return err
	}
	w := &watcher{r: r, ctx: ctx, recursive: recursive, yield: yield, inbox: newInbox(), at: map[int]string{}}
	if err := r.watches.join(w); err != nil {
		return fault.Wrap(err, "watch %q", p)
	}
	defer r.watches.leave(w)
	err := r.actor.act(func() error { return w.begin(p) })
	if err == nil {
		if err = yield(wire.FileEvent{}); err == nil {
			err = w.run()
		}
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errIs(err, "watch %q", p)
}

// watcher is one call of Watch.
type watcher struct {
	r         *Root
	ctx       context.Context
	recursive bool
	yield     func(wire.FileEvent) error
	inbox     *inbox

	base string         // path of the watched file or directory
	at   map[int]string // paths of the watched files, by watch descriptor
	full bool           // an event has reported that there are too many directories

	moved *half // the source of a move whose target is not known yet
}

// half is the first half of a move: IN_MOVED_FROM.
type half struct {
	cookie uint32
	path   string
	dir    bool
}

var errOver = errors.New("the watched file or directory was removed")

// begin adds the first watches.
func (w *watcher) begin(p string) error {
	fd, err := w.r.open(p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := w.r.admit(fd); err != nil {
		return err
	}
	base := strings.Trim(p, "/")
	if base == "." {
		base = ""
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if !dirfd.IsDir(&st) && !dirfd.IsRegular(&st) {
		return notRegular(&st)
	}
	w.base = base
	if err := w.add(fd, base); err != nil {
		return err
	}
	if !w.recursive || !dirfd.IsDir(&st) {
		return nil
	}
	return w.below(p, base, false)
}

// add watches the file that fd, opened with O_PATH, refers to.
func (w *watcher) add(fd int, at string) error {
	if len(w.at) >= w.r.limits.Watches || len(at) > limit.WatchPath {
		return unix.ENOSPC
	}
	n, err := w.r.watches.add(w, fd)
	if err != nil {
		return err
	}
	w.at[n] = at
	return nil
}

// below watches the directories below p. With tell it also reports everything in them, because their creation may
// have been missed.
func (w *watcher) below(p, base string, tell bool) error {
	d, err := w.r.start(p)
	if err != nil {
		return err
	}
	defer d.close()
	return w.r.walk(w.ctx, d, maxNames, func(d *dir, name string, st *unix.Stat_t) (bool, error) {
		at := join(base, d.at(name))
		if tell && !strings.HasPrefix(name, scratch) {
			if err := w.tell(wire.FileCreated, at, dirfd.IsDir(st)); err != nil {
				return false, err
			}
		}
		if !dirfd.IsDir(st) {
			return false, nil
		}
		return w.addIn(d, name, at)
	})
}

// addIn watches a directory in d. It reports only once that there are too many.
func (w *watcher) addIn(d *dir, name, at string) (bool, error) {
	s, err := w.r.sub(d, name)
	if err != nil {
		return false, nil // removed, not readable, or of the kernel: not watched
	}
	defer s.close()
	switch err := w.add(s.fd, at); {
	case errors.Is(err, unix.ENOSPC):
		if w.full {
			return false, nil
		}
		w.full = true
		return false, w.yield(wire.NewFileEvent(wire.FileOverflow, at))
	case err != nil:
		return false, nil // as above
	}
	return true, nil
}

func join(base, name string) string {
	if base == "" {
		return name
	}
	return base + "/" + name
}

func (w *watcher) tell(kind, at string, dir bool) error {
	e := wire.NewFileEvent(kind, at)
	e.Dir = dir
	return w.yield(e)
}

// run handles notices until the inbox ends.
func (w *watcher) run() error {
	for {
		list, err := w.inbox.take()
		if err != nil {
			return err
		}
		for _, n := range list {
			if err := w.event(n); errors.Is(err, errOver) {
				return nil
			} else if err != nil {
				return err
			}
		}
		if len(list) == 0 {
			if err := w.wait(); err != nil {
				return err
			}
		}
	}
}

// wait returns when a notice has arrived, or when the moved file cannot be in a watched directory any more.
func (w *watcher) wait() error {
	var late <-chan time.Time
	if w.moved != nil {
		t := time.NewTimer(otherHalf)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-w.inbox.wake:
		return nil
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	case <-late:
		return w.movedAway()
	}
}

// notice is one event of inotify(7).
type notice struct {
	wd     int
	mask   uint32
	cookie uint32
	name   string
}

// notices parses the result of a read from inotify.
func notices(b []byte) ([]notice, error) {
	var out []notice
	for len(b) > 0 {
		if len(b) < unix.SizeofInotifyEvent {
			return nil, unix.EIO
		}
		size := uint64(unix.SizeofInotifyEvent) + uint64(binary.NativeEndian.Uint32(b[12:]))
		if size > uint64(len(b)) {
			return nil, unix.EIO
		}
		name, _, _ := strings.Cut(string(b[unix.SizeofInotifyEvent:size]), "\x00")
		out = append(out,
			notice{int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:]),
				binary.NativeEndian.Uint32(b[8:]), name})
		b = b[size:]
	}
	return out, nil
}

func (w *watcher) event(n notice) error {
	if w.moved != nil && (n.mask&unix.IN_MOVED_TO == 0 || n.cookie != w.moved.cookie) {
		if err := w.movedAway(); err != nil {
			return err
		}
	}
	if n.mask&unix.IN_Q_OVERFLOW != 0 {
		return w.yield(wire.FileEvent{Kind: wire.FileOverflow})
	}
	base, known := w.at[n.wd]
	if n.mask&unix.IN_IGNORED != 0 {
		delete(w.at, n.wd)
		if len(w.at) == 0 {
			return errOver
		}
		return nil
	}
	if !known {
		return nil
	}
	dir := n.mask&unix.IN_ISDIR != 0
	if n.name == "" {
		return w.self(n, base, dir)
	}
	at := join(base, n.name)
	hidden := strings.HasPrefix(n.name, scratch)
	switch {
	case n.mask&unix.IN_MOVED_FROM != 0:
		w.moved = &half{n.cookie, at, dir}
		return nil
	case n.mask&unix.IN_MOVED_TO != 0:
		return w.movedTo(at, dir)
	case hidden:
		return nil
	case n.mask&unix.IN_CREATE != 0:
		if err := w.tell(wire.FileCreated, at, dir); err != nil || !dir || !w.recursive {
			return err
		}
		return w.grow(at)
	case n.mask&unix.IN_DELETE != 0:
		return w.tell(wire.FileRemoved, at, dir)
	case n.mask&unix.IN_CLOSE_WRITE != 0:
		return w.tell(wire.FileWritten, at, dir)
	case n.mask&unix.IN_ATTRIB != 0 && !nameless(n.name):
		return w.tell(wire.FileAttributes, at, dir)
	}
	return nil
}

// nameless reports whether name is the one that the kernel reports for an O_TMPFILE file without a name.
func nameless(name string) bool {
	digits, ok := strings.CutPrefix(name, "#")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// self reports changes of the watched directory or file itself. For others than the base, the parent's watch reports
// them.
func (w *watcher) self(n notice, base string, dir bool) error {
	switch {
	case n.mask&unix.IN_MOVE_SELF != 0 && base == w.base:
		return errOver // its new path is unknown
	case n.mask&unix.IN_CLOSE_WRITE != 0:
		return w.tell(wire.FileWritten, base, dir)
	case n.mask&unix.IN_ATTRIB != 0 && !dir:
		return w.tell(wire.FileAttributes, base, dir)
	}
	return nil
}

// grow watches a new directory.
func (w *watcher) grow(at string) error {
	return w.r.actor.act(func() error {
		dirAt, name, err := splitPath(at)
		if err != nil {
			return err
		}
		d, err := w.r.start("/" + dirAt)
		if err != nil {
			return nil // removed meanwhile
		}
		defer d.close()
		ok, err := w.addIn(d, name, at)
		if err != nil || !ok {
			return err
		}
		if err = w.below("/"+at, at, true); gone(err) || errors.Is(err, unix.EACCES) {
			return nil
		}
		return err
	})
}

// movedAway reports a move to a directory that is not watched.
func (w *watcher) movedAway() error {
	m := w.moved
	w.moved = nil
	if m.dir {
		w.forget(m.path)
	}
	if strings.HasPrefix(path.Base(m.path), scratch) {
		return nil
	}
	return w.tell(wire.FileRemoved, m.path, m.dir)
}

func (w *watcher) movedTo(at string, dir bool) error {
	from := w.moved
	w.moved = nil
	switch {
	case from == nil:
		if err := w.tell(wire.FileCreated, at, dir); err != nil || !dir || !w.recursive {
			return err
		}
		return w.grow(at)
	case strings.HasPrefix(path.Base(from.path), scratch):
		return w.tell(wire.FileWritten, at, dir)
	}
	if dir {
		w.rename(from.path, at)
	}
	e := wire.NewFileEvent(wire.FileMoved, at)
	e.SetFrom(from.path)
	e.Dir = dir
	return w.yield(e)
}

// rename updates the paths of the watches at and below a directory.
func (w *watcher) rename(from, to string) {
	for n, at := range w.at {
		if at == from || strings.HasPrefix(at, from+"/") {
			w.at[n] = to + at[len(from):]
		}
	}
}

// forget removes the watches at and below a directory.
func (w *watcher) forget(p string) {
	for n, at := range w.at {
		if at == p || strings.HasPrefix(at, p+"/") {
			w.r.watches.remove(w, n)
			delete(w.at, n)
		}
	}
}
