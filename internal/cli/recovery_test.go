//go:build linux

package cli_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStopDaemon_WhileItRecovers checks that serve --stop stops a daemon that does not listen yet, even if its
// recovery blocks.
func TestStopDaemon_WhileItRecovers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("exec", sandbox, "--", "true")
	d.run("serve", "--stop")
	dirs, err := filepath.Glob(filepath.Join(d.dir, "sandboxes", "*"))
	if err != nil || len(dirs) != 1 {
		t.Fatal(dirs, err)
	}
	note := filepath.Join(dirs[0], "mounted")
	if err := os.Remove(note); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(note, 0o600); err != nil { // never opened for writing
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command("coppice", "serve")
	cmd.Env, cmd.Stderr = d.env, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Opening a FIFO for writing with O_NONBLOCK fails until a reader has opened it (fifo(7)).
	fd := -1
	for deadline := time.Now().Add(patience); fd < 0; time.Sleep(time.Millisecond) {
		fd, err = unix.Open(note, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		select {
		case err := <-ended:
			t.Fatalf("the daemon exited during recovery: %v: %s", err, stderr.String())
		default:
		}
		if err != nil && time.Now().After(deadline) {
			t.Fatalf("recovery did not read the file: %v", err)
		}
	}
	defer unix.Close(fd)
	d.run("serve", "--stop")
	err = <-ended
	if err == nil || !strings.Contains(stderr.String(), "the next start continues") {
		t.Errorf("the daemon exited with %v: %s", err, stderr.String())
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	d.run("exec", sandbox, "--", "true")
}

// TestStopDaemon_KillsOnlyListener covers a daemon behind a forwarded socket, or in another PID namespace: it reports
// a PID that belongs to another process here.
func TestStopDaemon_KillsOnlyListener(t *testing.T) {
	t.Parallel()
	victim := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	defer func() { victim.Process.Kill(); <-ended }()
	dir, err := os.MkdirTemp("", "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"pid": %d}`, victim.Process.Pid)
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = elsewhere.Serve(l) }()
	defer func() { elsewhere.Close(); <-served }()
	cmd := exec.CommandContext(t.Context(), "coppice", "serve", "--stop")
	cmd.Env = append(os.Environ(), "COPPICE_HOME="+filepath.Join(dir, "home"), "COPPICE_SOCKET="+filepath.Join(dir, "s"))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "which is not its PID here") {
		t.Errorf("%v: %s", err, out)
	}
	select {
	case err := <-ended:
		ended <- err
		t.Errorf("the process with the reported PID was killed: %v", err)
	default:
	}
}
