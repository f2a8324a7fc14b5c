//go:build linux

package engine

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// filesPatience is how long a move waits for those who read or write files.
	filesPatience = 30 * time.Second
	// filesGrace is what they have to let go when their sandbox is stopped.
	filesGrace = 5 * time.Second
)

// Files are a sandbox's live files, for one request. While they are open, no move
// changes them all at once; any number of requests, and commands, work beside each
// other. Its calls are made with Context.
type Files struct {
	*boxfs.Root

	e    *Engine
	s    *entry
	in   *InsideRoot
	box  Box
	what string

	ctx    context.Context
	cancel context.CancelCauseFunc
	once   sync.Once
	closed chan struct{}

	watching bool // guarded by Engine.mu: nobody waits for it
}

// OpenFiles opens the files of a sandbox, which is started when it is not live. The
// caller calls Done or Close, once what was opened by it is not used any more.
func (e *Engine) OpenFiles(ctx context.Context, name string) (*Files, error) {
	s, rec, err := e.acquire(ctx, name, "opening its files")
	if err != nil {
		return nil, err
	}
	defer s.unlock(e)
	fixed, err := e.fixed(ctx, &rec)
	if err != nil {
		return nil, fault.Wrap(err, "open the files of sandbox %s", rec.Name)
	}
	in, err := e.openRoot(ctx, s, &rec)
	if err != nil {
		return nil, fault.Wrap(err, "open the files of sandbox %s", rec.Name)
	}
	decoys, err := e.Egress.DecoyPlaces(ctx, &rec)
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "open the files of sandbox %s", rec.Name), in.Close())
	}
	root, err := boxfs.New(
		boxfs.Options{Dir: in.Dir, User: in.User, Renames: &s.renames, Watches: &s.watches, Fixed: fixed, Decoys: decoys,
			Unseen: in.Unseen})
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "open the files of sandbox %s", rec.Name), in.Dir.Close(), in.Close())
	}
	f := &Files{Root: root, e: e, s: s.entry, in: in, box: s.box, what: "its files are read or written",
		closed: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.files == nil {
		s.files = map[*Files]bool{}
	}
	s.files[f] = true
	return f, nil
}

// openRoot starts the box if need be, and opens its root.
func (e *Engine) openRoot(ctx context.Context, s *held, rec *meta.Sandbox) (*InsideRoot, error) {
	b, err := e.start(ctx, s, rec)
	if err != nil {
		return nil, err
	}
	in, err := b.OpenRoot(ctx)
	if fault.Is(err, fault.Unavailable) {
		// The keeper ended by itself, being idle, between our look and the call.
		s.box = nil
		if b, err = e.start(ctx, s, rec); err != nil {
			return nil, err
		}
		in, err = b.OpenRoot(ctx)
	}
	if err != nil || in.Dir != nil {
		return in, err
	}
	if in.Dir, err = e.openTree(ctx, rec); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

// openTree opens the plain tree of a driver.
func (e *Engine) openTree(ctx context.Context, rec *meta.Sandbox) (*os.File, error) {
	drv, live, err := e.live(ctx, rec)
	if err != nil {
		return nil, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return nil, err
	}
	if !drv.Plain() || len(parts) != 1 {
		return nil, fault.New(fault.Internal, "the live root of sandbox %s is not mounted", rec.Name)
	}
	fd, err := unix.Open(parts[0].Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: parts[0].Dir, Err: err}
	}
	return os.NewFile(uintptr(fd), "live root"), nil
}

// Context ends with the request, and when the sandbox is stopped meanwhile.
func (f *Files) Context() context.Context { return f.ctx }

// OnStop calls fn, once and with the cause, when the sandbox is stopped meanwhile, the
// request ends or the files are closed, until unhook.
func (f *Files) OnStop(fn func(cause error)) (unhook func()) {
	stop := context.AfterFunc(f.ctx, func() { fn(context.Cause(f.ctx)) })
	return func() { stop() }
}

// Begin says what is being done, for whoever has to wait for it.
func (f *Files) Begin(what string) {
	f.e.mu.Lock()
	defer f.e.mu.Unlock()
	f.what = label.Clean(what)
}

// Open opens a regular file for reading.
func (f *Files) Open(p string) (wire.FileInfo, io.ReadSeekCloser, error) {
	file, err := f.ReadFile(p)
	if err != nil {
		return wire.FileInfo{}, nil, err
	}
	return file.Info(), file, nil
}

// Move is boxfs.Root.Move. A directory that layers below have can only be renamed by
// the sandbox's own init, for a process of it: that is then mv(1).
func (f *Files) Move(from, to string) error {
	err := f.Root.Move(from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	s, xerr := f.e.lock(f.ctx, f.s, "moving a directory")
	if xerr != nil {
		return xerr
	}
	wait, xerr := f.e.Commands.Unrecorded(f.ctx, commandHeld{f.e, s}, f.box,
		"mv", "-T", "--", "/"+strings.TrimLeft(from, "/"), "/"+strings.TrimLeft(to, "/"))
	s.unlock(f.e)
	if xerr != nil {
		return xerr
	}
	exit, said, xerr := wait()
	switch {
	case xerr != nil:
		return xerr
	case exit.Code == 0:
		return nil
	case exit.Code == 126 || exit.Code == 127: // it has no mv
		return err
	}
	return fault.New(fault.Conflict, "move: %s", label.Clean(strings.TrimSpace(said))).
		WithHint("look at both places first: files/stat")
}

// Watch is boxfs.Root.Watch. Nobody waits for it: it ends when the sandbox is
// stopped or moved.
func (f *Files) Watch(ctx context.Context, p string, recursive bool, yield func(wire.FileEvent) error) error {
	f.e.mu.Lock()
	f.watching = true
	f.e.mu.Unlock()
	return f.Root.Watch(ctx, p, recursive, yield)
}

// Close lets go of the files. It may be called again, and after Done.
func (f *Files) Close() error {
	var err error
	f.once.Do(func() {
		f.cancel(nil)
		err = errors.Join(f.Root.Close(), f.in.Close())
		f.e.mu.Lock()
		delete(f.s.files, f)
		f.e.mu.Unlock()
		close(f.closed)
	})
	return err
}

// Done closes the files and takes a snapshot of what was written, which the label what names.
// Where a supervised command is captured by itself, that is left to its own pace.
// It sees this through also when the client has gone away.
func (f *Files) Done(ctx context.Context, what string) error {
	if err := f.Close(); err != nil {
		return err
	}
	e := f.e
	ctx = context.WithoutCancel(ctx)
	s, err := e.lock(ctx, f.s, "capturing what was written")
	if err != nil {
		return err
	}
	defer s.unlock(e)
	rec, err := e.DB.Sandbox(ctx, string(s.ID))
	if err != nil {
		return err
	}
	if e.Commands.CaptureLater(commandHeld{e, s}, &rec) {
		return nil
	}
	message := label.Clean(events.Cut(e.cleaners.For(ctx, &rec).Redact(what)))
	_, err = e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, message: message, aside: true})
	return fault.Wrap(err, "it is done, but not in the history yet")
}

// filesOpen reports whether somebody has the live root open.
func (e *Engine) filesOpen(s *entry) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(s.files) > 0
}

// working gives somebody who reads or writes files, and what he does.
func (e *Engine) working(s *entry) (*Files, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for f := range s.files {
		if !f.watching {
			return f, f.what
		}
	}
	return nil, ""
}

// acquireAlone is acquire for what changes all files at once: it waits for those
// who read or write some. They begin with the sandbox's lock, so that none does
// afterwards.
func (e *Engine) acquireAlone(ctx context.Context, name, what string) (*held, meta.Sandbox, error) {
	patience, cancel := context.WithTimeout(ctx, filesPatience)
	defer cancel()
	for {
		s, rec, err := e.acquire(ctx, name, what)
		if err != nil {
			return nil, rec, err
		}
		f, doing := e.working(s.entry)
		if f == nil {
			return s, rec, nil
		}
		s.unlock(e)
		select {
		case <-f.closed:
		case <-patience.Done():
			return nil, rec, busyFiles(s.entry, doing).Because(context.Cause(patience))
		}
	}
}

func busyFiles(s *entry, doing string) *fault.Error {
	return fault.New(fault.Conflict, "sandbox %s is busy: %s", s.ID, doing).
		WithHint("wait until it has ended, then try again")
}

// cutFiles ends what is done with the live root, which is about to go.
func (e *Engine) cutFiles(ctx context.Context, s *held) error {
	e.mu.Lock()
	var open []*Files
	doing := ""
	for f := range s.files {
		doing = f.what
		f.cancel(fault.New(fault.Unavailable, "the sandbox was stopped meanwhile").
			WithHint("try again: it is started when it is needed"))
		open = append(open, f)
	}
	e.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, filesGrace)
	defer cancel()
	for _, f := range open {
		select {
		case <-f.closed:
		case <-ctx.Done():
			return busyFiles(s.entry, doing).Because(context.Cause(ctx))
		}
	}
	return nil
}
