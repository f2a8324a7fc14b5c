//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/undo"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

// Box is the daemon's handle on the keeper of a live sandbox. All methods are safe for concurrent use.
type Box struct {
	runDir   string
	pidfd    *os.File      // pidfd of the keeper
	child    *os.Process   // set if this process started it
	unproven chan struct{} // closed when the keeper has exited, and processes may be left: see unended
	gone     chan struct{}
	closing  chan struct{} // closed by Close
	closed   sync.Once
	watch    sync.WaitGroup
}

func newBox(runDir string) *Box {
	return &Box{runDir: runDir, unproven: make(chan struct{}), gone: make(chan struct{}), closing: make(chan struct{})}
}

// Start starts a box from helper programs and returns when commands can run in it. The run directory must
// exist. The caller must be real root, or uid 0 of its own user namespace (see plan.Caller). The keeper
// outlives its caller, unless the caller exits before Start returns. ctx limits the start only.
func Start(ctx context.Context, programs *program.Set, c plan.Config) (b *Box, e plan.Enforced, err error) {
	defer func() { err = fault.OfHost(err) }()
	lock, err := prepare(ctx, &c)
	if err != nil {
		return nil, e, err
	}
	defer lock.Close()                 // the keeper has a copy
	_ = cgroup.RemoveLeft(c.RunDir, 0) // a group that remains is harmless; its removal is tried again
	h, err := findHelpers(programs, &c)
	if err != nil {
		return nil, e, err
	}
	k, err := spawn(c, h, lock)
	if err != nil {
		return nil, e, err
	}
	var undone undo.Stack
	defer undone.Run(&err)
	undone.Push(k.term)
	defer k.closePipes() // runs before term
	b = newBox(c.RunDir)
	b.child = k.process
	enforced, err := k.await(ctx, c)
	if err != nil {
		return nil, e, err
	}
	pidfd := k.pidfd
	k.pidfd = -1 // the pidfd belongs to b now
	if err := b.follow(pidfd); err != nil {
		return nil, e, err
	}
	undone.Release()
	return b, enforced, nil
}

// Attach returns the box whose keeper listens in runDir. It waits for a keeper that is starting or exiting,
// and returns a NotFound fault if there is none. A keeper whose daemon died during the start listens for a
// moment and then exits. Conflict is that the keeper has ended, and processes of a locked workspace may be left: the
// hint says how to end them.
func Attach(ctx context.Context, runDir string) (*Box, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settles,
		fault.New(fault.Unavailable, "the monitor in %s neither responds nor exits", runDir))
	defer cancel()
	for {
		b, err := attach(ctx, runDir)
		if !fault.Is(err, fault.NotFound) {
			return b, err
		}
		if held, lerr := dirIsHeld(runDir); lerr != nil {
			return nil, lerr
		} else if !held {
			held, perr := proveEnd(runDir, provePatience)
			if perr != nil {
				return nil, perr
			}
			if !held {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockLook):
		}
	}
}

// attach returns the box whose keeper listens in runDir and answers, or a NotFound fault. It does not wait.
func attach(ctx context.Context, runDir string) (*Box, error) {
	conn, err := dial(runDir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, fault.New(fault.NotFound, "no monitor listens in %s", runDir)
	}
	if err != nil {
		return nil, fault.Wrap(err, "find the monitor in %s", runDir)
	}
	defer conn.Close()
	b, err := listener(conn, runDir)
	if err != nil {
		return nil, err
	}
	// The answer proves that the watched process is the one that listens.
	if err := b.ping(ctx); err != nil {
		_ = b.Close()
		if isClosed(err) {
			return nil, fault.New(fault.NotFound, "the monitor in %s is exiting", runDir)
		}
		return nil, err
	}
	return b, nil
}

// listener finds the keeper at the other end of conn. Until the keeper has answered, or the connection is known to be
// open, the pid may belong to another process.
func listener(conn *net.UnixConn, runDir string) (*Box, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fault.Wrap(err, "find the monitor in %s", runDir)
	}
	var ucred *unix.Ucred
	var e error
	err = raw.Control(func(fd uintptr) { ucred, e = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || e != nil {
		return nil, fault.Wrap(errors.Join(err, e), "find the monitor in %s", runDir)
	}
	pidfd, err := unix.PidfdOpen(int(ucred.Pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fault.New(fault.NotFound, "the monitor in %s has just exited", runDir)
	}
	if err != nil {
		return nil, fault.Wrap(err, "watch the monitor in %s", runDir)
	}
	b := newBox(runDir)
	return b, b.follow(pidfd)
}

// Kill kills the keeper that listens in runDir and all processes of its box, whether or not the keeper
// answers, and waits until the keeper has exited. It returns NotFound if there is none.
func Kill(ctx context.Context, runDir string) error {
	conn, err := dial(runDir)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return fault.New(fault.NotFound, "no monitor listens in %s", runDir)
	}
	if err != nil {
		return fault.Wrap(err, "find the monitor in %s", runDir)
	}
	defer conn.Close()
	b, err := listener(conn, runDir)
	if err != nil {
		return err
	}
	// If the keeper had exited before it was watched, its end of the connection would be closed.
	if lasts, err := connLasts(conn); err != nil || !lasts {
		_ = b.Close()
		if err == nil {
			err = fault.New(fault.NotFound, "the monitor in %s has just exited", runDir)
		}
		return err
	}
	if err := b.kill(); err != nil {
		return errors.Join(err, b.Close())
	}
	select {
	case <-b.gone:
		return nil
	case <-b.unproven:
		return errors.Join(b.unended(), b.Close())
	case <-ctx.Done():
		return errors.Join(fault.Wrap(context.Cause(ctx), "wait for the exit of the monitor in %s", runDir), b.Close())
	}
}

// connLasts reports whether the other end of a connection is open.
func connLasts(conn *net.UnixConn) (lasts bool, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var e error
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for e = unix.EINTR; errors.Is(e, unix.EINTR); { // a signal interrupts also a poll that does not wait
			_, e = unix.Poll(p, 0)
		}
		lasts = p[0].Revents == 0
	})
	return lasts, errors.Join(err, e)
}

// follow starts watching the keeper.
func (b *Box) follow(pidfd int) error {
	if pidfd < 0 {
		return fault.New(fault.Unsupported, "this kernel does not support pidfds").WithHint("use Linux 5.4 or later")
	}
	if err := unix.SetNonblock(pidfd, true); err != nil {
		unix.Close(pidfd)
		return fault.Wrap(err, "watch the monitor")
	}
	b.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	raw, err := b.pidfd.SyscallConn()
	if err != nil {
		b.pidfd.Close()
		return fault.Wrap(err, "watch the monitor")
	}
	b.watch.Go(func() {
		ended := false
		err := raw.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(p, 0)
			ended = err == nil && n == 1
			return ended
		})
		if err != nil || !ended {
			return // Close was called
		}
		if b.child != nil {
			_, _ = b.child.Wait()
		}
		_ = RemoveLeft(b.runDir, leftPatience) // the next start tries again
		if !b.awaitEnd() {
			return
		}
		close(b.gone)
		b.pidfd.Close() // so that a box that has ended need not be closed
	})
	return nil
}

// leftPatience bounds the wait for processes in the control groups of a killed keeper: the kernel kills init
// and the sandbox's processes with it, and the gate exits on its own.
const leftPatience = 10 * time.Second

// RemoveLeft removes the control groups that a killed keeper of runDir left behind. It waits up to patience
// for the processes in each to exit. It does nothing if a keeper runs or is starting, because that one
// removes them.
func RemoveLeft(runDir string, patience time.Duration) error {
	if !cgroup.Left(runDir) {
		return nil
	}
	_, err := whileFree(runDir, func() error { return cgroup.RemoveLeft(runDir, patience) })
	return err
}

// Gone returns a channel that is closed when the keeper has exited, and all processes and mounts of the box are gone
// with it. While processes of a locked workspace may be left, it stays open, and calls return Conflict.
func (b *Box) Gone() <-chan struct{} { return b.gone }

// Close releases the handle and leaves the box running. The channel of Gone is then never closed, unless it
// already was. A box that has ended holds no resources and need not be closed.
func (b *Box) Close() error {
	err := b.pidfd.Close()
	b.closed.Do(func() { close(b.closing) })
	b.watch.Wait()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func dial(runDir string) (*net.UnixConn, error) { return unixsock.Dial(runDir, protocol.SocketName) }

// isClosed reports whether err is what a connection to an exited keeper returns.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) ||
		errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}
