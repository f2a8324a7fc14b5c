package memory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// again repeats fn while a signal interrupts it.
func again[T any](fn func() (T, error)) (T, error) {
	for {
		v, err := fn()
		if err != unix.EINTR { //nolint:errorlint // a bare errno, from the call itself
			return v, err
		}
	}
}

// readAt reads a whole file beneath dir, which must have at most most bytes.
func readAt(dir int, name string, most int64) ([]byte, error) {
	fd, st, err := dirfd.OpenRegular(dir, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if st.Size > most {
		return nil, fault.New(fault.Corrupt, "%s has %d bytes, more than the limit of %d", name, st.Size, most)
	}
	b := make([]byte, st.Size)
	return b, readFull(fd, b, 0)
}

// readFull fills p, starting at offset off.
func readFull(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := again(func() (int, error) { return unix.Pread(fd, p, off) })
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// onDisk returns the disk space of a file, in bytes.
func onDisk(st *unix.Stat_t) int64 { return st.Blocks * 512 }

// remove deletes dir/name and its content. A missing file is not an error.
func remove(fs vfs.FS, dir int, name string) error {
	st, err := dirfd.Lstat(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if !dirfd.IsDir(&st) {
		return fs.Unlink(dir, name)
	}
	fd, err := dirfd.OpenDir(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	inside, err := dirfd.Names(fd)
	if err != nil {
		return err
	}
	for _, one := range inside {
		if err := remove(fs, fd, one); err != nil {
			return err
		}
	}
	return fs.Rmdir(dir, name)
}

// scratch returns a name that no entry of tmp has.
func scratch(what string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the program exits instead
	return what + "-" + hex.EncodeToString(b[:])
}

// lock is a mutex with a cancelable wait.
type lock chan struct{}

func newLock() lock { return make(lock, 1) }

// take waits for the lock, or until ctx is canceled.
func (l lock) take(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// try takes the lock if it is free.
func (l lock) try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l lock) free() { <-l }

// transient reports whether err is due to the reader, and not to the data.
func transient(err error) bool {
	for _, one := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EACCES, unix.EPERM, context.Canceled,
		context.DeadlineExceeded} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// usage returns the disk space of a directory and the files in it. Files that have names elsewhere count only if all
// is set.
func usage(dir int, name string, all bool) int64 {
	st, err := dirfd.Lstat(dir, name)
	if err != nil {
		return 0
	}
	total := onDisk(&st)
	if !dirfd.IsDir(&st) {
		return total
	}
	fd, err := dirfd.OpenDir(dir, name)
	if err != nil {
		return total
	}
	defer unix.Close(fd)
	inside, err := dirfd.Names(fd)
	if err != nil {
		return total
	}
	for _, one := range inside {
		if st, err := dirfd.Lstat(fd, one); err == nil && (all || st.Nlink == 1) {
			total += onDisk(&st)
		}
	}
	return total
}
