package diskuse

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// maxHeld is the maximum number of open directories of a path; those above are reopened on the way back.
	maxHeld = 64
	// tellEvery is the number of files between two progress reports, and between two checks of the context.
	tellEvery = 1024
)

// inode identifies a file.
type inode struct{ dev, ino uint64 }

// walk measures trees. It is not safe for concurrent use.
type walk struct {
	ctx  context.Context //nolint:containedctx // of one measurement
	tell func(files int)

	mostNames, mostLinks int // limits: limit.DiskUseNames, limit.DiskUseLinks

	files   int  // number of files measured so far
	names   int  // queued names of directories, and open directories
	partial bool // something could not be read, or exceeded a limit
}

// sum is the size of a tree.
type sum struct {
	share float64 // bytes, where each link of a file counts for its share
	alone int64   // size of files with one link and of directories, in bytes
	// links are the files with several hard links: if all links of a file are in the tree, removing the tree frees
	// it. nil if that is not needed.
	links map[inode]*linked
}

// linked is a file with several hard links.
type linked struct {
	left  uint64 // links that were not found yet
	bytes int64
}

// bytes returns the share of the tree, rounded.
func (s *sum) bytes() int64 { return int64(s.share + 0.5) }

// freed returns the bytes that removing the tree frees.
func (s *sum) freed() int64 {
	n := s.alone
	for _, l := range s.links {
		if l.left == 0 {
			n += l.bytes
		}
	}
	return n
}

// tree adds the entry name in the open directory at, and everything below it, to s. A missing entry is not an error.
func (w *walk) tree(at int, name string, s *sum) error {
	st, err := dirfd.Lstat(at, name)
	if err != nil {
		return w.pass(err)
	}
	w.add(s, &st)
	if !dirfd.IsDir(&st) {
		return nil
	}
	fd, err := open(at, name)
	if err != nil {
		return w.pass(err)
	}
	return w.below(fd, s)
}

// open opens a directory to list it. It enters no mount.
func open(at int, name string) (int, error) {
	return dirfd.Open(at, name, dirfd.DirFlags, dirfd.Beneath|dirfd.OneMount)
}

// pass ignores errors about one entry: one that was removed or replaced is not counted; one that is a mount or cannot
// be read makes the result partial.
func (w *walk) pass(err error) error {
	for _, gone := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESTALE} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	for _, closed := range []error{unix.EACCES, unix.EPERM, unix.EXDEV, unix.EIO, unix.EAGAIN} {
		if errors.Is(err, closed) {
			w.partial = true
			return nil
		}
	}
	return fault.Wrap(err, "measure the home")
}

// add adds one entry to s.
func (w *walk) add(s *sum, st *unix.Stat_t) {
	n := st.Blocks * 512
	if dirfd.IsDir(st) || st.Nlink <= 1 {
		s.share += float64(n)
		s.alone += n
		return
	}
	s.share += float64(n) / float64(st.Nlink)
	if s.links == nil {
		return
	}
	key := inode{st.Dev, st.Ino}
	l := s.links[key]
	if l == nil {
		if len(s.links) >= w.mostLinks {
			w.partial = true
			return
		}
		l = &linked{uint64(st.Nlink), n} //nolint:unconvert // 32 bits wide on arm64
		s.links[key] = l
	}
	l.left--
}

// level is a directory in the path of a walk.
type level struct {
	fd       int // -1: it is opened again on the way back
	dev, ino uint64
	subs     []string // subdirectories that were not visited yet
}

// below adds the content of the directory fd, which it closes. It does not recurse, since a sandbox determines how
// deep its directories are.
func (w *walk) below(fd int, s *sum) (err error) {
	var path []level
	defer func() {
		for _, l := range path {
			w.leave(&l)
		}
	}()
	enter := func(fd int) error {
		l := level{fd: fd}
		var st unix.Stat_t
		if err = unix.Fstat(fd, &st); err == nil {
			l.dev, l.ino = st.Dev, st.Ino
			l.subs, err = w.list(fd, s)
		}
		w.names++
		path = append(path, l)
		return w.pass(err)
	}
	if err := enter(fd); err != nil {
		return err
	}
	for len(path) > 0 {
		at := &path[len(path)-1]
		if len(at.subs) == 0 {
			path = w.back(path)
			continue
		}
		name := at.subs[len(at.subs)-1]
		at.subs = at.subs[:len(at.subs)-1]
		w.names--
		sub, err := open(at.fd, name)
		if err != nil {
			if err = w.pass(err); err != nil {
				return err
			}
			continue
		}
		if len(path) > maxHeld {
			unix.Close(at.fd)
			at.fd = -1
		}
		if err := enter(sub); err != nil {
			return err
		}
	}
	return nil
}

// leave closes a directory.
func (w *walk) leave(l *level) {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
	w.names -= len(l.subs) + 1
}

// back leaves the last directory of a path, and reopens the one above. If that was moved meanwhile, it is left as
// well, with its unvisited subdirectories.
func (w *walk) back(path []level) []level {
	last := len(path) - 1
	if last > 0 && path[last-1].fd < 0 {
		above := &path[last-1]
		fd, err := dirfd.OpenAbove(path[last].fd, above.dev, above.ino)
		if err != nil {
			w.partial = true
			for last > 0 && path[last-1].fd < 0 {
				w.leave(&path[last])
				last--
			}
		} else {
			above.fd = fd
		}
	}
	w.leave(&path[last])
	return path[:last]
}

// list adds the entries of the directory fd, and returns the names of those that are directories.
func (w *walk) list(fd int, s *sum) (subs []string, err error) {
	r := dirfd.NewReader()
	defer r.Close()
	r.StartNew(fd)
	for {
		name, _, ok, err := r.Next()
		if err != nil || !ok {
			return subs, err
		}
		if w.files++; w.files%tellEvery == 0 {
			if err := w.ctx.Err(); err != nil {
				return subs, err
			}
			w.tell(w.files)
		}
		var st unix.Stat_t
		if err := r.Lstat(name, &st); err != nil {
			if err = w.pass(err); err != nil {
				return subs, err
			}
			continue
		}
		w.add(s, &st)
		switch {
		case !dirfd.IsDir(&st):
		case w.names >= w.mostNames:
			w.partial = true
		default:
			w.names++
			subs = append(subs, string(name))
		}
	}
}
