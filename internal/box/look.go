//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
)

// connectTime bounds a connection to a listener inside. It takes no time unless the listener's queue is full.
const connectTime = 5 * time.Second

// connectPause is the time between attempts to connect, where a connection cannot wait in the kernel.
const connectPause = 50 * time.Millisecond

// Processes lists the processes of the box, without init. The processes choose their own names and arguments.
func (b *Box) Processes(ctx context.Context) (wire.ProcessesResult, error) {
	var s initlink.Seen
	err := b.call(ctx, protocol.Call{Op: protocol.OpProcesses}, &s)
	if err != nil {
		return wire.ProcessesResult{}, anotherVersion(err)
	}
	r := wire.ProcessesResult{Processes: make([]wire.Process, len(s.Processes)), More: s.More}
	for i, p := range s.Processes {
		r.Processes[i] = wireProcess(p)
	}
	return r, nil
}

func wireProcess(p initlink.Process) wire.Process {
	w := wire.Process{
		PID: p.PID, PPID: p.PPID, State: p.State, Start: p.Start, Started: p.Started, CPUMS: p.CPUMS, RSS: p.RSS,
		Name: text(p.Name), Args: make([]string, len(p.Args)), Cut: p.Cut,
	}
	plain := func(b []byte) bool { return utf8.Valid(b) }
	for i, a := range p.Args {
		w.Args[i] = text(a)
		if !plain(a) {
			w.Raw = p.Args
		}
	}
	return w
}

// text replaces invalid UTF-8 in b.
func text(b []byte) string { return strings.ToValidUTF8(string(b), "\ufffd") }

// SignalProcess sends a signal ("TERM") to one process of the box. It returns NotFound if the process does
// not exist, or is not the one that was started at s.Start.
func (b *Box) SignalProcess(ctx context.Context, pid int, s wire.ProcessSignal) error {
	return anotherVersion(
		b.call(ctx, protocol.Call{Op: protocol.OpSignalProcess, PID: pid, Start: s.Start, Signal: s.Name}, nil))
}

// Ports lists the ports that processes of the box listen on.
func (b *Box) Ports(ctx context.Context) (wire.PortsResult, error) {
	s, err := b.ports(ctx, 0)
	r := wire.PortsResult{Ports: []wire.Port{}, More: s.More}
	for _, p := range s.Ports {
		w := wire.Port{Port: int(p.Addr.Port()), Address: p.Addr.Addr().String(), PID: p.PID, Program: text(p.Name)}
		if !slices.Contains(r.Ports, w) { // with SO_REUSEPORT several sockets share one
			r.Ports = append(r.Ports, w)
		}
	}
	return r, err
}

func (b *Box) ports(ctx context.Context, port int) (s initlink.Seen, err error) {
	// DialPort has checked port; Ports passes 0.
	return s, anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpPorts, Port: uint16(port)}, &s))
}

// DialPort connects to a port that a process of the box listens on. It returns NotFound if none does. With
// the host's network it does not connect to processes outside the box.
func (b *Box) DialPort(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 0xffff {
		return nil, fault.New(fault.Invalid, "invalid port %d", port).WithHint("ports are 1 to 65535")
	}
	limit, cancel := context.WithTimeoutCause(ctx, connectTime+protocol.LookPatience,
		fault.New(fault.Timeout, "the sandbox does not respond"))
	defer cancel()
	for late := time.Now().Add(connectTime); ; {
		conn, err := b.dialPort(limit, port)
		if !fault.Is(err, fault.Timeout) || time.Now().After(late) {
			return conn, err
		}
		select { // init does not wait for a server
		case <-limit.Done():
			return nil, fault.Wrap(context.Cause(limit), "connect to port %d", port)
		case <-time.After(connectPause):
		}
	}
}

// dialPort is DialPort without a wait for a server whose queue is full, where a connection cannot wait in the kernel.
func (b *Box) dialPort(limit context.Context, port int) (net.Conn, error) {
	conn, err := b.open(limit, protocol.Call{Op: protocol.OpDial, Port: uint16(port)})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(limit, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var s initlink.Seen
	if err := reply(limit, conn, &s); err != nil {
		return nil, anotherVersion(err)
	}
	fd, err := receiveFD(conn)
	if err != nil {
		return nil, fault.Wrap(err, "receive a connection to port %d", port)
	}
	inner, err := connected(limit, os.NewFile(uintptr(fd), "port"), port)
	if err != nil || !s.Shared {
		return inner, err
	}
	// Another process may have taken the port between init's look and the connection; the box then no longer listens on
	// it.
	again, err := b.ports(limit, port)
	if err == nil &&
		!slices.ContainsFunc(again.Ports, func(p initlink.Port) bool { return answersFor(p, inner.RemoteAddr()) }) {
		err = fault.New(fault.NotFound, "no process listens on port %d", port)
	}
	if err != nil {
		inner.Close()
		return nil, err
	}
	return inner, nil
}

// answersFor reports whether a connection to addr may be one to p.
func answersFor(p initlink.Port, addr net.Addr) bool {
	to, ok := addr.(*net.TCPAddr)
	return ok && (p.Addr.Addr().IsUnspecified() || p.Addr.Addr() == to.AddrPort().Addr().Unmap())
}

// connected waits until a connecting socket is connected, and returns it as a connection. It closes f.
func connected(ctx context.Context, f *os.File, port int) (net.Conn, error) {
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fault.Wrap(err, "connect to port %d", port)
	}
	_ = f.SetWriteDeadline(time.Now().Add(connectTime))
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	state, own := 0, false
	err = raw.Write(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}} // a file descriptor
		if n, err := unix.Poll(p, 0); err != nil || n != 1 {
			return false
		}
		state, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		own = procs.OwnEnd(int(fd))
		return true
	})
	switch {
	case ctx.Err() != nil:
		return nil, fault.Wrap(context.Cause(ctx), "connect to port %d", port)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fault.New(fault.Timeout,
			"the process that listens on port %d accepted no connection within %s", port, connectTime).
			WithHint("see what it does: coppice process ls NAME")
	case err != nil:
		return nil, fault.Wrap(err, "connect to port %d", port)
	case state != 0 || own:
		return nil, fault.New(fault.NotFound, "no process listens on port %d any more", port).Because(unix.Errno(state))
	}
	conn, err := net.FileConn(f)
	return conn, fault.Wrap(err, "connect to port %d", port)
}

// anotherVersion adds a hint to the error of a keeper that does not know a call.
func anotherVersion(err error) error {
	if fault.Is(err, fault.Version) {
		return otherVersion()
	}
	return err
}
