package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// copyDirMeta gives the directory dst the metadata of src: mode, owner, extended attributes, times. It skips
// attributes that the caller may not read or set (another user's security labels).
//
// An unprivileged user cannot change the owner of dst. dst then belongs to the user, and its owner's permission bits
// become the user's access to src: the live root must not permit more than the host.
func copyDirMeta(src, dst string) error {
	var st unix.Stat_t
	if err := unix.Lstat(src, &st); err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	mode := st.Mode & 0o7777
	err := unix.Lchown(dst, int(st.Uid), int(st.Gid))
	if err != nil {
		// EINVAL: the ID is not mapped in this user namespace. EPERM: not in a user namespace.
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("chown: %w", err)
		}
		if int(st.Uid) != unix.Geteuid() {
			mode = mode&^0o700 | access(src)<<6
		}
	}
	if err := copyXattrs(src, dst); err != nil {
		return err
	}
	if err := unix.Chmod(dst, mode); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	ts := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dst, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// access returns what the caller may do with a directory, as permission bits.
func access(dir string) (bits uint32) {
	for _, b := range []uint32{unix.R_OK, unix.W_OK, unix.X_OK} {
		if unix.Faccessat(unix.AT_FDCWD, dir, b, unix.AT_EACCESS) == nil {
			bits |= b
		}
	}
	return bits
}

func copyXattrs(src, dst string) error {
	for _, a := range xattrsOf(src) {
		err := unix.Lsetxattr(dst, a.name, a.value, 0)
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("set attribute %s: %w", a.name, err)
		}
	}
	return nil
}

type xattr struct {
	name  string
	value []byte
}

// xattrsOf returns the attributes that the caller may read, except those of overlayfs.
func xattrsOf(src string) (out []xattr) {
	size, err := unix.Llistxattr(src, nil)
	if err != nil || size <= 0 {
		return nil
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(src, names); err != nil {
		return nil
	}
	for n := range bytes.SplitSeq(bytes.TrimSuffix(names[:size], []byte{0}), []byte{0}) {
		name := string(n)
		if strings.HasPrefix(name, "user.overlay.") || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		val := make([]byte, 64<<10) // XATTR_SIZE_MAX
		k, err := unix.Lgetxattr(src, name, val)
		if err != nil {
			continue
		}
		out = append(out, xattr{name, val[:k]})
	}
	return out
}
