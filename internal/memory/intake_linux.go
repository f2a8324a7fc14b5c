package memory

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// intake is the directory of a new image, which is in tmp now.
type intake struct {
	name string
	fd   int
}

// takeIn moves the directory of a new image to tmp, where nothing else uses it. If that fails, the directory stays
// where it was.
func (s *Store) takeIn(dir string) (in intake, err error) {
	parent, err := dirfd.OpenDir(unix.AT_FDCWD, filepath.Dir(dir))
	if err != nil {
		return in, err
	}
	defer unix.Close(parent)
	base := filepath.Base(dir)
	if in.fd, err = dirfd.OpenDir(parent, base); err != nil {
		return in, err
	}
	in.name = scratch("add")
	if err := s.fs.Rename(parent, base, s.tmp, in.name); err != nil {
		unix.Close(in.fd)
		if errors.Is(err, unix.EXDEV) {
			return in, fault.New(fault.Invalid, "%s is not on the file system of the memory store %s", dir, s.dir).
				WithHint("write the image below COPPICE_HOME")
		}
		return in, err
	}
	return in, nil
}

// check returns an error unless the directory has exactly the files of an image.
func (in intake) check() error {
	got, err := dirfd.Names(in.fd)
	if err != nil {
		return err
	}
	slices.Sort(got)
	if want := []string{kernelName, pagesName, metaName}; !slices.Equal(got, want) {
		return fault.New(fault.Invalid, "invalid files of a memory image: expected %q, got %.200q", want, got).
			WithHint("checkpoint without compression")
	}
	return nil
}

// own opens a file of the new image for exclusive use. Code in the sandbox may have taken over the process that wrote
// the file, so a file that a process can still write to is copied. The caller closes it.
func (s *Store) own(ctx context.Context, in intake, name string, most int64) (fd int, size int64, err error) {
	var st unix.Stat_t
	if fd, st, err = dirfd.OpenRegular(in.fd, name); err != nil {
		return -1, 0, fault.Wrap(err, "open %s", name)
	}
	switch {
	case st.Size > most:
		err = fault.New(fault.Unsupported, "%s has %d bytes, more than the limit of %d", name, st.Size, most)
	case st.Nlink == 1 && unwritten(fd):
		if err = s.fs.Chmod(fd, 0o600); err == nil {
			return fd, st.Size, nil
		}
	default:
		err = s.copyFile(ctx, in, name, fd, st.Size)
	}
	unix.Close(fd)
	if err != nil {
		return -1, 0, err
	}
	if fd, st, err = dirfd.OpenRegular(in.fd, name); err != nil {
		return -1, 0, err
	}
	return fd, st.Size, nil
}

// unwritten reports whether no process has the file open, or mapped, for writing. Only then the kernel grants a read
// lease.
func unwritten(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}

// copyFile replaces an open file by a copy.
func (s *Store) copyFile(ctx context.Context, in intake, name string, fd int, size int64) error {
	temp := scratch("copy")
	out, err := s.fs.Create(s.tmp, temp, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	err = s.fs.Truncate(out, size)
	if err == nil {
		const step = chunk * pageSize
		err = spread(ctx, int((size+step-1)/step), addWorkers, func(buf []byte, i int) error {
			off := int64(i) * step
			p := buf[:min(step, size-off)]
			if err := readFull(fd, p, off); err != nil {
				return err
			}
			return s.fs.WriteAt(out, p, off)
		})
	}
	if err == nil {
		err = s.fs.Rename(s.tmp, temp, in.fd, name)
	}
	if err != nil {
		_ = s.fs.Unlink(s.tmp, temp) // swept when the store is opened
	}
	return err
}
