//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
)

// gateway holds the process of the gate, which may start while the box is being ended. The zero value holds none. Its
// methods are safe for concurrent use.
type gateway struct {
	mu     sync.Mutex
	p      *control.Process // guarded by mu; nil until it was started
	closed bool             // guarded by mu
}

// start starts the process, unless the box is being ended.
func (g *gateway) start(start func() (*control.Process, error)) (*control.Process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fault.New(fault.Unavailable, "the sandbox is being stopped")
	}
	var err error
	g.p, err = start()
	return g.p, err
}

// process returns the process; nil if it was not started. It may have exited.
func (g *gateway) process() *control.Process {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.p
}

// close stops the process, waits until it has exited, and prevents that it is started again.
func (g *gateway) close() {
	g.mu.Lock()
	p := g.p
	g.closed = true
	g.mu.Unlock()
	if p != nil {
		p.Close()
	}
}

// awaitPacket waits until the gate has started, and starts one that waits for a packet when there is one. It returns
// false if the box ended before, or if the gate could not be started, which it reports.
func (k *keeper) awaitPacket() bool {
	k.rekeying.Lock()
	packets := k.asleep
	k.rekeying.Unlock()
	if packets == nil {
		return true
	}
	arrived := make(chan struct{})
	go func() { // ends when packets is closed
		defer close(arrived)
		waitReadable(packets)
	}()
	select {
	case <-arrived: // or another policy has started the gate
	case <-k.stop:
	case <-k.over:
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	select {
	case <-k.stop:
		k.forgetLink()
		return false
	case <-k.over:
		k.forgetLink()
		return false
	default:
	}
	if _, err := k.awake(); err != nil {
		k.reportGate("the gate could not be started: the network is unreachable until the sandbox restarts: " + err.Error())
		return false
	}
	return true
}

// awake returns the gate, and first starts it if it waits for a packet. If it cannot be started, the interface of the
// box is removed. The caller holds k.rekeying.
func (k *keeper) awake() (*control.Process, error) {
	if k.asleep != nil {
		defer k.forgetLink()
		p, err := k.startGate()
		if err == nil {
			_, err = k.beginGate(p, k.asleep)
		}
		if err != nil {
			k.gate.close() // it may have started, in an unknown state
			k.gateless = true
			return nil, err
		}
	}
	if p := k.gate.process(); p != nil && !k.gateless {
		return p, nil
	}
	return nil, fault.New(fault.Unavailable, "the sandbox's gate could not be started: the network is unreachable").
		WithHint("restart the sandbox: coppice stop NAME; the next command starts it")
}

// forgetLink closes the end of the link that is kept for a gate that waits. The caller holds k.rekeying, or is the only
// user of k.
func (k *keeper) forgetLink() {
	if k.asleep != nil {
		_ = k.asleep.Close()
		k.asleep = nil
	}
}

// waitReadable waits until a packet can be read from a socket, without reading it, or until the socket is closed, which
// is the only error.
func waitReadable(f *os.File) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Read(func(fd uintptr) bool { return polled(int(fd)) })
	}
}

// readable reports whether a packet can be read from a socket.
func readable(f *os.File) (yes bool) {
	c, err := f.SyscallConn()
	return err == nil && c.Control(func(fd uintptr) { yes = polled(int(fd)) }) == nil && yes
}

// polled reports whether there is something to read. The socket of a removed interface has an error instead.
func polled(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, 0); !errors.Is(err, unix.EINTR) {
			return err == nil && fds[0].Revents&unix.POLLIN != 0
		}
	}
}
