package boxfs

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// File is a regular file that is open for reading.
type File struct {
	*os.File
	info wire.FileInfo
}

var _ io.ReadSeekCloser = (*File)(nil)

// Info returns the state of the file when it was opened.
func (f *File) Info() wire.FileInfo { return f.info }

// ReadFile opens the regular file at p; it follows links. The caller closes the result.
func (r *Root) ReadFile(p string) (*File, error) {
	var f *File
	err := r.do("read", p, func() error {
		fd, err := r.open(p, unix.O_PATH)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		got, err := r.openRegular(fd, &st)
		if err != nil {
			return err
		}
		f = &File{os.NewFile(uintptr(got), p), r.info(p, &st)}
		return nil
	})
	return f, err
}

// openRegular opens the regular file that fd refers to for reading.
func (r *Root) openRegular(fd int, st *unix.Stat_t) (int, error) {
	var was unix.Stat_t
	if err := unix.Fstat(fd, &was); err != nil {
		return -1, err
	}
	if !dirfd.IsRegular(&was) {
		return -1, notRegular(&was)
	}
	if err := r.admit(fd); err != nil {
		return -1, err
	}
	got, err := reopen(fd, unix.O_RDONLY)
	if err != nil {
		return -1, err
	}
	err = unix.Fstat(got, st)
	if err == nil && (!dirfd.IsRegular(st) || st.Ino != was.Ino) {
		err = unix.ESTALE
	}
	if err == nil {
		err = unix.SetNonblock(got, false) // it was opened non-blocking in case it was replaced
	}
	if err != nil {
		unix.Close(got)
		return -1, err
	}
	return got, nil
}

func notRegular(st *unix.Stat_t) error {
	if dirfd.IsDir(st) {
		return fault.New(fault.Invalid, "it is a directory").
			WithHint("list it (files/list), or get it as an archive (files/tar)")
	}
	return fault.New(fault.Invalid, "it is not a regular file but a %s", typeOf(st)).
		WithHint("only regular files can be opened from outside the sandbox")
}

// Stat describes the file at p; with follow, the target of a link at p.
func (r *Root) Stat(p string, follow bool) (wire.FileInfo, error) {
	var info wire.FileInfo
	err := r.do("stat", p, func() error {
		flags := unix.O_PATH | unix.O_NOFOLLOW
		if follow {
			flags = unix.O_PATH
		}
		fd, err := r.open(p, flags)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := r.admit(fd); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		info = r.info(p, &st)
		if dirfd.IsLink(&st) {
			info.Target, err = dirfd.Readlink(fd, "")
		}
		return err
	})
	return info, err
}

// info converts the result of stat(2).
func (r *Root) info(p string, st *unix.Stat_t) wire.FileInfo {
	i := wire.FileInfo{
		Type: typeOf(st), Mode: st.Mode & 0o7777, Mtime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec).UTC(),
		UID: inside(r.user.UIDs, st.Uid), GID: inside(r.user.GIDs, st.Gid),
	}
	if dirfd.IsRegular(st) {
		i.Size, i.ETag = st.Size, etag(st)
	}
	i.SetName(p)
	return i
}

// etag changes whenever the content does: no process can set a ctime.
func etag(st *unix.Stat_t) string {
	return fmt.Sprintf(`"%x-%x-%x-%x"`, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
}

func typeOf(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return wire.FileRegular
	case unix.S_IFDIR:
		return wire.FileDir
	case unix.S_IFLNK:
		return wire.FileLink
	case unix.S_IFIFO:
		return wire.FileFIFO
	case unix.S_IFSOCK:
		return wire.FileSocket
	case unix.S_IFCHR:
		return wire.FileChar
	}
	return wire.FileBlock
}
