package vfs

import (
	"errors"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OS returns the real file system.
func OS() FS { return system{} }

// system passes every call to the kernel.
type system struct{}

var _ FS = system{}

// retry calls fn again while a signal interrupts it.
func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Create implements FS.
func (system) Create(dir int, name string, mode uint32) (fd int, err error) {
	for {
		fd, err = unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// Mkdir implements FS.
func (system) Mkdir(dir int, name string, mode uint32) error { return unix.Mkdirat(dir, name, mode) }

// Symlink implements FS.
func (system) Symlink(target string, dir int, name string) error {
	return unix.Symlinkat(target, dir, name)
}

// Mknod implements FS.
func (system) Mknod(dir int, name string, mode uint32, dev uint64) error {
	return unix.Mknodat(dir, name, mode, int(dev))
}

// Link implements FS.
func (system) Link(fromDir int, from string, toDir int, to string) error {
	return unix.Linkat(fromDir, from, toDir, to, 0)
}

// Rename implements FS.
func (system) Rename(fromDir int, from string, toDir int, to string) error {
	return unix.Renameat(fromDir, from, toDir, to)
}

// Unlink implements FS.
func (system) Unlink(dir int, name string) error { return unix.Unlinkat(dir, name, 0) }

// Rmdir implements FS.
func (system) Rmdir(dir int, name string) error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) }

// WriteAt implements FS.
func (system) WriteAt(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.EIO
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// CopyRange implements FS.
func (system) CopyRange(dst, src int, off, n int64) (int64, error) {
	in, out := off, off
	for {
		m, err := unix.CopyFileRange(src, &in, dst, &out, int(n), 0)
		if err != unix.EINTR {
			return int64(m), err
		}
	}
}

// Clone implements FS.
func (system) Clone(dst, src int) error {
	err := unix.IoctlFileClone(dst, src)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ETXTBSY):
		return ErrNoClone
	}
	return err
}

// Truncate implements FS.
func (system) Truncate(fd int, size int64) error {
	return retry(func() error { return unix.Ftruncate(fd, size) })
}

// Punch implements FS.
func (system) Punch(fd int, off, n int64) error {
	err := retry(func() error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return ErrNoPunch
	}
	return err
}

// Chmod implements FS.
func (system) Chmod(fd int, mode uint32) error { return unix.Fchmod(fd, mode&0o7777) }

// ChmodAt implements FS.
func (system) ChmodAt(dir int, name string, mode uint32) error {
	return unix.Fchmodat(dir, name, mode&0o7777, 0)
}

// ChownAt implements FS.
func (system) ChownAt(dir int, name string, uid, gid uint32) error {
	if name == "" {
		return unix.Fchown(dir, int(uid), int(gid))
	}
	return unix.Fchownat(dir, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
}

// SetXattr implements FS.
func (system) SetXattr(fd int, key string, value []byte) error {
	return unix.Fsetxattr(fd, key, value, 0)
}

// SetXattrAt implements FS.
func (system) SetXattrAt(dir int, name, key string, value []byte) error {
	return unix.Lsetxattr(FDPath(dir)+"/"+name, key, value, 0)
}

// RemoveXattr implements FS.
func (system) RemoveXattr(fd int, key string) error { return unix.Fremovexattr(fd, key) }

// RemoveXattrAt implements FS.
func (system) RemoveXattrAt(dir int, name, key string) error {
	return unix.Lremovexattr(FDPath(dir)+"/"+name, key)
}

// Utimes implements FS.
func (system) Utimes(dir int, name string, mtime int64) error {
	sec, nsec := mtime/1e9, mtime%1e9
	if nsec < 0 {
		sec, nsec = sec-1, nsec+1e9
	}
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: sec, Nsec: nsec}}
	if name != "" {
		return unix.UtimesNanoAt(dir, name, ts[:], unix.AT_SYMLINK_NOFOLLOW)
	}
	_, _, e := syscall.Syscall6(unix.SYS_UTIMENSAT, uintptr(dir), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

// Sync implements FS.
func (system) Sync(fd int) error { return retry(func() error { return unix.Fsync(fd) }) }

// SyncFS implements FS.
func (system) SyncFS(fd int) error { return retry(func() error { return unix.Syncfs(fd) }) }

// FDPath returns a path of an open directory for calls that take only paths.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
