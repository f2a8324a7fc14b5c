//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRecover_IgnoresPlantedEntries checks that an entry that a sandbox puts at the path of the workshop does not
// prevent its start, and that an error that the sandbox's files cannot cause does.
func TestRecover_IgnoresPlantedEntries(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(at string) error{
		"a file":         func(at string) error { return os.WriteFile(at, nil, 0o600) },
		"a link":         func(at string) error { return os.Symlink("/", at) },
		"open to others": func(at string) error { return os.Mkdir(at, 0o755) },
		"a link to nowhere": func(at string) error {
			return errors.Join(os.Mkdir(at, 0o700), os.Symlink("no/such/place", filepath.Join(at, journalFrom)))
		},
	} {
		dir := t.TempDir()
		if err := plant(filepath.Join(dir, journalName)); err != nil {
			t.Fatal(err)
		}
		left, err := recoverBelow(dir)
		if err != nil || left == nil || left.Mount != dir {
			t.Errorf("%s: %v, %v, want it in left", name, left, err)
		}
	}
	if left, err := recoverBelow(t.TempDir()); left != nil || err != nil {
		t.Errorf("without a workshop: %v, %v", left, err)
	}
	for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO, unix.ENOSYS, unix.EBADF} {
		if isOfFiles(err) {
			t.Errorf("%v is not caused by the files of a sandbox", err)
		}
	}
}
