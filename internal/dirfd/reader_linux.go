package dirfd

import (
	"bytes"
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reader lists directories, one after the other, with one buffer. The returned names refer to that buffer, are
// followed by a NUL byte, and are valid until the next call. The zero value is ready to use. A Reader is not safe for
// concurrent use.
type Reader struct {
	buf    []byte
	off, n int
	fd     int
}

const readerSize = 32 << 10

// free has the Readers that were closed.
var free = sync.Pool{New: func() any { return &Reader{} }}

// NewReader returns a Reader, and reuses a closed one if possible.
func NewReader() *Reader { return free.Get().(*Reader) }

// Close releases the Reader for reuse by NewReader. It must not be used afterwards.
func (r *Reader) Close() { free.Put(r) }

// Start rewinds fd, which is open for reading, and starts at the first entry.
func (r *Reader) Start(fd int) error {
	r.StartNew(fd)
	_, err := unix.Seek(fd, 0, 0)
	return err
}

// StartNew is Start for a directory that was not read from yet.
func (r *Reader) StartNew(fd int) {
	if r.buf == nil {
		r.buf = make([]byte, readerSize)
	}
	r.fd, r.off, r.n = fd, 0, 0
}

// Next returns the next entry except "." and "..", its type (DT_*), and false at the end.
func (r *Reader) Next() (name []byte, typ byte, ok bool, err error) {
	const head = 19 // of struct linux_dirent64: inode, offset, length, type
	for {
		if r.off >= r.n {
			n, err := unix.Getdents(r.fd, r.buf)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n <= 0 {
				return nil, 0, false, err
			}
			r.off, r.n = 0, n
		}
		rec := r.buf[r.off:r.n]
		if len(rec) <= head {
			return nil, 0, false, unix.EIO
		}
		size := int(binary.NativeEndian.Uint16(rec[16:]))
		if size <= head || size > len(rec) {
			return nil, 0, false, unix.EIO
		}
		r.off += size
		typ, name = rec[head-1], rec[head:size]
		end := bytes.IndexByte(name, 0)
		if end <= 0 || bytes.IndexByte(name[:end], '/') >= 0 {
			return nil, 0, false, unix.EIO
		}
		if name = name[:end]; name[0] == '.' && (end == 1 || end == 2 && name[1] == '.') {
			continue
		}
		return name, typ, true, nil
	}
}

// Lstat is Lstat for a name that Next returned, without a copy or an allocation.
func (r *Reader) Lstat(name []byte, st *unix.Stat_t) error {
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

// Names returns the remaining names, unsorted.
func (r *Reader) Names() ([]string, error) {
	var all []string
	for {
		name, _, ok, err := r.Next()
		if err != nil || !ok {
			return all, err
		}
		all = append(all, string(name))
	}
}

// Names returns the names in dir, unsorted. It opens dir again, so that O_PATH is sufficient and concurrent callers
// do not share an offset.
func Names(dir int) ([]string, error) {
	fd, err := OpenDir(dir, ".")
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	r := NewReader()
	defer r.Close()
	r.StartNew(fd)
	return r.Names()
}
