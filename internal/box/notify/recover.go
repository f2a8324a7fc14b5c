//go:build linux && (amd64 || arm64)

package notify

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/mounttable"
)

// Left is a promotion that cannot be undone because of the sandbox's files, which the sandbox may have changed.
type Left struct {
	Mount string
	Err   error
}

// Error returns the text of the error.
func (l *Left) Error() string {
	return fmt.Sprintf("recover an unfinished promotion below %s: %v", l.Mount, l.Err)
}

// Unwrap returns the cause.
func (l *Left) Unwrap() error { return l.Err }

// ofFiles are the errors that a sandbox's files can cause, by their types and permissions and by the space that
// remains.
var ofFiles = []error{
	unix.ENOENT, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EXDEV, unix.EEXIST, unix.ENOTEMPTY, unix.EINVAL,
	unix.ENAMETOOLONG, unix.EMLINK,
	unix.EACCES, unix.EPERM, unix.EROFS, unix.EBUSY, unix.ESTALE, unix.ENOSPC, unix.EDQUOT,
}

// isOfFiles reports whether files of a sandbox can cause an error. Any other error, such as a lack of descriptors, has
// another cause.
func isOfFiles(err error) bool {
	return slices.ContainsFunc(ofFiles, func(f error) bool { return errors.Is(err, f) })
}

// Recover undoes promotions that were interrupted by a kill, in the overlay mounts of the calling process's mount
// namespace. PID 1 calls it before it starts anything. It returns the promotions that cannot be undone because of the
// sandbox's files, and an error for any other reason.
func Recover() (left []*Left, err error) {
	overlays, err := mounttable.List(mountinfo.FSTypeFilter("overlay"))
	if err != nil {
		return nil, fault.Wrap(err, "find unfinished promotions")
	}
	for _, m := range overlays {
		l, err := recoverBelow(m.Mountpoint)
		if err != nil {
			return left, err
		}
		if l != nil {
			left = append(left, l)
		}
	}
	return left, nil
}

// recoverBelow undoes the promotion that was interrupted in a mount, if there is one.
func recoverBelow(mount string) (*Left, error) {
	root, err := openat(unix.AT_FDCWD, mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		if isOfFiles(err) {
			return nil, nil // covered by another mount
		}
		return nil, fault.Wrap(err, "find an unfinished promotion below %s", mount)
	}
	defer unix.Close(root)
	err = recoverAt(root)
	switch {
	case err == nil, errors.Is(err, unix.EACCES): // without access to the root, Coppice never promoted anything
		return nil, nil
	case isOfFiles(err):
		return &Left{mount, err}, nil
	}
	return nil, fault.Wrap(err, "recover an unfinished promotion below %s", mount)
}

// recoverAt undoes the promotion that left its workshop in root, if there is one. It ignores a workshop whose owner or
// mode shows that the sandbox created it.
func recoverAt(root int) error {
	work, err := openat(root, journalName, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", journalName, err)
	}
	defer unix.Close(work)
	var st unix.Stat_t
	if err := unix.Fstat(work, &st); err != nil {
		return err
	}
	if st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s: not created by PID 1: %w", journalName, unix.EPERM)
	}
	times := keepTimes(root)
	defer times()
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(work, journalFrom, buf)
	if err == nil && n > 0 && n < len(buf) {
		dir, base := ".", string(buf[:n])
		if i := strings.LastIndexByte(base, '/'); i >= 0 {
			dir, base = base[:i], base[i+1:]
		}
		parent, err := openInside(root, dir, unix.O_DIRECTORY)
		if err != nil {
			return fmt.Errorf("open %q: %w", dir, err)
		}
		defer unix.Close(parent)
		if base == "" || base == "." || base == ".." {
			return fmt.Errorf("%s names %q: %w", journalName, base, unix.EINVAL)
		}
		if err := undo(work, parent, base); err != nil {
			return err
		}
	}
	return removeWorkshop(root, work)
}
