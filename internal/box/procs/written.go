//go:build linux && (amd64 || arm64)

package procs

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is struct procmap_query (linux/fs.h, Linux 6.11).
type procmapQuery struct {
	size, flags, addr                   uint64
	start, end, vmaFlags, pageSize      uint64
	offset, inode                       uint64
	major, minor, nameSize, buildIDSize uint32
	nameAddr, buildIDAddr               uint64
}

const (
	procmapQueryIoctl = 0xc0686611 // _IOWR('f', 17, struct procmap_query)

	procmapWritable   = 0x02
	procmapShared     = 0x08
	procmapOrNext     = 0x10
	procmapFileBacked = 0x20
)

// query adds the files of /proc/PID/maps that are mapped shared and writable. The kernel filters out other mappings, of
// which there may be thousands.
func (l *mapList) query(f *os.File) error {
	name := make([]byte, unix.PathMax)
	var pin runtime.Pinner // the query holds the address as a number
	pin.Pin(&name[0])
	defer pin.Unpin()
	q := procmapQuery{flags: procmapWritable | procmapShared | procmapOrNext | procmapFileBacked}
	fd := f.Fd()
	for {
		q.size, q.nameSize = uint64(unsafe.Sizeof(q)), uint32(len(name))
		q.nameAddr = uint64(uintptr(unsafe.Pointer(&name[0])))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, procmapQueryIoctl, uintptr(unsafe.Pointer(&q)))
		switch e {
		case 0:
			if q.nameSize > 0 && name[0] == '/' {
				l.addWritten(q.inode, name[:q.nameSize-1])
			}
			q.addr = q.end
		case unix.ENOENT, unix.ESRCH:
			return e // no more mappings, or the process has ended
		default: // an older kernel, or a path that is too long for it
			return eachMapping(f, true, l.addWritten)
		}
	}
}
