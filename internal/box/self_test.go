//go:build linux && (amd64 || arm64)

package box_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/plan"
)

// listenSelf listens as the daemon does: under a temporary name first, which it then renames.
func listenSelf(t *testing.T, dir string, answer string) net.Listener {
	t.Helper()
	name := filepath.Join(dir, plan.SelfName)
	ln, err := net.Listen("unix", name+".new")
	if err == nil {
		ln.(*net.UnixListener).SetUnlinkOnClose(false)
		err = os.Chmod(name+".new", 0o666)
	}
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, answer)
			c.Close()
		}
	}()
	return ln
}

// TestSelf checks that the inside reaches the listener in the run directory, by a name that stays valid when another
// listener replaces it, and that the inside can neither remove nor replace the socket.
func TestSelf(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3: it connects from inside")
	}
	for name, change := range map[string]func(*plan.Config){
		"root":           func(*plan.Config) {},
		"me":             func(c *plan.Config) { c.User = plan.UserMe },
		"host's network": func(c *plan.Config) { c.Net = plan.NetHost },
		"without shifts": func(c *plan.Config) { c.NoIDMap = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config(t)
			c.Self = true
			change(&c)
			dir := filepath.Join(c.RunDir, plan.SelfDir)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			first := listenSelf(t, dir, "first")
			x := (boxtest.Tier{Config: func(testing.TB) plan.Config { return c }}).Start(t)
			const connect = `python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect("` + plan.SelfSocket +
				`"); print(s.recv(99).decode())'`
			if r := x.Sh(t, connect); r.Stdout != "first\n" {
				t.Fatalf("%+v", r)
			}
			first.Close()
			if r := x.Sh(t, connect); r.Exit.Code == 0 {
				t.Errorf("connected without a listener: %+v", r)
			}
			listenSelf(t, dir, "second")
			if r := x.Sh(t, connect); r.Stdout != "second\n" {
				t.Errorf("%+v", r)
			}
			if r := x.Sh(t,
				"ls -A "+plan.SelfAt+"; cd "+plan.SelfAt+
					" && { touch x || rm -f sock || mv sock s || chmod 0 sock; }"); r.Stdout != "sock\n" || r.Exit.Code == 0 {
				t.Errorf("%+v", r)
			}
			if st, err := os.Lstat(filepath.Join(dir, plan.SelfName)); err != nil || st.Mode().Perm() != 0o666 {
				t.Errorf("%v, %v", st, err)
			}
		})
	}
}
