//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

// The differences in the keeper if init is a conductor (package gvisor).

// forConductor returns the descriptors that follow those of every box: the sandbox's end of the gate's link, and a
// memory image. The caller closes them.
func (k *keeper) forConductor(g *plan.Guest) (fds rootspec.Descriptors, err error) {
	defer func() {
		if err != nil {
			fds.Close()
		}
	}()
	if k.wire[0] != nil {
		fd, err := unix.FcntlInt(k.wire[0].Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fds, fault.Wrap(err, "pass the network interface to the sandbox")
		}
		g.Gate, fds = true, append(fds, fd)
	}
	if k.config.Image == "" {
		return fds, nil
	}
	g.Resume = true
	for _, name := range initlink.ImageFiles {
		fd, err := unix.Open(filepath.Join(k.config.Image, name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fds, fault.Wrap(err, "open the memory image's %s", name)
		}
		fds = append(fds, fd)
		// The lock is held as long as the descriptor is open in any process, so that the pages exist until all are
		// read.
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(fd, unix.LOCK_SH)
		}
		if err != nil {
			return fds, fault.Wrap(err, "pin the memory image's %s", name)
		}
	}
	return fds, nil
}

// closeStray closes descriptors of messages that must have none: an init inside its sandbox may be compromised. The
// conductor refuses messages that such an init must not send at all.
func closeStray(m *initlink.Message) {
	switch m.Kind {
	case initlink.MsgSpawned, initlink.MsgSelf, initlink.MsgSeen:
		return
	}
	m.Close()
	m.FDs = nil
}

// adopt takes over a running command of a resumed box. No client is attached to it yet.
func (k *keeper) adopt(m initlink.Message) error {
	var a initlink.Adopt
	if err := m.Decode(&a); err != nil || len(a.Has) != len(m.FDs) {
		m.Close()
		return fault.New(fault.Internal, "malformed description of a resumed command").Because(err)
	}
	if a.Exec == "" || k.execs[a.Exec] != nil {
		a.Exec = newExecID()
	}
	e := k.newExecution(wire.ExecRequest{ID: a.Exec, Cmd: a.Cmd, Env: a.Env, TTY: a.TTY, Keep: true})
	e.pid = a.PID
	files := map[string]*os.File{}
	for i, name := range a.Has {
		_ = unix.SetNonblock(m.FDs[i], true)
		files[name] = os.NewFile(uintptr(m.FDs[i]), name)
	}
	var in *input
	if a.TTY {
		if e.master = files[initlink.Terminal]; e.master != nil {
			in = newInput(e.master, true)
			e.pump(e.master, wire.FrameStdout)
		}
	} else {
		for i, t := range []wire.FrameType{wire.FrameStdout, wire.FrameStderr} {
			if f := files[initlink.Pipes[i]]; f != nil {
				e.pump(f, t)
			}
		}
		if f := files[initlink.Pipes[2]]; f != nil {
			in = newInput(f, false)
		}
	}
	e.in = in
	close(e.ready)
	go func() { e.pumps.Wait(); close(e.drained) }()
	if ms, why := k.patience(wire.ExecRequest{}); ms > 0 { // the limit of the box starts now
		e.mu.Lock()
		e.timer = time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { e.end(why) })
		e.mu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.execs[e.id], k.byPID[e.pid] = e, e
	return nil
}

// maxSelf is the largest number of concurrent connections to the sandbox's own socket.
const maxSelf = 64

// serveSelf serves a process inside that has connected to the sandbox's own socket.
func (k *keeper) serveSelf(m initlink.Message) {
	if len(m.FDs) != 1 {
		m.Close()
		return
	}
	_ = unix.SetNonblock(m.FDs[0], true)
	f := os.NewFile(uintptr(m.FDs[0]), "self")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: the sandbox's own socket:", err)
		return
	}
	if k.selves.Add(1) > maxSelf {
		k.selves.Add(-1)
		c.Close()
		return
	}
	name := plan.SelfName
	if k.isUser(m) {
		name = plan.SelfUser
	}
	k.own.Go(func() {
		defer k.selves.Add(-1)
		defer c.Close()
		to, err := k.dialSelf(name)
		if err != nil && name == plan.SelfUser { // an older daemon does not distinguish users
			to, err = k.dialSelf(plan.SelfName)
		}
		if err != nil {
			return // the daemon does not listen
		}
		defer to.Close()
		k.splice(c, to)
	})
}

// dialSelf connects to a socket of the daemon for the sandbox.
func (k *keeper) dialSelf(name string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	return d.Dial("unix", filepath.Join(k.config.RunDir, plan.SelfDir, name))
}

// isUser reports whether a process of the sandbox's user has made a connection. An init of an older build does not say
// who has made it.
func (k *keeper) isUser(m initlink.Message) bool {
	var s initlink.Self
	return m.Decode(&s) == nil && s.UID != nil && *s.UID == k.user.UID
}

// splice copies between a client and the daemon in both directions until both have ended, the client has closed its
// connection in both directions, or the box has ended. The caller closes both afterwards.
func (k *keeper) splice(client, daemon net.Conn) {
	ends := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if w, ok := to.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
		}
		ends <- struct{}{}
	}
	go pass(client, daemon)
	go func() {
		pass(daemon, client)
		// A client that is half-closed still awaits an answer.
		if c, ok := client.(syscall.Conn); ok && unixsock.AwaitHangup(c) {
			daemon.Close() // so the daemon cancels the request
		}
	}()
	for range 2 {
		select {
		case <-ends:
		case <-k.stop:
			client.Close()
			daemon.Close()
			<-ends
		case <-k.over:
			client.Close()
			daemon.Close()
			<-ends
		}
	}
}
