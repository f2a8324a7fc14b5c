//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// OwnerXattr holds the requested owner if it differs from the one that stat(2) shows: decimal "uid:gid".
	OwnerXattr = "user.coppice.owner"
	// DeviceXattr marks an empty regular file that represents a device node: "c MAJOR:MINOR" or "b
	// MAJOR:MINOR".
	DeviceXattr = "user.coppice.device"
)

// keep is the id argument that means "leave unchanged" (chown(2)).
const keep = 1<<32 - 1

// chown is fchownat(2).
func chown(c caller, p place, uid, gid uint32, flags int) verdict {
	name, err := c.path(p)
	if err != nil {
		return proceed // the kernel will return the same error
	}
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return verdict{errno: unix.EINVAL}
	}
	if name == "" && flags&unix.AT_EMPTY_PATH != 0 && p.dir != fdCwd {
		return chownFD(c, p.dir, uid, gid)
	}
	if name == "" && flags&unix.AT_EMPTY_PATH != 0 {
		name = "."
	}
	open := 0
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		open = unix.O_NOFOLLOW
	}
	fd, err := c.open(p.dir, name, open)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	return remember(c, fd, uid, gid)
}

// chownFD is fchown(2).
func chownFD(c caller, target int32, uid, gid uint32) verdict {
	fd, err := c.openFD(target)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	return remember(c, fd, uid, gid)
}

// remember stores the requested owner of a file. If the file system does not support extended attributes, the owner is
// dropped without an error; a read-only or full file system is an error.
func remember(c caller, fd int, uid, gid uint32) verdict {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	if !c.s.valid(c.id) {
		return success
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return success
	}
	name := byFD(fd)
	// Like the kernel for every caller (chown(2)): a program loses its setuid and setgid bits, and file capabilities.
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		_ = unix.Fchownat(unix.AT_FDCWD, name, -1, -1, 0)
	}
	was := ownerOf(name, &st)
	want := was
	if uid != keep {
		want.uid = uid
	}
	if gid != keep {
		want.gid = gid
	}
	var err error
	switch want {
	case was:
		return success
	case owner{st.Uid, st.Gid}:
		err = unix.Removexattr(name, OwnerXattr)
	default:
		err = unix.Setxattr(name, OwnerXattr, []byte(want.String()), 0)
	}
	switch {
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO):
		return fail(err)
	}
	return success
}

type owner struct{ uid, gid uint32 }

// String returns the value of OwnerXattr.
func (o owner) String() string { return fmt.Sprintf("%d:%d", o.uid, o.gid) }

// ownerOf returns the remembered owner, or else the one in st.
func ownerOf(name string, st *unix.Stat_t) owner {
	var buf [64]byte
	shown := owner{st.Uid, st.Gid}
	n, err := unix.Getxattr(name, OwnerXattr, buf[:])
	if err != nil {
		return shown
	}
	u, g, ok := strings.Cut(string(buf[:n]), ":")
	uid, uerr := strconv.ParseUint(u, 10, 32)
	gid, gerr := strconv.ParseUint(g, 10, 32)
	if !ok || uerr != nil || gerr != nil {
		return shown
	}
	return owner{uint32(uid), uint32(gid)}
}

// mknod is mknodat(2) for a device node.
func mknod(c caller, p place, mode, dev uint32) verdict {
	name, err := c.path(p)
	if err != nil || strings.HasSuffix(name, "/") {
		return proceed
	}
	umask, err := c.umask()
	if err != nil {
		return fail(err)
	}
	parent, base, err := c.openParent(p.dir, name)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(parent)
	if base == "" {
		return verdict{errno: unix.EEXIST}
	}
	if !c.s.valid(c.id) {
		return success
	}
	fd, err := unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	kind := 'c'
	if mode&unix.S_IFMT == unix.S_IFBLK {
		kind = 'b'
	}
	// The argument dev is encoded by makedev(3).
	what := fmt.Sprintf("%c %d:%d", kind, unix.Major(uint64(dev)), unix.Minor(uint64(dev)))
	err = errors.Join(
		unix.Fsetxattr(fd, DeviceXattr, []byte(what), 0),
		unix.Fchmod(fd, mode&0o7777&^umask),
	)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		_ = unix.Unlinkat(parent, base, 0)
		return fail(err)
	}
	return success
}

// setxattr is setxattr(2) and its variants.
func setxattr(c caller, open func() (int, error), nameAt, valueAt, size uint64, flags int) verdict {
	name, err := c.str(nameAt, xattrNameMax)
	if err != nil || strings.HasPrefix(name, "user.") || size > xattrSizeMax {
		return proceed
	}
	value := make([]byte, size)
	if size > 0 {
		if n, err := c.read(valueAt, value); err != nil || n < len(value) {
			return verdict{errno: unix.EFAULT}
		}
	}
	fd, err := open()
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	if !c.s.valid(c.id) || !attempted(name) {
		return success
	}
	return forgive(unix.Setxattr(byFD(fd), name, value, flags))
}

// removexattr is removexattr(2) and its variants.
func removexattr(c caller, open func() (int, error), nameAt uint64) verdict {
	name, err := c.str(nameAt, xattrNameMax)
	if err != nil || strings.HasPrefix(name, "user.") {
		return proceed
	}
	fd, err := open()
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	if !c.s.valid(c.id) || !attempted(name) {
		return success
	}
	return forgive(unix.Removexattr(byFD(fd), name))
}

// Limits of xattr(7).
const (
	xattrNameMax = 255
	xattrSizeMax = 65536
)

// attempted reports whether a user namespace may set the extended attribute name. The kernel always refuses other
// names, so they are not attempted with PID 1's capabilities.
func attempted(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "system.posix_acl_")
}

// forgive turns the errors of unmapped ids into success.
func forgive(err error) verdict {
	switch {
	case err == nil, errors.Is(err, unix.EPERM), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOVERFLOW):
		return success
	}
	return fail(err)
}

// umask returns the caller's umask, from the Umask field of proc_pid_status(5).
func (c caller) umask() (uint32, error) {
	f, err := c.status()
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseUint(f["Umask"], 8, 32)
	if err != nil {
		return 0, unix.EIO
	}
	return uint32(v), nil
}

// status reads /proc/TID/status.
func (c caller) status() (map[string]string, error) {
	fd, err := openat(unix.AT_FDCWD, procPath(c.tid, "status"), unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 8192)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, err
	}
	if !c.s.valid(c.id) {
		return nil, errGone
	}
	return fields(buf[:n]), nil
}

// fields returns the values by name of a file of procfs that has one on each line.
func fields(text []byte) map[string]string {
	all := map[string]string{}
	for line := range bytes.Lines(text) {
		if key, value, ok := strings.Cut(string(line), ":"); ok {
			all[key] = strings.TrimSpace(value)
		}
	}
	return all
}
