package layer

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestNoCopy_ReturnsOnlyFailuresOfHost covers a snapshot that lacks a directory, or has one that this process may not
// read. A lack of descriptors says nothing about the content of a snapshot.
func TestNoCopy_ReturnsOnlyFailuresOfHost(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, notFound("/d"), unix.EACCES, fault.Wrap(unix.ENOENT, "read"), unix.ESTALE} {
		if got := noCopy(err); got != nil {
			t.Errorf("noCopy(%v) = %v, want nil", err, got)
		}
	}
	for _, err := range []error{unix.EMFILE, unix.ENFILE, fault.Wrap(unix.ENOMEM, "read"), context.Canceled, errLost} {
		if got := noCopy(err); !errors.Is(got, err) {
			t.Errorf("noCopy(%v) = %v, want the error", err, got)
		}
	}
}
