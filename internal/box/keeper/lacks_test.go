//go:build linux && (amd64 || arm64)

package keeper

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLacking_DistinguishesLackFromFailure lists every errno that means that the host lacks a feature, without which a
// start continues, and some that are failures.
func TestLacking_DistinguishesLackFromFailure(t *testing.T) {
	t.Parallel()
	failures := []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.EIO, unix.ENOSPC,
		unix.ENAMETOOLONG, unix.EFAULT}
	for _, tt := range []struct {
		name   string
		lacks  func(error) bool
		missed []unix.Errno
		failed []unix.Errno
	}{
		{"Landlock", noLandlock, []unix.Errno{unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM}, []unix.Errno{unix.EINVAL}},
		{"id maps", func(err error) bool { return err != nil && noIDMap(&idMapError{err}) },
			[]unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOSYS}, []unix.Errno{unix.EPERM}},
	} {
		for _, e := range tt.missed {
			if !tt.lacks(&os.PathError{Op: "write", Path: "x", Err: e}) {
				t.Errorf("%s: %v is not taken for a lack", tt.name, e)
			}
		}
		for _, e := range append(tt.failed, failures...) {
			if tt.lacks(fmt.Errorf("write: %w", e)) {
				t.Errorf("%s: %v is taken for a lack", tt.name, e)
			}
		}
		if tt.lacks(nil) {
			t.Errorf("%s: no error is taken for a lack", tt.name)
		}
	}
}
