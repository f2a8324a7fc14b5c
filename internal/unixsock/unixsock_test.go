//go:build linux

package unixsock_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/unixsock"
)

func TestListen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o600, 0o666, 0o600} { // each replaces the previous one
		ln, err := unixsock.Listen(dir, "s", mode)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(filepath.Join(dir, "s"))
		if err != nil || info.Mode() != os.ModeSocket|mode {
			t.Errorf("%v, %v; not %v", info.Mode(), err, mode)
		}
		var served sync.WaitGroup
		served.Go(func() {
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			_, err = io.WriteString(c, "hello")
			if err = errors.Join(err, c.Close()); err != nil {
				t.Error(err)
			}
		})
		c, err := unixsock.Dial(dir, "s")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		served.Wait()
		if err := errors.Join(c.Close(), ln.Close()); err != nil {
			t.Error(err)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
			t.Errorf("%v, %v", names, err)
		}
	}
	if _, err := unixsock.Dial(dir, "s"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed socket: %v", err)
	}
}

func TestListen_Errors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := unixsock.Listen(filepath.Join(dir, "none"), "s", 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := unixsock.Dial(dir, "s"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "s", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := unixsock.Listen(dir, "s", 0o600); err == nil {
		t.Error("a socket replaced a directory")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("left over: %v, %v", names, err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := unixsock.Listen(filepath.Join(dir, "link"), "s", 0o600); !errors.Is(err, unix.ENOTDIR) &&
		!errors.Is(err, unix.ELOOP) {
		t.Errorf("a link was followed: %v", err)
	}
}

// TestListen_KeepsUmask checks that files that other threads create meanwhile get the mode that they request.
func TestListen_KeepsUmask(t *testing.T) {
	t.Parallel()
	dir, made := t.TempDir(), t.TempDir()
	var done sync.WaitGroup
	done.Go(func() {
		for range 300 {
			ln, err := unixsock.Listen(dir, "s", 0o600)
			if err == nil {
				err = ln.Close()
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 3000 {
		p := filepath.Join(made, "f")
		f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err = errors.Join(err, f.Close(), os.Remove(p)); err != nil || info.Mode() != 0o644 {
			t.Fatalf("%v, %v", info.Mode(), err)
		}
	}
	done.Wait()
}

// TestListenPackets checks that messages keep their boundaries, and that the listener accepts its own user.
func TestListenPackets(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := unixsock.ListenPackets(dir, "s", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := unixsock.DialPackets(dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	own, err := unixsock.Own{UnixListener: ln}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, m := range []string{"one", "two"} {
		if _, err := io.WriteString(c, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"one", "two"} {
		b := make([]byte, 100)
		if n, err := own.Read(b); err != nil || string(b[:n]) != want {
			t.Errorf("%q, %v", b[:n], err)
		}
	}
}
