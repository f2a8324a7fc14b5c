package layer

import (
	"crypto/rand"
	"errors"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// entry restores f, which is not a directory, in the open directory dir.
func (r *rewinder) entry(dir int, f *found, at standing) error {
	st, err := dirfd.Lstat(dir, f.name)
	there := err == nil
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if there && dirfd.IsDir(&st) {
		if err := r.remove(dir, f.name, at); err != nil {
			return err
		}
		there = false
	}
	key := fileKey{f.m.levels[f.level].src, f.st.Ino}
	several := f.st.Nlink > 1
	if first, ok := r.first[key]; ok && several {
		if there && first.id == (devIno{st.Dev, st.Ino}) {
			return nil
		}
		done, err := r.link(first, dir, f.name)
		if done || err != nil {
			return err
		}
	}
	done := false
	if there && !r.claimed[devIno{st.Dev, st.Ino}] && st.Mode&unix.S_IFMT == f.st.Mode&unix.S_IFMT {
		if done, err = r.keep(dir, f, &st); err != nil {
			return err
		}
	}
	if !done {
		r.paths++
		if err := r.replace(dir, f); err != nil {
			return err
		}
	}
	if st, err = dirfd.Lstat(dir, f.name); err != nil {
		return err
	}
	id := devIno{st.Dev, st.Ino}
	if st.Nlink > 1 {
		r.claimed[id] = true
	}
	if several {
		r.first[key] = placed{f.m, f.name, id}
	}
	return nil
}

// link makes name a further name of a file that was restored before. done is false if the file system does not allow
// that.
func (r *rewinder) link(first placed, dir int, name string) (done bool, err error) {
	from, err := dirfd.OpenLong(r.Root, path.Clean(first.dir.path()[1:]), unix.O_PATH|unix.O_DIRECTORY, dirfd.Beneath)
	if err != nil {
		return false, err
	}
	defer unix.Close(from)
	tmp := tempName()
	err = r.s.fs.Link(from, first.name, dir, tmp)
	if errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	r.paths++
	return true, r.put(dir, tmp, name)
}

// put moves a finished entry to its place.
func (r *rewinder) put(dir int, tmp, name string) error {
	err := r.s.fs.Rename(dir, tmp, dir, name)
	if err != nil {
		err = errors.Join(err, r.s.fs.Unlink(dir, tmp))
	}
	return err
}

func tempName() string { return ".coppice-" + rand.Text() }

// keep makes the existing entry equal to f, which has the same type. done is false if the entry must be replaced.
func (r *rewinder) keep(dir int, f *found, st *unix.Stat_t) (done bool, err error) {
	if dirfd.IsRegular(st) {
		return r.keepFile(dir, f, st)
	}
	if dirfd.IsLink(&f.st) {
		is, err := dirfd.Readlink(dir, f.name)
		if err != nil || is != f.link() {
			return false, err
		}
	} else if f.st.Rdev != st.Rdev {
		return false, nil
	}
	return r.keepMeta(node{fd: dir, name: f.name}, f, st)
}

// keepMeta makes metadata and attributes of an entry equal to those of f. It does not change a file with several
// names, since f may have only one; then done reports whether they are equal.
func (r *rewinder) keepMeta(n node, f *found, st *unix.Stat_t) (done bool, err error) {
	want, err := f.attrs()
	if err != nil {
		return false, err
	}
	if st.Nlink > 1 {
		return r.sameMeta(n, &f.st, &want)
	}
	changed, err := r.meta(n, &f.st, &want, false)
	if changed {
		r.paths++
	}
	return true, err
}

func (r *rewinder) keepFile(dir int, f *found, st *unix.Stat_t) (done bool, err error) {
	src, err := f.open()
	if err != nil {
		return false, err
	}
	defer unix.Close(src)
	fd, now, err := openFileAt(dir, f.name)
	if err != nil {
		return false, nil // for example, it has a lease whose holder is paused
	}
	same := now.Size == f.st.Size
	if same {
		same, err = sameContent(r.ctx, fd, src, now.Size)
	}
	if err == nil && same {
		done, err = r.keepMeta(node{fd: fd}, f, &now)
	}
	unix.Close(fd)
	if err != nil || same {
		return done, err
	}
	if st.Nlink > 1 || r.Mapped != nil && r.Mapped(f.path(), st.Ino) {
		return false, nil
	}
	// A small file is overwritten: ext4 flushes each file that is written after it was truncated (auto_da_alloc). A
	// large file is truncated first, so that overlayfs does not copy up its old content. So is a file that gets
	// holes, or becomes empty.
	flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	if now.Size > 1<<20 || f.st.Size == 0 || f.st.Blocks*512 < f.st.Size {
		flags |= unix.O_TRUNC
	}
	// ETXTBSY: a process runs it.
	fd, err = unix.Openat(dir, f.name, flags, 0)
	if err != nil {
		return false, nil
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &now); err != nil || !dirfd.IsRegular(&now) {
		return false, err
	}
	r.paths++
	return true, r.fill(fd, src, f, flags&unix.O_TRUNC == 0)
}

// fill writes the content and the metadata of f to a file: an empty one, or over its old content.
func (r *rewinder) fill(fd, src int, f *found, over bool) error {
	err := r.s.copyBytes(r.ctx, fd, src, &f.st)
	if err == nil && over {
		err = r.s.fs.Truncate(fd, f.st.Size)
	}
	if err != nil {
		return err
	}
	want, err := f.attrs()
	if err == nil {
		_, err = r.meta(node{fd: fd}, &f.st, &want, false)
	}
	return err
}

// replace makes a new entry equal to f, and renames it over the old one.
func (r *rewinder) replace(dir int, f *found) (err error) {
	tmp := tempName()
	var made bool
	switch f.st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		made, err = r.newFile(dir, tmp, f)
	default:
		if dirfd.IsLink(&f.st) {
			err = r.s.fs.Symlink(f.link(), dir, tmp)
		} else {
			err = r.s.fs.Mknod(dir, tmp, f.st.Mode, f.st.Rdev)
		}
		if made = err == nil; made {
			var want attrs
			if want, err = f.attrs(); err == nil {
				_, err = r.meta(node{fd: dir, name: tmp}, &f.st, &want, false)
			}
		}
	}
	if err != nil {
		if made {
			err = errors.Join(err, r.s.fs.Unlink(dir, tmp))
		}
		return err
	}
	return r.put(dir, tmp, f.name)
}

func (r *rewinder) newFile(dir int, tmp string, f *found) (made bool, err error) {
	src, err := f.open()
	if err != nil {
		return false, err
	}
	defer unix.Close(src)
	fd, err := r.s.fs.Create(dir, tmp, 0o600)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	return true, r.fill(fd, src, f, false)
}

// unowned returns the error of an owner that is not mapped in the sandbox.
func unowned(st *unix.Stat_t, err error) error {
	return fault.New(fault.Unsupported, "cannot change the owner to %d:%d: not mapped in this sandbox", st.Uid, st.Gid).
		Because(err).
		WithHint("drop --in-place, so that the sandbox is stopped")
}
