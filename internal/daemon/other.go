//go:build !linux

package daemon

import (
	"context"
	"net"
	"runtime"

	"github.com/coppice-dev/coppice/internal/fault"
)

func needsLinux() error {
	return fault.New(fault.Unsupported, "sandboxes require Linux: on %s, coppice is only a client",
		runtime.GOOS).
		WithHint("run coppice on a Linux machine or virtual machine, forward its socket and set COPPICE_SOCKET: ssh -N " +
			"-L /tmp/coppice.sock:.local/share/coppice/daemon.sock HOST")
}

func (s Starter) start(context.Context) error { return needsLinux() }

// Serve returns an error: it requires Linux.
func Serve(context.Context, Options) error { return needsLinux() }

// RealIDs returns -1 for both: there are no user namespaces on this system.
func RealIDs(string) (uid, gid int) { return -1, -1 }

// Peer returns 0: no daemon runs on this system.
func Peer(net.Conn) int { return 0 }

// Locker returns false: no daemon runs on this system.
func Locker(string) (pid int, ok bool) { return 0, false }

// Locks returns false: no daemon runs on this system.
func Locks(string, int) bool { return false }
