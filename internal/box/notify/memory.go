//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// memory is a caller's memory. Unlike process_vm_writev(2), it is never that of another process which got the number of
// the caller.
type memory int

// memory opens the caller's memory, which the calling function closes.
func (c caller) memory() (memory, error) {
	fd, err := openat(unix.AT_FDCWD, procPath(c.tid, "mem"), unix.O_RDWR)
	if err != nil {
		return -1, unix.EFAULT
	}
	if !c.s.valid(c.id) {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return memory(fd), nil
}

func (m memory) close() { unix.Close(int(m)) }

func (m memory) write(at uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if n, err := unix.Pwrite(int(m), b, int64(at)); err != nil || n < len(b) {
		return unix.EFAULT
	}
	return nil
}

// size reads the size of the caller's buffer for a value, at an address of which write stores the value's size.
func (m memory) size(at uint64) (int, error) {
	var b [4]byte
	if n, err := unix.Pread(int(m), b[:], int64(at)); err != nil || n < len(b) {
		return 0, unix.EFAULT
	}
	n := int32(binary.NativeEndian.Uint32(b[:]))
	if n < 0 {
		return 0, unix.EINVAL
	}
	return int(n), nil
}

// give stores value in a buffer of room bytes, and its size at sizeAt.
func (m memory) give(at, sizeAt uint64, room int, value []byte, size int) error {
	if err := m.write(at, value[:min(room, len(value))]); err != nil {
		return err
	}
	return m.write(sizeAt, binary.NativeEndian.AppendUint32(nil, uint32(size)))
}
