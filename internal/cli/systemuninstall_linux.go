package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/removal"
)

// removeTree removes a directory with files that sandboxes may have written.
func removeTree(ctx context.Context, dir string) error { return removal.Tree(ctx, dir) }

// isMountPoint reports whether a file system is mounted at a directory.
func isMountPoint(dir string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil // since Linux 5.8
}

// lockHome acquires the lock of a home's daemon until release is called, so that no daemon starts. It fails if a
// daemon holds the lock, which another client may have started.
func lockHome(home string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(home, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "lock the home %s", home)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Conflict, "cannot remove %s: another daemon was started", home).
				WithHint("stop the clients that use it, and repeat: coppice system uninstall")
		}
		return nil, fault.Wrap(err, "lock the home %s", home)
	}
	return func() { f.Close() }, nil
}
