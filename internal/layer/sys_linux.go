package layer

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// maxHeld is how deep a recursion keeps each directory's descriptor. Below that
// it closes them on the way down and comes back by "..", so that a tree of any
// depth is walked with a bounded number of descriptors.
const maxHeld = 200

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// openDirAt opens directory name beneath dir, never through a link. The caller
// closes it.
func openDirAt(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, openDirFlags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// openFileAt opens a regular file for reading and fails with ELOOP or EINVAL
// for anything else. It neither blocks on a FIFO nor touches the access time. A file that
// another process holds a lease on (fcntl(2), F_SETLEASE) is a Conflict.
func openFileAt(dir int, name string, st *unix.Stat_t) (int, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := unix.Openat(dir, name, flags|unix.O_NOATIME, 0)
	for err == unix.EINTR || err == unix.EPERM {
		fd, err = unix.Openat(dir, name, flags, 0)
		if err == unix.EPERM {
			return -1, err
		}
	}
	if err == unix.EAGAIN { // O_NONBLOCK does not wait for the lease to end
		return -1, fault.New(fault.Conflict, "file %q is leased by another process", limit.Cut(name, limit.MessagePath)).Because(err).
			WithHint("stop the process that holds the lease; find it with: cat /proc/locks")
	}
	if err != nil {
		return -1, err
	}
	if err := unix.Fstat(fd, st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, unix.EINVAL
	}
	return fd, nil
}

// lstatAt is fstatat without following links.
func lstatAt(dir int, name string, st *unix.Stat_t) error {
	for {
		err := unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW)
		if err != unix.EINTR {
			return err
		}
	}
}

// readLinkAt reads a symbolic link's target.
func readLinkAt(dir int, name string) (string, error) {
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

// comeBack opens the directory above child again and makes sure that it is the
// one that was left.
func comeBack(child int, ino, dev uint64) (int, error) {
	fd, err := openDirAt(child, "..")
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if st.Ino != ino || st.Dev != dev {
		unix.Close(fd)
		return -1, unix.ESTALE
	}
	return fd, nil
}

// dirReader lists directories with one reused buffer. Names that it gives out
// lie in that buffer, end with a NUL byte behind them, and hold until the next
// call. Not safe for concurrent use.
type dirReader struct {
	buf    []byte
	off, n int
	fd     int
}

const dirBufSize = 32 << 10

// readers are kept for lists that are short-lived.
var readers = sync.Pool{New: func() any { return &dirReader{} }}

// start begins at the first entry of fd, which must be open for reading.
func (r *dirReader) start(fd int) error {
	r.begin(fd)
	_, err := unix.Seek(fd, 0, 0)
	return err
}

// begin is start for a directory that nobody has read from yet.
func (r *dirReader) begin(fd int) {
	if r.buf == nil {
		r.buf = make([]byte, dirBufSize)
	}
	r.fd, r.off, r.n = fd, 0, 0
}

// next gives the next entry but "." and "..", its type (DT_*), and false at the
// end.
func (r *dirReader) next() (name []byte, typ byte, ok bool, err error) {
	for {
		if r.off >= r.n {
			n, err := unix.Getdents(r.fd, r.buf)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return nil, 0, false, err
			}
			if n <= 0 {
				return nil, 0, false, nil
			}
			r.off, r.n = 0, n
		}
		rec := r.buf[r.off:r.n]
		reclen := int(*(*uint16)(unsafe.Pointer(&rec[16])))
		typ = rec[18]
		name = rec[19:reclen]
		r.off += reclen
		end := bytes.IndexByte(name, 0)
		if end < 0 {
			return nil, 0, false, unix.EIO
		}
		name = name[:end]
		if len(name) == 0 || name[0] == '.' && (len(name) == 1 || len(name) == 2 && name[1] == '.') {
			continue
		}
		return name, typ, true, nil
	}
}

// stat is lstatAt for a name that next gave out: no copy, no allocation.
func (r *dirReader) stat(name []byte, st *unix.Stat_t) error {
	for {
		_, _, e := syscall.Syscall6(unix.SYS_NEWFSTATAT, uintptr(r.fd), uintptr(unsafe.Pointer(unsafe.SliceData(name))),
			uintptr(unsafe.Pointer(st)), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
		switch e {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return e
		}
	}
}

// names lists fd's entries as strings of their own.
func (r *dirReader) names(fd int) ([]string, error) {
	if err := r.start(fd); err != nil {
		return nil, err
	}
	var out []string
	for {
		name, _, ok, err := r.next()
		if err != nil || !ok {
			return out, err
		}
		out = append(out, string(name))
	}
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
func isReg(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// isWhiteout says whether an entry in overlay form stands for "nothing here".
func isWhiteout(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func mtimeNs(st *unix.Stat_t) int64 { return st.Mtim.Sec*1e9 + st.Mtim.Nsec }
func ctimeNs(st *unix.Stat_t) int64 { return st.Ctim.Sec*1e9 + st.Ctim.Nsec }

// openBeneath opens a relative path of any length beneath dir, through no link.
func openBeneath(dir int, rel string, flags uint64) (int, error) {
	cur, own := dir, false
	for {
		head, tail := rel, ""
		if len(rel) > 2048 {
			i := strings.IndexByte(rel[2048:], '/')
			if i >= 0 {
				head, tail = rel[:2048+i], rel[2048+i+1:]
			}
		}
		how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
		if tail != "" {
			how.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
		}
		fd, err := unix.Openat2(cur, head, &how)
		for errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			fd, err = unix.Openat2(cur, head, &how)
		}
		if own {
			unix.Close(cur)
		}
		if err != nil || tail == "" {
			return fd, err
		}
		cur, own, rel = fd, true, tail
	}
}
