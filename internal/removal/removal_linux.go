// Package removal deletes trees that a sandbox wrote. All removals of live roots, sandboxes and their leftovers use
// it.
package removal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Tree deletes dir and everything in it; a missing dir is not an error. A sandbox wrote the tree: no link is
// followed, directories need not be readable, and no depth exhausts descriptors or stack, since directories deeper
// than maxDepth are first renamed into dir. A mount on dir or in it is not entered, and is an error. Subvolumes of
// btrfs in it may be read-only, and files immutable or append-only, if the caller may change that.
func Tree(ctx context.Context, dir string) error {
	parent, err := unix.Open(filepath.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "remove %s", dir)
	}
	defer unix.Close(parent)
	err = removeAt(ctx, parent, filepath.Base(dir))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return fault.Wrap(err, "remove %s", dir)
}

func removeAt(ctx context.Context, parent int, name string) error {
	for {
		fd, err := openDir(parent, name)
		if err != nil {
			return err
		}
		var st unix.Statfs_t
		r := remover{ctx: ctx, top: fd, btrfs: unix.Fstatfs(fd, &st) == nil && st.Type == unix.BTRFS_SUPER_MAGIC}
		if r.btrfs && dropSubvolume(parent, name) {
			return unix.Close(fd)
		}
		err = r.empty(fd, 0)
		if err = errors.Join(err, unix.Close(fd)); err != nil {
			return err
		}
		if r.lifted {
			continue
		}
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		if errors.Is(err, unix.EPERM) && unlock(parent, name) {
			err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
		}
		return err
	}
}

const maxDepth = 64

type remover struct {
	ctx    context.Context //nolint:containedctx // of one call
	top    int
	btrfs  bool // the tree may contain subvolumes
	n      int
	lifted bool
}

// openDir opens a directory for listing, and makes it accessible if necessary. A mount point is an error: the mount
// is another file system, or another directory of the same one.
func openDir(at int, name string) (int, error) {
	const how = dirfd.NoLinks | dirfd.OneMount
	fd, err := dirfd.Open(at, name, dirfd.DirFlags, how)
	if errors.Is(err, unix.EACCES) && makeAccessible(at, name) == nil {
		fd, err = dirfd.Open(at, name, dirfd.DirFlags, how)
	}
	if errors.Is(err, unix.EXDEV) {
		err = fault.New(fault.Conflict, "%q is a mount point", name).Because(err).WithHint("unmount it first")
	}
	return fd, err
}

// makeAccessible sets the mode of a directory to 0700. It follows no link: a process of the sandbox may replace the
// directory with one at any time.
func makeAccessible(at int, name string) error {
	fd, err := dirfd.Open(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, dirfd.NoLinks|dirfd.OneMount)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), 0o700, 0)
}

// empty deletes the content of the open directory fd.
func (r *remover) empty(fd, depth int) error {
	list := dirfd.NewReader()
	defer list.Close()
	list.StartNew(fd)
	made := false
	for {
		entry, _, ok, err := list.Next()
		if err != nil || !ok {
			return err
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		name := string(entry)
		err = unix.Unlinkat(fd, name, 0)
		if errors.Is(err, unix.EACCES) && !made {
			made = true
			if unix.Fchmod(fd, 0o700) == nil {
				err = unix.Unlinkat(fd, name, 0)
			}
		}
		if errors.Is(err, unix.EPERM) && unlock(fd, name) {
			err = unix.Unlinkat(fd, name, 0)
		}
		if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
			err = r.dir(fd, name, depth)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
}

func (r *remover) dir(fd int, name string, depth int) error {
	if r.btrfs && isSubvolume(fd, name) {
		return removeAt(r.ctx, fd, name) // nothing can be renamed out of it
	}
	if depth >= maxDepth {
		for {
			r.n++
			err := unix.Renameat2(fd, name, r.top, ".lifted-"+strconv.Itoa(r.n), unix.RENAME_NOREPLACE)
			if errors.Is(err, unix.EEXIST) {
				continue
			}
			r.lifted = true
			return err
		}
	}
	err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	sub, err := openDir(fd, name)
	if err != nil {
		return err
	}
	err = r.empty(sub, depth+1)
	_ = unix.Close(sub)
	if err != nil {
		return err
	}
	err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTEMPTY) {
		// On some file systems readdir may skip entries during deletions, so repeat it.
		return r.dir(fd, name, depth)
	}
	return err
}
