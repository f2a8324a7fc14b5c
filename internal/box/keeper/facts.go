//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/landlock"
	"github.com/coppice-dev/coppice/internal/plan"
)

// hostFacts returns the facts about the host that plan.Decide needs.
func hostFacts() (f plan.Facts, err error) {
	f.Resolv, err = os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
		return f, fault.Wrap(err, "read the host's resolvers")
	}
	if f.Landlock, err = landlock.Version(); err != nil && !noLandlock(err) {
		return f, fault.Wrap(err, "read the version of Landlock")
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return f, fault.Wrap(err, "read the limit of open files")
	}
	f.OpenFiles = files.Max
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return f, fault.Wrap(err, "read the version of the kernel")
	}
	f.Kernel = unix.ByteSliceToString(u.Release[:])
	var major, minor int
	_, _ = fmt.Sscanf(f.Kernel, "%d.%d", &major, &minor)
	f.PidMax = major > 6 || major == 6 && minor >= 14
	return f, nil
}
