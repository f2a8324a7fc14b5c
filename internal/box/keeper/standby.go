//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/control"
)

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
	k.own.Go(func() { // ends when packets is closed, at the latest by end
		defer close(arrived)
		waitReadable(packets)
	})
	select {
	case <-arrived: // or another policy has started the gate
	case <-k.stop:
	case <-k.over:
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	select {
	case <-k.stop: // closeGate handles what was sent before the end
		return false
	case <-k.over:
		return false
	default:
	}
	if _, err := k.awake(); err != nil {
		k.reportGate("the gate could not be started: the network is unreachable until the sandbox restarts: " + err.Error())
		return false
	}
	return true
}

// lastPatience is how long the end of a box waits for a gate that is to decide about the box's last packets.
const lastPatience = 5 * time.Second

// closeGate ends the gate when the box has ended. A gate that waits for a packet first decides about those that were
// sent, so that they are recorded.
func (k *keeper) closeGate() {
	decided := make(chan struct{})
	go func() {
		defer close(decided)
		k.decideLast()
	}()
	select {
	case <-decided:
	case <-time.After(lastPatience):
	}
	k.gate.close() // fails a start or request in progress
	<-decided
}

// decideLast makes a gate that waits for a packet begin if there is one. The gate reads all of them before it exits.
func (k *keeper) decideLast() {
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.asleep == nil || !readable(k.asleep) {
		k.forgetLink()
		return
	}
	if _, err := k.awake(); err != nil {
		k.reportGate("the gate could not be started: what the sandbox sent just before its end was dropped without a " +
			"record of each destination: " + err.Error())
	}
}

// awake returns the gate, and first starts it if it waits for a packet. If it cannot be started, the interface of the
// box is removed. The caller holds k.rekeying.
func (k *keeper) awake() (*control.Process, error) {
	if k.asleep != nil {
		defer k.forgetLink()
		late := make(chan struct{})
		defer time.AfterFunc(k.startPatience, func() { close(late) }).Stop()
		p, err := k.startGate(late)
		if err == nil {
			_, err = k.beginGate(p, k.asleep)
		}
		if err != nil {
			k.gate.close() // it may have started, in an unknown state
			return nil, err
		}
	}
	return k.gate.process()
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
