//go:build linux && (amd64 || arm64)

package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// promptly is the maximum duration of an interrupted command: a fraction of limit.StartSeconds, after which a start
// is cancelled anyway.
const promptly = 20 * time.Second

// stuck executes the program with its arguments under a seccomp filter that makes each init hang in pivot_root(2):
// the call waits for an answer on the listener of the filter, which no process reads.
func stuck() {
	runtime.LockOSThread() // the filter applies to this thread, which executes the program
	p := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PIVOT_ROOT, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		fd, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
			uintptr(unsafe.Pointer(&prog)))
		if err = e; e == 0 {
			_, err = unix.FcntlInt(fd, unix.F_SETFD, 0) // it stays open while the program runs
		}
	}
	if err == nil {
		err = syscall.Exec("/proc/self/exe", append([]string{"coppice"}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintln(os.Stderr, "stuck:", err)
	os.Exit(1)
}

// stuckClient is a running coppice, with its output.
type stuckClient struct {
	*exec.Cmd
	out bytes.Buffer
}

// run starts a command of the CLI with the home.
func (d *doomed) run(ctx context.Context, args ...string) *stuckClient {
	d.t.Helper()
	c := &stuckClient{Cmd: exec.CommandContext(ctx, "coppice", args...)}
	c.Env = append(os.Environ(), "COPPICE_HOME="+d.home)
	c.Stdout, c.Stderr = &c.out, &c.out
	if err := c.Start(); err != nil {
		d.t.Fatal(err)
	}
	return c
}

// ends waits until the command exits, which must be promptly, and returns its exit code, 128+n for signal n.
func (c *stuckClient) ends(t *testing.T) int {
	t.Helper()
	late := time.AfterFunc(promptly, func() { _ = c.Process.Signal(unix.SIGQUIT) })
	defer late.Stop()
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	t.Logf("%q: %v: %.500s", c.Args[1:], c.ProcessState, &c.out)
	ws := c.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		if ws.Signal() == unix.SIGQUIT {
			t.Fatalf("%q did not exit", c.Args[1:])
		}
		return 128 + int(ws.Signal())
	}
	if !late.Stop() {
		t.Fatalf("%q did not exit", c.Args[1:])
	}
	return ws.ExitStatus()
}

// inits lists the init processes of a sandbox.
func inits(t *testing.T, id string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err == nil && strings.HasPrefix(string(b), "coppice-init\x00"+id+"\x00") {
			pids = append(pids, name)
		}
	}
	return pids
}

// awaitInits waits until a sandbox has an init, which hangs, or has none.
func awaitInits(t *testing.T, id string, some bool) {
	t.Helper()
	for end := time.Now().Add(promptly); len(inits(t, id)) > 0 != some; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("inits of %s: %v", id, inits(t, id))
		}
	}
}

// TestHangingStart_IsCancelled checks that a client of a hanging start exits at a signal, that the daemon then
// cancels the start, and that stop and rm do not wait for it.
func TestHangingStart_IsCancelled(t *testing.T) {
	t.Parallel()
	d := newDoomed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	d.ready(ctx)
	if code := d.run(ctx, "create", "hung", "--no-repo", "--tier", "process").ends(t); code != 0 {
		t.Fatalf("create: %d", code)
	}
	s, err := d.client.Status(ctx, "hung")
	if err != nil {
		t.Fatal(err)
	}
	d.kill()
	d.startAs("stuck")
	d.ready(ctx)
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		for _, args := range [][]string{{"exec", "hung", "--", "true"}, {"exec", "-i", "hung", "--", "cat"}} {
			c := d.run(ctx, args...)
			awaitInits(t, s.Sandbox.ID, true)
			if err := c.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := c.ends(t); code != 128+int(sig) {
				t.Errorf("%q at %v: exit code %d", args, sig, code)
			}
			awaitInits(t, s.Sandbox.ID, false)
		}
	}
	c := d.run(ctx, "exec", "hung", "--", "true")
	awaitInits(t, s.Sandbox.ID, true)
	if code := d.run(ctx, "stop", "hung").ends(t); code != 0 {
		t.Errorf("stop: %d", code)
	}
	if code := c.ends(t); code == 0 {
		t.Error("exec succeeded in a sandbox that was stopped while it started")
	}
	awaitInits(t, s.Sandbox.ID, false)
	c = d.run(ctx, "exec", "hung", "--", "true")
	awaitInits(t, s.Sandbox.ID, true)
	if code := d.run(ctx, "rm", "--force", "hung").ends(t); code != 0 {
		t.Errorf("rm --force: %d", code)
	}
	if code := c.ends(t); code == 0 {
		t.Error("exec succeeded in a sandbox that was removed while it started")
	}
	awaitInits(t, s.Sandbox.ID, false)
}
