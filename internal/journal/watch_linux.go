package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pollEvery is the interval between two looks at a journal that cannot be watched, because its directory does not
	// exist yet or the limit of watches is reached.
	pollEvery = 250 * time.Millisecond
	// leastPause is the minimum time between two looks, however often events are appended.
	leastPause = 20 * time.Millisecond
)

// watch detects that events may have been appended to the journal in a directory. It costs nothing while none are. It
// is not safe for concurrent use.
type watch struct {
	dir    string
	every  time.Duration // time between two looks if inotify cannot be used
	in     *os.File      // nil if there is none
	on     bool          // inotify reports changes
	looked time.Time
}

// newWatch starts to watch: anything that is appended from then on ends the next pause. The caller closes it.
func newWatch(dir string, every time.Duration) *watch {
	w := &watch{dir: dir, every: every}
	w.begin()
	return w
}

// begin starts inotify, and reports whether it works.
func (w *watch) begin() bool {
	w.close()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return false
	}
	w.in = os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, w.dir,
		unix.IN_MODIFY|unix.IN_MOVED_TO|unix.IN_MOVE_SELF|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	w.on = err == nil
	return w.on
}

func (w *watch) close() {
	if w.in != nil {
		w.in.Close()
	}
	w.in, w.on = nil, false
}

// pause waits until events may have been appended since the last pause, or ctx is canceled.
func (w *watch) pause(ctx context.Context) {
	switch {
	case w.on:
		w.wait(ctx)
		sleep(ctx, leastPause-time.Since(w.looked))
	case !w.begin():
		sleep(ctx, w.every)
	}
	w.looked = time.Now()
}

// wait waits for inotify. It ends the watch if the directory was removed or renamed.
func (w *watch) wait(ctx context.Context) {
	in := w.in
	stop := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	n, err := in.Read(buf)
	if err != nil {
		w.on = errors.Is(err, os.ErrDeadlineExceeded)
		return
	}
	for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		if binary.NativeEndian.Uint32(b[4:])&(unix.IN_IGNORED|unix.IN_MOVE_SELF) != 0 {
			w.on = false
		}
		b = b[min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
	}
}

// sleep waits for a time, or until ctx is canceled.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
