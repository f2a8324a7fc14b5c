package daemon

import (
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/fault"
)

// TestHome_AcceptsLastCallersOnClose checks that clients that connected before the socket was removed are
// accepted, however long that takes, and that the close then waits for no other client.
func TestHome_AcceptsLastCallersOnClose(t *testing.T) {
	t.Parallel()
	h, err := openHome(t.Context(), t.TempDir()+"/home", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ln, err := h.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const callers = 5
	var calls sync.WaitGroup
	for range callers {
		c, err := client.DialSocket(t.Context(), SocketPath(h.path))
		if err != nil {
			t.Fatal(err)
		}
		calls.Go(func() {
			defer c.Close()
			if _, err := io.ReadAll(c); err != nil {
				t.Error(err)
			}
		})
	}
	h.unlisten()
	if c, err := client.DialSocket(t.Context(), SocketPath(h.path)); err == nil {
		c.Close()
		t.Error("the socket still exists")
	}
	calls.Go(func() {
		for range callers {
			time.Sleep(70 * time.Millisecond) // longer than one poll
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		}
	})
	h.acceptLast()
	if waiting(h.ln) {
		t.Error("a connection still waits")
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	calls.Wait()
}

// TestAHome_DoesNotInheritAGroup checks that files in a home do not get the group of a set-group-ID parent
// directory: the user namespace of an ordinary user does not map that group.
func TestAHome_DoesNotInheritAGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chown(dir, -1, 50); err != nil {
		t.Skip("needs real-root: to change a group")
	}
	if err := os.Chmod(dir, 0o770|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	h, err := openHome(t.Context(), dir+"/home", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := os.Mkdir(h.path+"/made", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{h.path, h.path + "/made"} {
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if gid := fi.Sys().(*syscall.Stat_t).Gid; int(gid) != os.Getegid() || fi.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: group %d, %s; want %d and 0700", p, gid, fi.Mode(), os.Getegid())
		}
	}
}

// TestHome_Versions checks that a home whose layers record removals as files keeps the version that older builds refuse,
// and that a later version is refused.
func TestHome_Versions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/home"
	for _, want := range []string{format, formatFiles, formatFiles} {
		h, err := openHome(t.Context(), dir, 0)
		if err != nil {
			t.Fatalf("a home of the version %q: %v", want, err)
		}
		h.Close()
		if b, err := os.ReadFile(dir + "/format"); err != nil || string(b) != want {
			t.Errorf("the home has the version %q, %v; want %q", b, err, want)
		}
		if err := raiseFormat(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/format", []byte("coppice home 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openHome(t.Context(), dir, 0); !fault.Is(err, fault.Version) || fault.HintOf(err) == "" {
		t.Errorf("a home of version 3: %v", err)
	}
}

// TestHome_BeginsWithSecrets checks that what the commands for secrets create before the first daemon becomes a home.
func TestHome_BeginsWithSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/home"
	for _, name := range []string{"programs", "run", "secrets"} {
		if err := os.MkdirAll(dir+"/"+name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h, err := openHome(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if b, err := os.ReadFile(dir + "/format"); err != nil || string(b) != format {
		t.Errorf("%q, %v", b, err)
	}
}
