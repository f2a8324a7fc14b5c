//go:build linux && (amd64 || arm64)

package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/seccomp"
)

// argRefused is the argv[0] of a process that installs the filters and makes calls that are refused.
const argRefused = "notify-refused"

// beRefused makes calls while a listener exists and after it has ended. The process serves itself: its earlier threads
// have no filter.
func beRefused() int {
	told := seccomp.Options{Report: true}
	listener, calls, done := make(chan int, 1), make(chan func(), 1), make(chan struct{})
	var failed error
	go func() {
		runtime.LockOSThread()
		fd := -1
		failed = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if failed == nil {
			fd, failed = seccomp.Install(seccomp.Notifying(seccomp.NotifyOptions{Refuse: told}), seccomp.Listener)
		}
		if failed == nil {
			_, failed = seccomp.Install(seccomp.Hardening(told), 0)
		}
		listener <- fd
		for f := range calls {
			f()
			done <- struct{}{}
		}
	}()
	fd := <-listener
	if failed != nil {
		return complain("install: %v", failed)
	}
	bpf := func() { _, _, e := unix.RawSyscall(unix.SYS_BPF, 0, 0, 0); fmt.Println("bpf", int(e)) }
	mount := func() { fmt.Println("mount", int(errno(unix.Mount("x", "/", "tmpfs", 0, "")))) }
	file := os.NewFile(uintptr(fd), "listener")
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		_ = Serve(ctx, file,
			Options{Refusals: seccomp.RefusalsOf(told), Refused: func(r Refusal) { fmt.Println("told", r.Call, int(r.Errno)) }})
	})
	for _, f := range []func(){bpf, mount} {
		calls <- f
		<-done
	}
	stop()
	serving.Wait()
	calls <- bpf // waits for a listener
	file.Close()
	<-done
	calls <- mount
	<-done
	return 0
}

func errno(err error) (e unix.Errno) {
	_ = errors.As(err, &e)
	return e
}

// TestRefusedCalls_StayRefusedWithoutListener checks that a call that would be reported is refused even if no listener
// is left.
func TestRefusedCalls_StayRefusedWithoutListener(t *testing.T) {
	t.Parallel()
	out, err := (&exec.Cmd{Path: "/proc/self/exe", Args: []string{argRefused}}).CombinedOutput()
	got := strings.Fields(string(out))
	want := strings.Fields(
		fmt.Sprintf("told bpf %d bpf %[1]d told mount %[1]d mount %[1]d bpf %d mount %[2]d", int(unix.EPERM),
			int(unix.ENOSYS)))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %q, want %q", err, got, want)
	}
}
