package dirfd

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OwnAccess gives the owner of the file or directory name, and of each directory above it up to and including root,
// the permission to read and write it, and to search directories, where it is missing. Other bits stay. name is
// relative to root and clean. What belongs to another user, is a link (root may be one), or does not exist is left
// alone, without an error, as is what is below it. It reports the names that it changed.
//
// It is for directories that only the daemon writes: a process of the same user, such as one in a locked workspace,
// may still have set modes there by path.
func OwnAccess(root, name string) (changed []string, err error) {
	path, follow := root, 0
	for _, part := range append([]string{"."}, strings.Split(name, "/")...) {
		path = filepath.Join(path, part)
		mended, stop, err := ownAccess(path, follow)
		if mended {
			changed = append(changed, path)
		}
		if stop || err != nil {
			return changed, err
		}
		follow = unix.O_NOFOLLOW
	}
	return changed, nil
}

// ownAccess is OwnAccess for one path. follow is 0, or O_NOFOLLOW. stop says that the path is not the user's own file
// or directory.
func ownAccess(path string, follow int) (mended, stop bool, err error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|follow, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, true, nil
	}
	if err != nil {
		return false, true, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, true, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	need := uint32(0o600)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		need = 0o700
	case unix.S_IFREG:
	default:
		return false, true, nil
	}
	if int(st.Uid) != os.Geteuid() {
		return false, true, nil
	}
	if st.Mode&need == need {
		return false, false, nil
	}
	// A descriptor opened with O_PATH has no fchmod; this is the same file.
	if err := unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), st.Mode&0o7777|need); err != nil {
		return false, true, &os.PathError{Op: "chmod", Path: path, Err: err}
	}
	return true, false, nil
}
