//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// stopAll ends the box. Its processes have grace from SIGTERM on, and are all gone when it returns nil.
func (k *keeper) stopAll(grace time.Duration) error {
	k.mu.Lock()
	k.ending = true
	if !k.beingStopped() {
		close(k.stopping)
	}
	k.mu.Unlock()
	defer k.quit()
	if grace <= 0 {
		return k.endNow()
	}
	// Init may never answer: then serve kills it, which ends every wait for an answer.
	late := time.AfterFunc(grace+k.stopPatience, k.quit)
	defer late.Stop()
	if err := k.resume(); err != nil { // a paused process handles no signal
		return k.endNow() // the box ends all the same
	}
	if n, err := k.count(); err != nil || n == 0 {
		return k.endNow()
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
	return k.endNow()
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

// endNow kills all processes before stop answers its caller. The error is that some of a workspace are left: the keeper
// continues to kill them, and the box has not ended.
func (k *keeper) endNow() error {
	if k.config.Tier != plan.TierWorkspace {
		_ = k.init.Kill()
		<-k.ended
		return nil
	}
	k.quit()
	select {
	case <-k.ended:
		return nil
	case <-time.After(unendedPatience):
		return fault.New(fault.Conflict, "processes of the sandbox are still running: they do not end within %s",
			unendedPatience).WithHint("see which: ps -e -o pid,ppid,stat,wchan,args; then try again")
	}
}

// Bounds on the end of a workspace. Box.Stop waits for longer.
const (
	unendedPatience = 5 * time.Second // how long a caller of stop waits
	endsPatience    = 3 * time.Second // how long init may take to end all that it has started
)

// endInit ends init and all processes inside. In tier workspace the kernel does not end them: init does, which can
// reach all at once. What init leaves, or all if it was killed, becomes children of the keeper, which ends only when
// there is none left. Then it records that.
func (k *keeper) endInit() {
	if k.config.Tier != plan.TierWorkspace || k.link == nil {
		_ = k.init.Kill()
		k.init.Wait()
		return
	}
	gone := make(chan struct{})
	go func() { k.init.Wait(); close(gone) }()
	k.link.Finish()
	select {
	case <-gone:
	case <-time.After(endsPatience):
		fmt.Fprintln(os.Stderr, "coppice-keeper: init does not exit, and is killed")
		_ = k.init.Kill()
		<-gone
	}
	k.closeGate() // which is a child of the keeper too, and records the ends of connections
	for {
		err := procs.EndDescendants(unendedPatience, nil)
		if err == nil {
			k.recordEnd()
			return
		}
		fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
	}
}

// recordEnd records that no process of a locked workspace is left. If it cannot, Box proves it again.
func (k *keeper) recordEnd() {
	if err := procs.Ended(k.config.RunDir); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
	}
}
