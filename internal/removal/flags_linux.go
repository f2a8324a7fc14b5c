package removal

import "golang.org/x/sys/unix"

// locked are the inode flags that prevent the removal of a file, or of the entries of a directory (ioctl_iflags(2)):
// FS_IMMUTABLE_FL and FS_APPEND_FL.
const locked = 0x10 | 0x20

// unlock clears these flags on the open directory dir and on its entry name, and reports whether any was set. Only
// CAP_LINUX_IMMUTABLE in the initial user namespace permits that.
func unlock(dir int, name string) bool {
	changed := clearFlags(dir)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return changed
	}
	defer unix.Close(fd)
	return clearFlags(fd) || changed
}

func clearFlags(fd int) bool {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false
	}
	// For a device, the ioctl would go to its driver instead of the file system.
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return false
	}
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&locked == 0 {
		return false
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^locked) == nil
}
