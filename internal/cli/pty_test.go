//go:build linux

package cli_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is the timeout for an expected output of a terminal.
const patience = 60 * time.Second

// desk is a home with one sandbox on the host, for programs typed at a terminal.
type desk struct {
	t   *testing.T
	env []string
	dir string // of the store
	cwd string // of programs at a terminal; "" is that of the test
}

const sandbox = "box"

// newDesk creates the sandbox, with flags of create. Everything is removed when the test ends.
func newDesk(t *testing.T, flags ...string) *desk {
	t.Helper()
	dir, err := os.MkdirTemp("", "desk")
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, dir: filepath.Join(dir, "store")}
	d.env = append(os.Environ(), "COPPICE_HOME="+d.dir, "COPPICE_IDLE=30s", "TERM=xterm-256color", "LANG=C.UTF-8",
		"GORACE=atexit_sleep_ms=0")
	t.Cleanup(func() {
		d.try("rm", "--force", sandbox)
		d.try("serve", "--stop")
		d.killDaemon()
		_ = exec.Command("chmod", "-R", "u+rwx", dir).Run() // files that the daemon's root owned
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if !slices.Contains(flags, "--repo") { // do not use the repository of these tests either
		flags = append([]string{"--no-repo"}, flags...)
	}
	d.run(append([]string{"create", sandbox, "--from", "host"}, flags...)...)
	return d
}

// try runs coppice without a terminal, and returns its stdout.
func (d *desk) try(args ...string) (string, error) {
	cmd := exec.Command("coppice", args...)
	cmd.Env = d.env
	out, err := cmd.Output()
	return string(out), err
}

func (d *desk) run(args ...string) string {
	d.t.Helper()
	out, err := d.try(args...)
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			out += string(ee.Stderr)
		}
		d.t.Fatalf("coppice %q: %v: %s", args, err, out)
	}
	return out
}

// eventually waits until coppice prints want.
func (d *desk) eventually(want string, args ...string) {
	d.t.Helper()
	out := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if out, _ = d.try(args...); strings.Contains(out, want) {
			return
		}
	}
	d.t.Fatalf("coppice %q still prints %q, without %q", args, out, want)
}

// quiet waits until no process runs in the sandbox.
func (d *desk) quiet() {
	d.t.Helper()
	out := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var err error
		if out, err = d.try("ls", "--json"); err == nil && !strings.Contains(out, `"procs"`) {
			return
		}
	}
	d.t.Fatalf("something still runs: %s", out)
}

// killDaemon kills the daemon, if one runs.
func (d *desk) killDaemon() {
	if pid, err := os.ReadFile(filepath.Join(d.dir, "lock")); err == nil {
		_ = exec.Command("kill", "-KILL", strings.TrimSpace(string(pid))).Run()
	}
}

// terminal is a pseudoterminal, on whose slave side coppice runs.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	slave  *os.File
	modes  unix.Termios  // before coppice started
	over   chan struct{} // closed when coppice has exited
	own    sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	shown   string // guarded by mu: complete output
	seen    int    // guarded by mu: length of the output before the position of see
}

// open starts coppice as the session leader of a terminal, like a terminal emulator.
func (d *desk) open(args ...string) *terminal {
	d.t.Helper()
	term := &terminal{t: d.t, over: make(chan struct{})}
	term.changed = sync.NewCond(&term.mu)
	term.master, term.slave = openPTY(d.t)
	term.resize(30, 100)
	m, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		d.t.Fatal(err)
	}
	term.modes = *m
	term.cmd = exec.Command("coppice", args...)
	term.cmd.Env, term.cmd.Dir = d.env, d.cwd
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = term.slave, term.slave, term.slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	term.own.Go(term.read)
	term.own.Go(func() {
		_ = term.cmd.Wait() // ProcessState has the result
		close(term.over)
	})
	d.t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		<-term.over
		term.slave.Close()
		term.master.Close()
		term.own.Wait()
		if d.t.Failed() {
			d.t.Logf("output of the terminal of %q:\n%q", args, term.shown)
		}
	})
	return term
}

// openPTY opens a pseudoterminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("needs a pseudo terminal: %v", err)
	}
	master = os.NewFile(uintptr(fd), "master")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func (term *terminal) read() {
	buf := make([]byte, 4<<10)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		term.shown += string(buf[:n])
		term.mu.Unlock()
		term.changed.Broadcast()
		if err != nil {
			return
		}
	}
}

// see waits until the terminal shows want after its current position, and returns the output up to the end of want.
func (term *terminal) see(want string) string {
	term.t.Helper()
	late := time.AfterFunc(patience, term.changed.Broadcast)
	defer late.Stop()
	deadline := time.Now().Add(patience)
	term.mu.Lock()
	defer term.mu.Unlock()
	for {
		fresh := term.shown[term.seen:]
		if i := strings.Index(fresh, want); i >= 0 {
			term.seen += i + len(want)
			return fresh[:i+len(want)]
		}
		if time.Now().After(deadline) {
			term.t.Fatalf("the terminal shows %q, without %q", fresh, want)
		}
		term.changed.Wait()
	}
}

// enter types keys.
func (term *terminal) enter(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// resize changes the size of the terminal, as the user does with the window.
func (term *terminal) resize(rows, cols uint16) {
	term.t.Helper()
	if err := unix.IoctlSetWinsize(int(term.slave.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: rows, Col: cols}); err != nil {
		term.t.Fatal(err)
	}
}

// signal sends a signal to the CLI.
func (term *terminal) signal(sig syscall.Signal) {
	term.t.Helper()
	if err := term.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		term.t.Fatal(err)
	}
}

// gone waits until coppice exits.
func (term *terminal) gone() {
	term.t.Helper()
	select {
	case <-term.over:
	case <-time.After(patience):
		term.t.Fatal("coppice did not exit")
	}
}

// end waits until coppice exits, and checks the exit code, and that the terminal has its original modes.
func (term *terminal) end(code int) {
	term.t.Helper()
	term.gone()
	if got := term.cmd.ProcessState.ExitCode(); got != code {
		term.t.Errorf("%v, want exit code %d", term.cmd.ProcessState, code)
	}
	m, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	if *m != term.modes {
		term.t.Errorf("the terminal has modes %+v, want %+v", *m, term.modes)
	}
}
