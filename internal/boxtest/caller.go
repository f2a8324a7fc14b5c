//go:build linux && (amd64 || arm64)

package boxtest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/seccomp"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// CallerArgv0 is the prefix of the argv[0] with which the test binary makes system calls in a box. The binary must then
// call CallerMain.
const CallerArgv0 = "refused-caller"

// noFD is neither an open descriptor nor a command of bpf(2).
const noFD = 1 << 20

// callerAt is the path at which giveCaller installs the binary.
const callerAt = "/usr/local/bin/" + CallerArgv0

// CallerMain makes system calls that are refused, as args specify, and writes their results: "all" makes each of them
// once; "many" makes one of them N times; "wait" does the same, and then waits forever; "free" makes N calls that the
// filter examines and allows; "open" opens a file N times, which must fail, and "each" N files whose names begin so.
func CallerMain(args []string, out io.Writer) int {
	switch {
	case len(args) == 2 && args[1] == "all":
		for _, c := range refusedCalls() {
			_, _ = fmt.Fprintln(out, c.name, int(c.make()))
		}
	case len(args) == 3:
		call, want := uintptr(unix.SYS_BPF), unix.EPERM
		if args[1] == "free" {
			call, want = unix.SYS_IOCTL, unix.EBADF
		}
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return 2
		}
		began := time.Now()
		for range n {
			if _, _, e := unix.RawSyscall(call, noFD, 0, 0); e != want {
				return 3
			}
		}
		_, _ = fmt.Fprintln(out, time.Since(began).Nanoseconds())
		if args[1] == "wait" {
			select {}
		}
	case len(args) == 4:
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return 2
		}
		for i := range n {
			name := args[3]
			if args[1] == "each" {
				name += strconv.Itoa(i)
			}
			if f, err := os.Open(name); err == nil {
				_ = f.Close()
				return 3
			}
		}
	default:
		return 2
	}
	return 0
}

// giveCaller installs the caller in the box.
func giveCaller(t testing.TB, c *plan.Config) {
	t.Helper()
	i := slices.IndexFunc(c.Spec.Overlays, func(o rootspec.Overlay) bool { return o.Target == "/usr" })
	bin := filepath.Join(c.Spec.Overlays[i].Upper, "local/bin")
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.MkdirAll(bin, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(bin, CallerArgv0), self, 0o755) //nolint:gosec // a program
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refusedCall is a call whose refusal is reported.
type refusedCall struct {
	name string
	nr   uint32
	args [6]uint64
	want unix.Errno
}

// refusedCalls returns one of each call.
func refusedCalls() (out []refusedCall) {
	table := seccomp.RefusalsOf(seccomp.Options{Netlink: true, Report: true})
	args := map[uint32][6]uint64{
		unix.SYS_SOCKET:            {unix.AF_VSOCK, unix.SOCK_STREAM},
		unix.SYS_SOCKETPAIR:        {unix.AF_TIPC, unix.SOCK_STREAM},
		unix.SYS_IOCTL:             {0, 0x5412},
		unix.SYS_CLONE:             {unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)},
		unix.SYS_UNSHARE:           {unix.CLONE_NEWUSER},
		unix.SYS_PRLIMIT64:         {1, unix.RLIMIT_NOFILE},
		unix.SYS_PERSONALITY:       {0x400000},
		unix.SYS_PTRACE:            {unix.PTRACE_ATTACH, 1},
		unix.SYS_PROCESS_VM_READV:  {1},
		unix.SYS_PROCESS_VM_WRITEV: {1},
	}
	for nr := range table {
		name, want, _ := table.Answer(nr, args[nr])
		out = append(out, refusedCall{name, nr, args[nr], want})
	}
	slices.SortFunc(out, func(a, b refusedCall) int { return int(a.nr) - int(b.nr) })
	return out
}

// make makes the call, on a thread that does nothing else at the same time.
func (c refusedCall) make() unix.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var a [6]uintptr
	for i, v := range c.args {
		a[i] = uintptr(v)
	}
	_, _, e := unix.RawSyscall6(uintptr(c.nr), a[0], a[1], a[2], a[3], a[4], a[5])
	return e
}
