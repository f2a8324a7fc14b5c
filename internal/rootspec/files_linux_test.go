package rootspec_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

// filesOf returns the Files of a directory as the root.
func filesOf(t *testing.T, dir string) rootspec.Files {
	t.Helper()
	f := rootspec.Files{Regions: []rootspec.Region{{At: "/", Open: true}}}
	for at, fd := range map[string]*int{dir: &f.Root, "/proc": &f.Proc} {
		var err error
		if *fd, err = unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(*fd) })
	}
	return f
}

// watched returns a function that reports whether the file was opened since the last call.
func watched(t *testing.T, name string) (opened func() bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, name, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		n, _ := unix.Read(fd, make([]byte, 64<<10))
		return n > 0
	}
}

func TestFiles_OpenOnlyInspectedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("file"), []byte("text"), 0o644),
		os.WriteFile(at("large"), make([]byte, 11), 0o644), os.WriteFile(at("decoy"), []byte("decoy"), 0o644),
		os.WriteFile(at("empty"), nil, 0o644), os.Mkdir(at("dir"), 0o755), unix.Mkfifo(at("fifo"), 0o644),
		os.Symlink("/file", at("link")), os.Symlink("/decoy", at("decoylink")),
		os.Symlink("../../decoy", at("dir/up")), os.Symlink("/proc/self/fd/0", at("magic")),
		os.Symlink("loop", at("loop"))); err != nil {
		t.Fatal(err)
	}
	f := filesOf(t, dir)
	f.Regions = append(f.Regions, rootspec.Region{At: at("decoy"), Decoy: true}) // as the kernel reports it
	opened := map[string]func() bool{}
	for _, name := range []string{"decoy", "large", "fifo"} {
		opened[name] = watched(t, at(name))
	}
	for name, want := range map[string]string{"/file": "text", "/link": "text", "/empty": "", "/large": "none",
		"/decoy": "none", "/decoylink": "none", "/dir/up": "none",
		"/dir": "none", "/fifo": "none", "/magic": "none", "/loop": "none", "/nothing": "none", "/file/x": "none"} {
		got := "none"
		found, err := f.Find(name, 10)
		if err != nil {
			t.Fatal(err)
		}
		if found != nil {
			b, err := found.ReadAll()
			if err != nil || b == nil {
				t.Errorf("%s: %v", name, err)
			}
			got = string(b)
			found.Close()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, was := range opened {
		if was() {
			t.Errorf("%s was opened", name)
		}
	}
}

// TestFiles_RecognizeHoneytokensByDevice covers a honeytoken in a mount of the host: a rename outside can move it to
// a path that does not identify it.
func TestFiles_RecognizeHoneytokensByDevice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "moved"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := filesOf(t, dir)
	for other, want := range map[uint64]bool{0: true, 1: false} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		f.Decoys = st.Dev * other
		found, err := f.Find("/moved", 10)
		if err != nil || (found != nil) != want {
			t.Errorf("device %d: %v, %v", f.Decoys, found, err)
		}
		if found != nil {
			found.Close()
		}
	}
}

// TestFiles_DoNotOpenSwappedHoneytoken replaces the file with a link to a honeytoken between the lookup and the
// opening.
func TestFiles_DoNotOpenSwappedHoneytoken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("store"), []byte("text"), 0o644),
		os.WriteFile(at("decoy"), []byte("decoy"), 0o644), os.Symlink("decoy", at("link"))); err != nil {
		t.Fatal(err)
	}
	f := filesOf(t, dir)
	f.Regions = append(f.Regions, rootspec.Region{At: at("decoy"), Decoy: true})
	opened := watched(t, at("decoy"))
	end := make(chan struct{})
	var swap sync.WaitGroup
	swap.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, at("store"), unix.AT_FDCWD, at("link"), unix.RENAME_EXCHANGE)
			}
		}
	})
	defer swap.Wait()
	defer close(end)
	read := 0
	for range 5000 {
		found, err := f.Find("/store", 10)
		if err != nil {
			t.Fatal(err)
		}
		if found == nil {
			continue
		}
		b, err := found.ReadAll()
		found.Close()
		if err != nil || string(b) != "text" {
			t.Fatalf("%q, %v", b, err)
		}
		read++
	}
	if opened() || read == 0 {
		t.Errorf("the decoy was opened, or the file was read only %d times", read)
	}
}

func TestFiles_DoNotWaitForALease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "leased")
	if err := os.WriteFile(name, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	holder, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("needs lease: " + err.Error())
	}
	found, err := filesOf(t, dir).Find("/leased", 10)
	if err != nil || found == nil {
		t.Fatal(found, err)
	}
	defer found.Close()
	if b, err := found.ReadAll(); b != nil || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}
