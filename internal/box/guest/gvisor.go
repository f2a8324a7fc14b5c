//go:build linux && (amd64 || arm64)

package guest

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/fault"
)

// What init does otherwise in tier gvisor, where a kernel of the sandbox's own has made
// the root already.

// finishRoot puts the files of ours where they belong. What it mounts, it mounts in the
// sandbox's own kernel.
func finishRoot(g plan.Guest) (weak []plan.Item, err error) {
	if err := fillRun(g); err != nil {
		return nil, err
	}
	if err := mountResolv(g, 0); err != nil {
		return nil, err
	}
	if g.Hostname != "" {
		if err := unix.Sethostname([]byte(g.Hostname)); err != nil {
			return nil, fault.Wrap(err, "set the host name")
		}
	}
	return mountTrust(g)
}

// ignoreSignals has init ignore what can be sent to it but SIGURG, which the Go scheduler
// sends to its own threads, and SIGCHLD: gVisor does not spare PID 1 the default actions,
// as Linux does. Commands have the default actions again, which forkOpenly sees to.
func ignoreSignals() {
	all := make([]os.Signal, 0, 64)
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGURG, syscall.SIGCHLD:
		default:
			all = append(all, sig)
		}
	}
	signal.Notify(make(chan os.Signal, 1), all...)
}

// confineInner is the end of confine where the host's kernel sees no call of the sandbox:
// what filters keep from it in other tiers is not there. What is left to them is what
// gVisor leaves open: that init is signalled by name; and with one mapped id the calls that
// would need more succeed and do nothing, which nothing remembers here.
func (l *launcher) confineInner() error {
	_, err := seccomp.Install(seccomp.Inner(l.guest.Emulate), 0)
	return fault.Wrap(err, "install the filter that guards init")
}

// listenSelf listens at the sandbox's own socket, and passes on whoever connects.
func (d *daemon) listenSelf() error {
	if err := os.Mkdir(plan.SelfAt, 0o755); err != nil {
		return fault.Wrap(err, "make %s", plan.SelfAt)
	}
	at := path.Join(plan.SelfAt, plan.SelfName)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return fault.Wrap(err, "listen at %s", at)
	}
	if err := os.Chmod(at, 0o666); err != nil {
		return fault.Wrap(err, "open %s to all", at)
	}
	if err := os.Symlink(at, plan.SelfSocket); err != nil {
		return fault.Wrap(err, "make %s", plan.SelfSocket)
	}
	// It ends with this process: nothing outlives PID 1.
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				fmt.Fprintln(os.Stderr, "coppice-init: the sandbox's own socket:", err)
				return
			}
			raw, err := c.SyscallConn()
			if err == nil {
				_ = raw.Control(func(fd uintptr) { err = d.link.Send(MsgSelf, nil, int(fd)) })
			}
			c.Close()
			if err != nil {
				return
			}
		}
	}()
	return nil
}
