package dirfd

import "golang.org/x/sys/unix"

// Lstat returns the state of the entry name in dir.
func Lstat(dir int, name string) (st unix.Stat_t, err error) {
	for {
		if err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != unix.EINTR {
			return st, err
		}
	}
}

// Readlink returns the target of the link name in dir or, if name is "", of the link that dir refers to. It returns
// EINVAL if that is not a link.
func Readlink(dir int, name string) (string, error) {
	var small [256]byte
	b := small[:]
	for {
		n, err := unix.Readlinkat(dir, name, b)
		if err != nil {
			return "", err
		}
		if n < len(b) {
			return string(b[:n]), nil
		}
		b = make([]byte, 2*len(b))
	}
}

// IsDir reports whether st describes a directory.
func IsDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether st describes a regular file.
func IsRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// IsLink reports whether st describes a symbolic link.
func IsLink(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFLNK }
