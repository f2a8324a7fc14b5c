//go:build linux

package livefiles

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/message"
)

// Files gives one request access to the live files of a sandbox. While it is open, no rewind changes all files at
// once. Other requests and commands may use the files meanwhile. Calls use the context that Context returns. The
// caller calls Done or Close.
type Files struct {
	*boxfs.Root

	o    *Opener
	tree *tree
	in   *Root
	what string // guarded by Opener.mu

	ctx    context.Context
	cancel context.CancelCauseFunc
	once   sync.Once
	closed chan struct{}

	watching bool // guarded by Opener.mu; rewinds do not wait for the request
}

// Context returns a context that is canceled when the request ends, or when the sandbox is stopped meanwhile.
func (f *Files) Context() context.Context { return f.ctx }

// OnStop calls fn with the cause, once, when the sandbox is stopped, the request ends or the files are closed, unless
// unhook was called before.
func (f *Files) OnStop(fn func(cause error)) (unhook func()) {
	stop := context.AfterFunc(f.ctx, func() { fn(context.Cause(f.ctx)) })
	return func() { stop() }
}

// Begin sets the name of the operation, for callers that have to wait for it.
func (f *Files) Begin(what string) {
	f.o.mu.Lock()
	defer f.o.mu.Unlock()
	f.what = message.Clean(what)
}

// Open opens a regular file for reading.
func (f *Files) Open(p string) (wire.FileInfo, io.ReadSeekCloser, error) {
	file, err := f.ReadFile(p)
	if err != nil {
		return wire.FileInfo{}, nil, err
	}
	return file.Info(), file, nil
}

// Move is boxfs.Root.Move. Only the sandbox's init can rename a directory that is in lower layers, for a process of
// the sandbox: see Root.Rename.
func (f *Files) Move(from, to string) error {
	err := f.Root.Move(from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	return f.in.Rename(f.ctx, from, to, err)
}

// Watch is boxfs.Root.Watch. A rewind does not wait for it; it ends when the sandbox is stopped or rewound.
func (f *Files) Watch(ctx context.Context, p string, recursive bool, yield func(wire.FileEvent) error) error {
	f.o.mu.Lock()
	f.watching = true
	f.o.mu.Unlock()
	return f.Root.Watch(ctx, p, recursive, yield)
}

// Close closes the files. It may be called more than once, and after Done.
func (f *Files) Close() error {
	var err error
	f.once.Do(func() {
		f.cancel(nil)
		err = errors.Join(f.Root.Close(), f.in.Close())
		f.o.mu.Lock()
		delete(f.tree.open, f)
		f.o.mu.Unlock()
		close(f.closed)
	})
	return err
}

// Done closes the files and takes a snapshot of the changes, with the message what. If a supervised command has
// automatic history, that captures them later. Done completes even if the client has disconnected.
func (f *Files) Done(ctx context.Context, what string) error {
	if err := f.Close(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	h, err := f.in.Lock(ctx, "capturing file changes")
	if err != nil {
		return err
	}
	defer h.Release()
	return h.Capture(ctx, what)
}
