//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// list returns the names in directory fd, which must be open for reading.
func list(fd int) ([]string, error) {
	d, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(d), "directory")
	defer f.Close()
	return f.Readdirnames(-1)
}

// isEmpty reports whether directory name in dir has no entries.
func isEmpty(dir int, name string) (bool, error) {
	d, err := openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(d), "directory")
	defer f.Close()
	names, _ := f.Readdirnames(1)
	return len(names) == 0, nil
}

// likeness gives directory to the owner, mode, xattrs and times of directory from, whose status is st.
func likeness(from, to int, st *unix.Stat_t) error {
	var now unix.Stat_t
	if err := unix.Fstat(to, &now); err != nil {
		return err
	}
	if now.Uid != st.Uid || now.Gid != st.Gid {
		if err := unix.Fchown(to, int(st.Uid), int(st.Gid)); err != nil {
			return fmt.Errorf("owner %d:%d: %w", st.Uid, st.Gid, err)
		}
	}
	if err := copyXattrs(from, to); err != nil {
		return err
	}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return fmt.Errorf("mode %#o: %w", st.Mode&0o7777, err)
	}
	return setTimes(byFD(to), st)
}

// copyXattrs copies the listed attributes; overlayfs does not list its own. It skips labels that this namespace may not
// write.
func copyXattrs(from, to int) error {
	names := make([]byte, 65536) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(from, names)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list xattrs: %w", err)
	}
	var value []byte
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if len(name) == 0 {
			continue
		}
		if value == nil {
			value = make([]byte, xattrSizeMax)
		}
		size, err := unix.Fgetxattr(from, string(name), value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			err = unix.Fsetxattr(to, string(name), value[:size], 0)
		}
		if err != nil && (strings.HasPrefix(string(name), "user.") || !errors.Is(err, unix.EPERM)) {
			return fmt.Errorf("xattr %s: %w", name, err)
		}
	}
	return nil
}

func setTimes(name string, st *unix.Stat_t) error {
	ts := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, ts, 0)
}

// keepTimes returns a function that resets the times of directory fd to their current values.
func keepTimes(fd int) func() {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return func() {}
	}
	return func() { _ = setTimes(byFD(fd), &st) }
}
