//go:build linux && (amd64 || arm64)

package boxtest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// inside opens the root as processes see it or, in tier workspace, the tree.
func (b *Box) inside(t testing.TB) *boxfs.Root {
	t.Helper()
	in, err := b.OpenRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	dir := in.Dir
	if (dir == nil) != (b.Config.Tier == plan.TierWorkspace) {
		t.Fatalf("root %v in tier %s", dir, b.Config.Tier)
	}
	if dir == nil {
		fd, err := unix.Open(b.Config.Spec.Bind, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dir = os.NewFile(uintptr(fd), "tree")
	}
	u := boxfs.User{UID: in.User.UID, GID: in.User.GID, Groups: in.User.Groups}
	for _, m := range in.User.UIDs {
		u.UIDs = append(u.UIDs, boxfs.IDMap(m))
	}
	for _, m := range in.User.GIDs {
		u.GIDs = append(u.GIDs, boxfs.IDMap(m))
	}
	r, err := boxfs.New(
		boxfs.Options{Dir: dir, User: u, Fixed: b.Config.Access.Fixed(), Decoys: b.decoyPaths(), Unseen: in.Unseen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// unseen checks that files in the memory of the box are refused from outside.
func unseen(t *testing.T, b *Box, r *boxfs.Root) {
	t.Helper()
	if x := b.Sh(t, "echo x >/tmp/in; ln -s /tmp /home/way; echo x >/home/from"); x.Exit.Code != 0 {
		t.Fatalf("%+v", x)
	}
	read := func(p string) func() error {
		return func() error { _, err := r.ReadFile(p); return err }
	}
	write := func(p string) func() error {
		return func() error {
			_, err := r.WriteFile(t.Context(), p, strings.NewReader("x"), writeOptions(0o644))
			return err
		}
	}
	for about, do := range map[string]func() error{
		"read":              read("/tmp/in"),
		"read in /run":      read("/run/lock"),
		"read in another":   read("//tmp/../tmp/none"),
		"write":             write("/tmp/out"),
		"write by a link":   write("/home/way/out"),
		"list":              func() error { _, err := r.List(t.Context(), "/tmp", -1); return err },
		"list by a link":    func() error { _, err := r.List(t.Context(), "/home/way/", -1); return err },
		"make":              func() error { return r.Mkdir("/tmp/dir", 0o755, true) },
		"remove":            func() error { return r.Remove(t.Context(), "/tmp/in", false) },
		"move there":        func() error { return r.Move("/home/from", "/tmp/to") },
		"move there by way": func() error { return r.Move("/home/from", "/home/way/to") },
		"move from there":   func() error { return r.Move("/tmp/in", "/home/to") },
		"pack":              func() error { return r.TarTo(t.Context(), "/tmp", io.Discard) },
		"unpack":            func() error { _, err := r.TarFrom(t.Context(), "/tmp", archived(t, "f")); return err },
	} {
		if err := do(); !fault.Is(err, fault.Unsupported) || !strings.Contains(fault.HintOf(err), "coppice exec") {
			t.Errorf("%s: %v (%s)", about, err, fault.HintOf(err))
		}
	}
	if x := b.Sh(t, "ls -A /tmp; cat /home/from"); x.Stdout != "in\nx\n" {
		t.Errorf("%+v", x)
	}
}

func writeOptions(mode uint32) wire.WriteOptions { return wire.WriteOptions{Mode: &mode} }

var insides = []check{
	{"the root from outside is what processes see", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		r := b.inside(t)
		at := func(p string) string { // the path as seen inside
			if tier.Name == plan.TierWorkspace {
				return filepath.Join(b.Config.Spec.Bind, p)
			}
			return p
		}
		dir := "/home/files"
		if tier.Name == plan.TierWorkspace {
			dir = "/files"
		}
		dirs := []string{dir}
		switch tier.Name {
		case plan.TierWorkspace:
		case plan.TierGvisor: // there it is in the memory of the box
			unseen(t, b, r)
		default:
			dirs = append(dirs, "/tmp") // the box has its own mount there
		}
		for _, d := range dirs {
			if x := b.Sh(t, fmt.Sprintf("mkdir -p %[1]s; echo from inside > %[1]s/in", at(d))); x.Exit.Code != 0 {
				t.Fatalf("%+v", x)
			}
			f, err := r.ReadFile(d + "/in")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(f)
			f.Close()
			if string(text) != "from inside\n" {
				t.Errorf("%s: %q", d, text)
			}
			mine := f.Info()
			info, err := r.WriteFile(t.Context(), d+"/new/out", strings.NewReader("from outside"), writeOptions(0o4711))
			if err != nil {
				t.Fatal(err)
			}
			x := b.Sh(t,
				fmt.Sprintf(
					"cat %[1]s/new/out; stat -c ' %%a %%u:%%g' %[1]s/new/out; stat -c '%%a' %[1]s/new; echo more >> %[1]s/in", at(d)))
			want := fmt.Sprintf("from outside 4711 %d:%d\n755\n", mine.UID, mine.GID)
			if x.Exit.Code != 0 || x.Stdout != want || info.UID != mine.UID || info.GID != mine.GID {
				t.Errorf("%s: %q %q: want %q", d, x.Stdout, x.Stderr, want)
			}
			if x := b.Sh(t, "id -u"); strings.TrimSpace(x.Stdout) != strconv.Itoa(int(mine.UID)) {
				t.Errorf("%s belongs to %d, and commands are %s", d, mine.UID, x.Stdout)
			}
			if err := r.Remove(t.Context(), d+"/new", true); err != nil {
				t.Error(err)
			}
		}
	}},
	{"what is not a file of the sandbox is refused from outside", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		r := b.inside(t)
		b.Sh(t, "ln -s /proc/1/root /tmp/r; ln -s /proc/self/fd/0 /tmp/fd; mkfifo /tmp/fifo; ln -s "+
			"../../../../../../../../var/tmp /tmp/up")
		for _, p := range []string{
			"/proc/version", "/proc/1/environ", "/proc/1/root/etc/passwd", "/proc/self/root/etc/passwd",
			"/sys/devices/system/cpu/online", "/dev/null", "/dev/shm/x",
			"/tmp/r/etc/passwd", "/tmp/fd", "/tmp/fifo",
			"/tmp/up/" + filepath.Base(filepath.Dir(b.Config.RunDir)) + "/run/keeper.log",
		} {
			if f, err := r.ReadFile(p); err == nil {
				f.Close()
				t.Errorf("%s is read", p)
			}
		}
		for _, p := range []string{"/proc/sys/kernel/x", "/dev/x", "/sys/x"} {
			if _, err := r.WriteFile(t.Context(), p, strings.NewReader(""), writeOptions(0o644)); err == nil {
				t.Errorf("%s is written", p)
			}
		}
	}},
	{"the root keeps the box from ending, and from nothing else", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.IdleAfter = 4 * time.Second }) // enough time to open it
		in, err := b.OpenRoot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.Gone():
			t.Fatal("it ended although its root is open")
		case <-time.After(5 * time.Second):
		}
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.OpenRoot(t.Context()) // also while it is frozen
		if err != nil {
			t.Error(err)
		} else {
			if again.Dir != nil {
				again.Dir.Close()
			}
			again.Close()
		}
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		if in.Dir != nil {
			in.Dir.Close()
		}
		in.Close()
		select {
		case <-b.Gone():
		case <-time.After(patience):
			t.Error("it does not end")
		}
	}},
	{"a stop does not wait for an open root", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		in, err := b.OpenRoot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if in.Dir != nil {
			defer in.Dir.Close()
		}
		start := time.Now()
		if err := b.Stop(t.Context(), 0); err != nil || time.Since(start) > patience {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	}},
}
