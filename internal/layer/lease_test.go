//go:build linux

package layer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestOpenFileAt_ReportsLease checks that a lease of a process of the host is not reported as an internal error.
func TestOpenFileAt_ReportsLease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EACCES) {
		t.Skip("needs a file system with leases: to take one in the directory of temporary files")
	} else if err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	fd, _, err := openFileAt(int(d.Fd()), "data")
	if !fault.Is(err, fault.Conflict) || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("descriptor %d, %v, want a conflict", fd, err)
	}
}
