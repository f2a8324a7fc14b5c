package boxfs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Mkdir creates a directory with a mode (0 means 0755). With parents it also creates missing parents, and accepts an
// existing directory.
func (r *Root) Mkdir(p string, mode uint32, parents bool) error {
	if mode == 0 {
		mode = 0o755
	}
	if mode&^0o7777 != 0 {
		return fault.New(fault.Invalid, "invalid mode %#o for %q", mode, p).WithHint("use permission bits, such as 0755")
	}
	return r.do("create directory", p, func() error {
		if parents && len(names(p)) == 0 {
			return nil // the root
		}
		at, err := r.parent(p)
		if parents && errors.Is(err, unix.ENOENT) {
			dir, _, serr := splitPath(p)
			if serr != nil {
				return serr
			}
			if err = r.makeAll(dir, 0o755); err == nil {
				at, err = r.parent(p)
			}
		}
		if err != nil {
			return err
		}
		defer at.close()
		err = unix.Mkdirat(at.dir, at.name, mode)
		if parents && errors.Is(err, unix.EEXIST) {
			fd, err := r.open(p, unix.O_PATH|unix.O_DIRECTORY)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
		if err != nil {
			return err
		}
		fd, err := dirfd.Open(at.dir, at.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, dirfd.Beneath)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return exactMode(fd, mode)
	})
}

// Remove removes the entry at p: a link itself, not its target; with recursive, a directory with its content. The
// root itself cannot be removed. Entries that are moved or replaced meanwhile are never followed out of the
// directory.
func (r *Root) Remove(ctx context.Context, p string, recursive bool) error {
	return r.do("remove", p, func() error {
		at, err := r.parent(p)
		if err != nil {
			return err
		}
		defer at.close()
		return r.remove(ctx, at, recursive)
	})
}

func (r *Root) remove(ctx context.Context, at place, recursive bool) error {
	err := r.unlink(at.dir, at.name)
	if !recursive || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	d := &dir{fd: at.dir}
	if err := unix.Fstat(at.dir, &d.st); err != nil {
		return err
	}
	s, err := r.sub(d, at.name)
	if err != nil {
		return err
	}
	defer s.close()
	s.depth = 0
	// If entries are added meanwhile, repeat it a few times.
	for range 10 {
		if err = r.empty(ctx, s); err == nil {
			err = r.unlink(at.dir, at.name)
		}
		if !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// unlink removes a name of any type; a directory must be empty.
func (r *Root) unlink(dir int, name string) error {
	r.renames.Lock()
	defer r.renames.Unlock()
	if err := r.movable(dir, name); err != nil {
		return err
	}
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if derr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); !errors.Is(derr, unix.ENOTDIR) {
			return derr
		}
	}
	return err
}

// maxNames is the maximum number of names of one directory that are kept in memory.
const maxNames = 10_000_000

// empty removes the content of a directory.
func (r *Root) empty(ctx context.Context, d *dir) error {
	names, err := d.names(ctx, maxNames)
	if err != nil {
		return err
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := r.unlink(d.fd, name)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			err = r.emptyBelow(ctx, d, name)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (r *Root) emptyBelow(ctx context.Context, d *dir, name string) error {
	s, err := r.sub(d, name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return r.unlink(d.fd, name) // it was replaced meanwhile
	}
	if err != nil {
		return err
	}
	defer s.close()
	if err := d.inside(s, func() error { return r.empty(ctx, s) }); err != nil {
		return err
	}
	return r.unlink(d.fd, name)
}

// Move renames from to to, as rename(2) does: it replaces an existing file, and a directory only if that is empty. It
// does not follow links in the last component.
func (r *Root) Move(from, to string) error {
	if err := r.valid(to); err != nil {
		return err
	}
	return r.do("move", from, func() error {
		a, err := r.parent(from)
		if err != nil {
			return err
		}
		defer a.close()
		b, err := r.parent(to)
		if err != nil {
			return errIs(err, "to %q", to)
		}
		defer b.close()
		r.renames.Lock()
		defer r.renames.Unlock()
		if err := errors.Join(r.movable(a.dir, a.name), r.movable(b.dir, b.name)); err != nil {
			return err
		}
		return unix.Renameat2(a.dir, a.name, b.dir, b.name, 0)
	})
}
