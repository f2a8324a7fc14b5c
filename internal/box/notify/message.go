//go:build linux && (amd64 || arm64)

package notify

import (
	"encoding/binary"
	"math"

	"golang.org/x/sys/unix"
)

// The layout of msghdr, mmsghdr, iovec and cmsghdr (recvmsg(2), recvmmsg(2), cmsg(3)) with 64 bits.
const (
	msgNameSize    = 8
	msgParts       = 16
	msgPartsCount  = 24
	msgControl     = 32
	msgControlSize = 40
	msgFlags       = 48
	msgSize        = 56
	mmsgSize       = msgSize + 8 // with the size of the message

	iovecSize = 16

	cmsgLevel = 8
	cmsgType  = 12
	cmsgSize  = 16
	cmsgAlign = 8
)

const (
	maxParts   = 1024     // UIO_MAXIOV
	maxControl = 20 << 10 // net.core.optmem_max of older kernels
)

// message is a copy of a msghdr and its array of parts (iovec). Nothing that they point to was read.
type message struct {
	at                   uint64 // where it is
	name                 uint64
	nameSize             int32
	parts                []unix.RemoteIovec // cut to maxDatagram bytes in total
	size                 int                // of all parts
	control, controlSize uint64
}

// message copies a message at an address of the caller's memory.
func (c caller) message(at uint64) (*message, error) {
	b := make([]byte, msgSize)
	if err := c.readAll(at, b); err != nil {
		return nil, err
	}
	m := &message{
		at:          at,
		name:        binary.NativeEndian.Uint64(b),
		nameSize:    int32(binary.NativeEndian.Uint32(b[msgNameSize:])),
		control:     binary.NativeEndian.Uint64(b[msgControl:]),
		controlSize: binary.NativeEndian.Uint64(b[msgControlSize:]),
	}
	if m.name != 0 && m.nameSize < 0 {
		return nil, unix.EINVAL
	}
	count := binary.NativeEndian.Uint64(b[msgPartsCount:])
	if count > maxParts {
		return nil, unix.EMSGSIZE
	}
	list := make([]byte, count*iovecSize)
	if err := c.readAll(binary.NativeEndian.Uint64(b[msgParts:]), list); err != nil {
		return nil, err
	}
	return m, m.addParts(list)
}

// addParts decodes an array of iovec.
func (m *message) addParts(list []byte) error {
	for ; len(list) > 0; list = list[iovecSize:] {
		base, size := binary.NativeEndian.Uint64(list), binary.NativeEndian.Uint64(list[iovecSize/2:])
		if size > math.MaxInt64 {
			return unix.EINVAL
		}
		n := int(min(size, uint64(maxDatagram-m.size)))
		m.parts = append(m.parts, unix.RemoteIovec{Base: uintptr(base), Len: n})
		m.size += n
	}
	return nil
}

// gather copies the content of a message.
func (c caller) gather(m *message) ([]byte, error) {
	b := make([]byte, m.size)
	if m.size == 0 {
		return b, nil
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	if n, err := unix.ProcessVMReadv(c.tid, local, m.parts, 0); err != nil || n < len(b) {
		return nil, unix.EFAULT
	}
	return b, nil
}

// scatter stores the content of a message, which has room for it.
func (m *message) scatter(to memory, b []byte) error {
	for _, p := range m.parts {
		n := min(p.Len, len(b))
		if err := to.write(uint64(p.Base), b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// finish stores the address, and what recvmsg(2) returns in the header.
func (m *message) finish(to memory, name []byte, flags int) error {
	if m.name != 0 {
		if err := to.give(m.name, m.at+msgNameSize, int(m.nameSize), name, len(name)); err != nil {
			return err
		}
	}
	if err := to.write(m.at+msgControlSize, make([]byte, 8)); err != nil {
		return err
	}
	return to.write(m.at+msgFlags, binary.NativeEndian.AppendUint32(nil, uint32(flags)))
}

// checkControl reads the control data of a message, which is ignored. Only UDP_SEGMENT is refused, by which one message
// is many datagrams, as by a kernel that cannot cut them: libraries for QUIC cut them then.
func (c caller) checkControl(m *message) error {
	switch {
	case m.controlSize == 0:
		return nil
	case m.controlSize > maxControl:
		return unix.ENOBUFS
	}
	b := make([]byte, m.controlSize)
	if err := c.readAll(m.control, b); err != nil {
		return err
	}
	return refusedControl(b)
}

// refusedControl returns the error of a call with some control data.
func refusedControl(b []byte) error {
	for len(b) >= cmsgSize {
		size := binary.NativeEndian.Uint64(b)
		if size < cmsgSize || size > uint64(len(b)) {
			return unix.EINVAL
		}
		if binary.NativeEndian.Uint32(b[cmsgLevel:]) == unix.SOL_UDP &&
			binary.NativeEndian.Uint32(b[cmsgType:]) == unix.UDP_SEGMENT {
			return unix.EIO
		}
		next := (size + cmsgAlign - 1) / cmsgAlign * cmsgAlign
		b = b[min(next, uint64(len(b))):]
	}
	return nil
}
