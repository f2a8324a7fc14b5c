//go:build linux && (amd64 || arm64)

package guest

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
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

// Suspects remembers what a freeze found for the next one.
type Suspects struct{ last map[string]bool }

// Of gives the paths of the files that the processes, numbers of our /proc, have
// mapped shared and writable, and those that were told of the time before.
func (s *Suspects) Of(pids []int) []string {
	now := map[string]bool{}
	for _, pid := range pids {
		mappings(pid, now)
	}
	var list []string
	for p := range now {
		list = append(list, p)
	}
	for p := range s.last {
		if !now[p] {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	s.last = now
	return list
}

// mappings adds the paths of the files that pid has mapped shared and writable:
// what it writes there need not have touched the file's times yet. Files without
// a path any more, and those of our own mounts, are left out.
func mappings(pid int, into map[string]bool) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return // gone, or of a user namespace above ours
	}
	defer f.Close()
	var name [4096]byte
	q := procmapQuery{flags: procmapWritable | procmapShared | procmapOrNext | procmapFileBacked}
	for {
		q.size, q.nameSize, q.nameAddr = uint64(unsafe.Sizeof(q)), uint32(len(name)), uint64(uintptr(unsafe.Pointer(&name[0])))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), procmapQueryIoctl, uintptr(unsafe.Pointer(&q)))
		switch e {
		case 0:
			if q.nameSize > 0 {
				suspect(string(name[:q.nameSize-1]), into)
			}
			q.addr = q.end
		case unix.ENOENT, unix.ESRCH:
			return
		default:
			mappingsText(f, into)
			return
		}
	}
}

// mappingsText is mappings for kernels without PROCMAP_QUERY.
func mappingsText(f *os.File, into map[string]bool) {
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		// 7f00-7f01 rw-s 00000000 fe:00 12345      /path
		_, rest, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		if len(rest) < 4 || rest[1] != 'w' || rest[3] != 's' {
			continue
		}
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			suspect(strings.ReplaceAll(string(rest[i:]), `\012`, "\n"), into)
		}
	}
}

func suspect(path string, into map[string]bool) {
	if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, " (deleted)") {
		return
	}
	for _, own := range []string{"/dev/", "/proc/", "/sys/", "/run/", "/memfd:", "/SYSV"} {
		if strings.HasPrefix(path, own) {
			return
		}
	}
	into[path] = true
}
