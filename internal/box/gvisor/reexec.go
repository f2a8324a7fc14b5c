//go:build linux && (amd64 || arm64)

package gvisor

import (
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/coppice-dev/coppice/internal/box/gvisor/filters"
	"github.com/coppice-dev/coppice/internal/box/gvisor/spare"
)

// init makes the process a conductor, or one of gVisor's, when the binary was started by
// that name, so that no program that imports this package has to. It does nothing else.
func init() {
	switch {
	case spare.IsConductor(os.Args):
		os.Exit(Main()) //nolint:forbidigo // the process is a conductor and nothing more
	case spare.IsKernel(os.Args):
		runsc()
	}
}

// gcPercent is GOGC of gVisor's processes: at most 16 MiB of an idle one.
const gcPercent = 400

// runsc is one of gVisor's processes; it does not return.
func runsc() {
	debug.SetGCPercent(gcPercent)
	if err := keepBounds(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gvisor: keep the bounding set:", err)
		os.Exit(1) //nolint:forbidigo // the process is gVisor's and nothing more
	}
	// gVisor is imported by others as a command, so that its commands are all that there is
	// to call.
	commands := map[util.SubCommand]string{}
	for _, c := range []util.SubCommand{new(sentrycmd.Boot), new(cmd.Gofer), new(sentrycmd.Umount)} {
		commands[c] = "internal"
	}
	calls := newCalls()
	if err := calls.install(); err != nil {
		fmt.Fprintln(os.Stderr, "coppice-gvisor: answer system calls:", err)
		os.Exit(1) //nolint:forbidigo // the process is gVisor's and nothing more
	}
	registerSinks(calls)
	filters.Register()
	cli.Run(nil, commands, []subcommands.Command{})
	os.Exit(0) //nolint:forbidigo // the process is gVisor's and nothing more
}

// keepBounds gives up the capability to lower the bounding set, of every thread. gVisor
// would do that for each capability, and each time stops all threads, for 20 ms in all. The
// set counts at an execve(2) alone, which both filters of its processes refuse, and where
// no_new_privs, which these filters come with, gives nothing back.
func keepBounds() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_SETPCAP
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 && errno != unix.ENOTSUP { // with cgo, of which gVisor starts itself again
		return errno
	}
	return nil
}
