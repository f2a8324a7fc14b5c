//go:build linux

package spare

import (
	"os"
	"syscall"
)

// umount is the whole of the process that gVisor starts to take /proc away from its kernel
// when that has read a byte from it: "umount --sync-fd=3 /proc" (runsc/cmd/sandboxsetup,
// ExecProcUmounter). Its kernel waits for it at each start, and for nothing of it but these
// two calls. It returns in every other process, and where it was asked for anything else,
// which gVisor's own command then does.
func umount(args []string) {
	if len(args) != 4 || args[0] != umountArgv0 || args[1] != "umount" || args[2] != "--sync-fd=3" || args[3] != "/proc" {
		return
	}
	var b [1]byte
	n, err := syscall.Read(3, b[:])
	for err == syscall.EINTR {
		n, err = syscall.Read(3, b[:])
	}
	if err == nil && n != len(b) {
		err = syscall.EPIPE // the kernel has ended
	}
	if err == nil {
		err = syscall.Unmount(args[3], syscall.MNT_DETACH)
	}
	if err != nil {
		_, _ = os.Stderr.WriteString("coppice-gvisor: take /proc away: " + err.Error() + "\n")
		os.Exit(1) //nolint:forbidigo // the process is this and nothing more
	}
	os.Exit(0) //nolint:forbidigo // as above
}
