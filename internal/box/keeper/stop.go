//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// stopAll ends the box. Its processes have grace from SIGTERM on, and are all gone when it returns.
func (k *keeper) stopAll(grace time.Duration) error {
	k.mu.Lock()
	k.ending = true
	if !k.beingStopped() {
		close(k.stopping)
	}
	k.mu.Unlock()
	defer k.quit()
	if grace <= 0 {
		k.endNow()
		return nil
	}
	// Init may never answer: then serve kills it, which ends every wait for an answer.
	late := time.AfterFunc(grace+k.stopPatience, k.quit)
	defer late.Stop()
	if err := k.resume(); err != nil { // a paused process handles no signal
		k.endNow()
		return nil // the box has ended all the same
	}
	if n, err := k.count(); err != nil || n == 0 {
		k.endNow()
		return nil
	}
	k.mu.Lock()
	for _, e := range k.execs {
		if e.tty && e.pid != 0 { // interactive shells ignore SIGTERM
			_ = k.link.Send(initlink.MsgKill, initlink.Kill{PID: e.pid, Signal: int(unix.SIGHUP), Whom: initlink.KillGroup})
		}
	}
	k.mu.Unlock()
	_ = k.link.Send(initlink.MsgKill, initlink.Kill{Signal: int(unix.SIGTERM), Whom: initlink.KillAll})
	_ = k.link.Send(initlink.MsgKill, initlink.Kill{Signal: int(unix.SIGCONT), Whom: initlink.KillAll})
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if n, err := k.count(); err != nil || n == 0 {
			break
		}
		select {
		case <-ctx.Done():
		case <-k.over:
		case <-time.After(wait):
			continue
		}
		break
	}
	k.endNow()
	return nil
}

// beingStopped reports whether stopAll was called.
func (k *keeper) beingStopped() bool {
	select {
	case <-k.stopping:
		return true
	default:
		return false
	}
}

// endNow kills all processes before stop answers its caller.
func (k *keeper) endNow() {
	_ = k.init.Kill()
	<-k.ended
}
