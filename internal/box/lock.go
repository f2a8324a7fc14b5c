//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// lockLook is how often a waiter polls the lock of a run directory.
	lockLook = 2 * time.Millisecond
	// settles bounds how long a keeper may take to start or to exit; after that it counts as unreachable.
	settles = 15 * time.Second
)

// lockDir takes the lock of a run directory. It waits for the current holder: an earlier keeper may still be
// releasing the same directories. The lock is held as long as the file is open in any process (flock(2)).
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, protocol.LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fault.Wrap(err, "open the lock of %s", dir)
	}
	for {
		err := tryLock(f, unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			select {
			case <-ctx.Done():
				err = context.Cause(ctx)
			case <-time.After(lockLook):
				continue
			}
		}
		f.Close()
		return nil, fault.Wrap(err, "lock %s", dir)
	}
}

// dirIsHeld reports whether a keeper holds a run directory or is about to.
func dirIsHeld(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, protocol.LockName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fault.Wrap(err, "open the lock of %s", dir)
	}
	defer f.Close()
	err = tryLock(f, unix.LOCK_SH)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, fault.Wrap(err, "inspect the lock of %s", dir)
}

// whileFree calls f while it holds the lock of a run directory. It does not call f if held: a keeper holds the
// directory, or another process for longer than a moment.
func whileFree(dir string, f func() error) (held bool, err error) {
	lock, err := os.Open(filepath.Join(dir, protocol.LockName))
	if err != nil {
		return false, fault.Wrap(err, "open the lock of %s", dir)
	}
	defer lock.Close()
	err = tryLock(lock, unix.LOCK_EX)
	for i := 0; errors.Is(err, unix.EWOULDBLOCK) && i < 5; i++ { // dirIsHeld holds it for a moment
		time.Sleep(lockLook)
		err = tryLock(lock, unix.LOCK_EX)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, fault.Wrap(err, "lock %s", dir)
	}
	return false, f()
}

// tryLock takes a lock without waiting, or returns EWOULDBLOCK.
func tryLock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
