package repo

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// treeWriter executes the plan of a checkout. Only files are written concurrently.
type treeWriter struct {
	c     Checkout
	top   *os.File
	times []unix.Timespec
	total int64
	done  atomic.Int64
	mu    sync.Mutex // held while Progress is called
}

func newTreeWriter(c Checkout, t time.Time, total int64) (*treeWriter, error) {
	top, err := c.To.Open(".")
	if err != nil {
		return nil, err
	}
	ts := unix.Timespec{Sec: t.Unix()}
	return &treeWriter{c: c, top: top, times: []unix.Timespec{ts, ts}, total: total}, nil
}

func (w *treeWriter) close() { w.top.Close() }

func (w *treeWriter) fd() int { return int(w.top.Fd()) }

// shape makes the directories, and reports hidden and removed paths to the layer.
func (w *treeWriter) shape(ctx context.Context, p treePlan) error {
	for _, d := range p.dirs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := unix.Mkdirat(w.fd(), d, 0o755); err != nil {
			return fault.Wrap(err, "create directory %q", d)
		}
	}
	for _, d := range p.hidden {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.c.Hide(d); err != nil {
			return err
		}
	}
	for _, d := range p.gone {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.c.Remove(d); err != nil {
			return err
		}
	}
	return nil
}

// finish sets the mode and time of the directories, after everything in them is written.
func (w *treeWriter) finish(ctx context.Context, p treePlan) error {
	for _, d := range p.dirs {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := unix.Fchmodat(w.fd(), d, 0o755, 0); err != nil {
			return fault.Wrap(err, "set the mode of %q", d)
		}
		if err := unix.UtimesNanoAt(w.fd(), d, w.times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fault.Wrap(err, "set the time of %q", d)
		}
	}
	if w.c.Progress != nil {
		w.c.Progress(w.total, w.total)
	}
	return nil
}

const (
	maxHands  = 4       // maximum number of goroutines, each with its own git process
	leastHand = 1 << 10 // minimum number of files per goroutine
	mostHand  = 1 << 14 // maximum number of files per git process: large ones may be adjacent
)

// writeFiles writes files and links.
func (r *Repo) writeFiles(ctx context.Context, w *treeWriter, files []*treeChange) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hands := max(1, min(maxHands, runtime.GOMAXPROCS(0), len(files)/leastHand))
	each := max(1, min(mostHand, (len(files)+hands-1)/hands))
	var next atomic.Int64
	var all sync.WaitGroup
	for range hands {
		all.Go(func() {
			for {
				from := int(next.Add(int64(each))) - each
				if from >= len(files) {
					return
				}
				if err := r.writeSome(ctx, w, files[from:min(from+each, len(files))]); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// writeSome writes the files whose contents one git process prints.
func (r *Repo) writeSome(ctx context.Context, w *treeWriter, files []*treeChange) error {
	var want strings.Builder
	want.Grow(len(files) * (r.Format.digits() + 1))
	for _, f := range files {
		want.WriteString(string(f.id) + "\n")
	}
	pr, pw := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := r.user(ctx,
			call{args: []string{"cat-file", "--buffer", "--batch"}, stdin: strings.NewReader(want.String()), stdout: pw,
				most: math.MaxInt64})
		pw.CloseWithError(err)
	}()
	h := &hand{w: w, in: bufio.NewReaderSize(pr, 128<<10), dir: -1}
	err := h.all(files)
	pr.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	<-ended
	return err
}

// hand writes files one at a time.
type hand struct {
	w   *treeWriter
	in  *bufio.Reader // output of `git cat-file --batch`
	buf []byte
	dir int    // descriptor of the open directory, or -1
	at  string // its path
}

func (h *hand) all(files []*treeChange) error {
	defer h.leave()
	for _, f := range files {
		size, err := h.header(f)
		if err == nil {
			err = h.enter(path.Dir(f.path))
		}
		if err == nil {
			err = h.write(f, size)
		}
		if errors.Is(err, unix.EEXIST) {
			err = fault.New(fault.Invalid, "duplicate path in the commit")
		}
		if err != nil {
			return fault.Wrap(err, "write %q", clip(f.path))
		}
		if _, err := h.in.Discard(1); err != nil {
			return unexpected(err)
		}
		h.w.tell()
	}
	return nil
}

// tell reports progress, about a hundred times.
func (w *treeWriter) tell() {
	n := w.done.Add(1)
	if w.c.Progress == nil || n%max(1, w.total/100) != 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.c.Progress(n, w.total)
}

// header parses "OID blob SIZE" of the next object, which must be that of f.
func (h *hand) header(f *treeChange) (int64, error) {
	l, err := h.in.ReadSlice('\n')
	if err != nil {
		return 0, unexpected(err)
	}
	rest, found := strings.CutPrefix(string(l[:len(l)-1]), string(f.id)+" blob ")
	if !found {
		return 0, fault.New(fault.Invalid, "its content is missing: git reports %q", clip(string(l)))
	}
	return strconv.ParseInt(rest, 10, 64)
}

// unexpected converts io.EOF to io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// enter opens the directory of the next file, without following links.
func (h *hand) enter(dir string) error {
	if h.dir >= 0 && h.at == dir {
		return nil
	}
	h.leave()
	fd, err := dirfd.Open(h.w.fd(), dir, unix.O_RDONLY|unix.O_DIRECTORY, dirfd.Beneath)
	if err != nil {
		return err
	}
	h.dir, h.at = fd, dir
	return nil
}

func (h *hand) leave() {
	if h.dir >= 0 {
		unix.Close(h.dir)
		h.dir = -1
	}
}

// maxLink is the kernel's limit for the target of a link, in bytes.
const maxLink = 4095

// inMemory is the maximum size of the pieces in which files are copied, in bytes.
const inMemory = 1 << 20

func (h *hand) write(f *treeChange, size int64) error {
	name := path.Base(f.path)
	if f.mode == ModeLink {
		return h.link(f, name, size)
	}
	perm := uint32(0o644)
	if f.mode == ModeExecutable {
		perm = 0o755
	}
	fd, err := unix.Openat(h.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if err != nil {
		return err
	}
	if size > inMemory {
		err = h.stream(fd, size)
	} else {
		err = h.small(fd, size)
	}
	if err == nil {
		err = h.seal(fd, name, perm, &f.stat)
	}
	return errors.Join(err, unix.Close(fd))
}

// small writes a file that fits into the buffer.
func (h *hand) small(fd int, size int64) error {
	b, err := h.take(size)
	for err == nil && len(b) > 0 {
		var n int
		n, err = unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			n, err = 0, nil
		}
		b = b[max(n, 0):]
	}
	return err
}

// take reads size bytes, which are valid until the next call.
func (h *hand) take(size int64) ([]byte, error) {
	if int64(cap(h.buf)) < size {
		h.buf = make([]byte, max(size, 64<<10))
	}
	b := h.buf[:size]
	_, err := io.ReadFull(h.in, b)
	return b, unexpected(err)
}

// stream writes a file in pieces.
func (h *hand) stream(fd int, size int64) error {
	for size > 0 {
		n := min(size, inMemory)
		if err := h.small(fd, n); err != nil {
			return err
		}
		size -= n
	}
	return nil
}

// seal sets a file's time, and its mode if the umask changed it, and records its stat.
func (h *hand) seal(fd int, name string, perm uint32, to *stat) error {
	if err := unix.UtimesNanoAt(h.dir, name, h.w.times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o7777 != perm {
		if err := unix.Fchmod(fd, perm); err != nil {
			return err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
	}
	*to = statOf(&st)
	return nil
}

// link writes a link. A target that a file system cannot hold is Invalid.
func (h *hand) link(f *treeChange, name string, size int64) error {
	if size == 0 || size > maxLink {
		return fault.New(fault.Invalid, "symbolic link to a path of %d bytes", size)
	}
	b, err := h.take(size)
	if err != nil {
		return err
	}
	target := string(b)
	if strings.IndexByte(target, 0) >= 0 {
		return fault.New(fault.Invalid, "symbolic link to a path with NUL")
	}
	if err := unix.Symlinkat(target, h.dir, name); err != nil {
		return err
	}
	if err := unix.UtimesNanoAt(h.dir, name, h.w.times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	st, err := dirfd.Lstat(h.dir, name)
	if err != nil {
		return err
	}
	f.stat = statOf(&st)
	return nil
}
