package fault

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestOfHost_ClassifiesErrnos(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno]Kind{
		syscall.ENOSYS: Unsupported, syscall.EINVAL: Unsupported, syscall.EMFILE: Unavailable, syscall.ENOMEM: Unavailable,
		syscall.EIO: Unavailable, syscall.ENOSPC: NoSpace, syscall.EPERM: Denied,
	} {
		err := OfHost(Wrap(fmt.Errorf("clone the mount: %w", errno), "mount /proc"))
		if KindOf(err) != want || !errors.Is(err, errno) {
			t.Errorf("%v: %s: %v", errno, KindOf(err), err)
		}
		if want == Unsupported || want == Unavailable {
			if HintOf(err) == "" {
				t.Errorf("%v: no hint", errno)
			}
		}
	}
	if err := New(Internal, "a bug"); OfHost(err) != error(err) {
		t.Error("an error without an errno is not returned unchanged")
	}
	if OfHost(nil) != nil {
		t.Error("OfHost(nil) is not nil")
	}
}
