package daemon

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLocker(t *testing.T) {
	home := t.TempDir()
	if pid, ok := Locker(home); ok {
		t.Errorf("an empty directory is locked by %d", pid)
	}
	name := filepath.Join(home, "lock")
	if err := os.WriteFile(name, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, ok := Locker(home); ok {
		t.Errorf("%d is reported as the holder of a free lock", pid)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if pid, ok := Locker(home); !ok || pid != os.Getpid() {
		t.Errorf("locked by %d, %v; want %d", pid, ok, os.Getpid())
	}
	if err := os.WriteFile(name, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, ok := Locker(home); ok {
		t.Errorf("%d, which the file names, is reported as the holder", pid)
	}
}

func TestHasLocked(t *testing.T) {
	const locks = "1: FLOCK  ADVISORY  WRITE 435 00:27:277 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 436 00:27:277 0 EOF\n2: " +
		"POSIX  ADVISORY  WRITE 437 00:27:265 128 128\n3: FLOCK"
	for _, c := range []struct {
		pid   int
		inode uint64
		want  bool
	}{{435, 277, true}, {435, 77, false}, {436, 277, false}, {437, 265, false}, {43, 277, false}} {
		if got := hasLocked([]byte(locks), c.pid, c.inode); got != c.want {
			t.Errorf("%d has locked %d: %v", c.pid, c.inode, got)
		}
	}
}
