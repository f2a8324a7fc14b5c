//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/limit"
)

func TestUndo_ErrorNamesEndOfDeepPath(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("\x01", 250)
	work, dir := openDir(t, t.TempDir()), openDir(t, t.TempDir())
	// A directory on one side and a file on the other cannot be merged.
	descend(t, work, journalTree, name, func(fd int) error { return unix.Mkdirat(fd, "conflict", 0o755) })
	descend(t, dir, "victim", name, func(fd int) error { return unix.Mknodat(fd, "conflict", unix.S_IFREG|0o644, 0) })
	err := undo(work, dir, "victim")
	if !errors.Is(err, unix.ENOTDIR) || !strings.Contains(err.Error(), `/conflict"`) {
		t.Fatalf("%.200v", err)
	}
	if n := len(err.Error()); n > 4*limit.MessagePath+100 {
		t.Errorf("the message has %d bytes", n)
	}
}

// openDir opens a directory. The test closes it.
func openDir(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// descend creates a directory top in dir, with 300 nested directories called name in it, and calls bottom for the
// innermost.
func descend(t *testing.T, dir int, top, name string, bottom func(fd int) error) {
	t.Helper()
	dir, err := unix.Dup(dir)
	for i := 0; err == nil && i < 300; i++ {
		next := name
		if i == 0 {
			next = top
		}
		if err = unix.Mkdirat(dir, next, 0o755); err == nil {
			above := dir
			dir, err = unix.Openat(above, next, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			unix.Close(above)
		}
	}
	if err == nil {
		err = bottom(dir)
		unix.Close(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
}
