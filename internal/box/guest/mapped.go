//go:build linux && (amd64 || arm64)

package guest

import (
	"bufio"
	"bytes"
	"errors"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// What Mapped holds at most, in bytes: as JSON, both fit into a frame of the
// keeper (wire.MaxFrame), the second beside the programs.
const (
	maxMapped  = 512 << 10
	maxWritten = 96 << 10
)

// MappedBy tells what the processes, numbers of our /proc, have mapped, programs
// that run among them.
func MappedBy(pids []int) initlink.Mapped {
	l := newMapList(maxMapped)
	for _, pid := range pids {
		l.read(pid, (*mapList).scan)
	}
	return l.mapped()
}

// WrittenBy tells what the processes, numbers of our /proc, can write through
// shared mappings: what they write there need not touch the file's times. Files
// below own are left out: no snapshot has them. pathless says that inodes are
// enough to find a file that has no path any more.
func WrittenBy(pids []int, own []string, pathless bool) initlink.Mapped {
	l := newMapList(maxWritten)
	l.own, l.pathless = own, pathless
	for _, pid := range pids {
		l.read(pid, (*mapList).query)
	}
	return l.mapped()
}

// mapList is a Mapped in the making.
type mapList struct {
	inodes   map[uint64]struct{}
	paths    map[string]struct{}
	left     int // bytes
	all      bool
	own      []string
	pathless bool
}

func newMapList(most int) *mapList {
	return &mapList{inodes: map[uint64]struct{}{}, paths: map[string]struct{}{}, left: most}
}

func (l *mapList) mapped() initlink.Mapped {
	if l.all || l.left < 0 {
		return initlink.Mapped{All: true}
	}
	m := initlink.Mapped{Inodes: slices.Sorted(maps.Keys(l.inodes))}
	for _, p := range slices.Sorted(maps.Keys(l.paths)) {
		m.Paths = append(m.Paths, []byte(p))
	}
	return m
}

// read adds what a process has mapped, unless it is gone.
func (l *mapList) read(pid int, list func(*mapList, *os.File) error) {
	if l.all || l.left < 0 {
		return
	}
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/maps")
	if err == nil {
		err = list(l, f)
		f.Close()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
		l.all = true
	}
}

// scan adds each line of /proc/PID/maps.
func (l *mapList) scan(f *os.File) error { return eachMapping(f, false, l.add) }

// eachMapping reads the files of /proc/PID/maps, or only those that are mapped
// shared and writable:
//
//	7f00-7f01 rw-s 00000000 fe:00 12345      /path
func eachMapping(f *os.File, written bool, add func(ino uint64, path []byte)) error {
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 256<<10)
	for lines.Scan() {
		line := lines.Bytes()
		i := bytes.IndexByte(line, '/')
		if i < 0 {
			continue
		}
		fields := bytes.Fields(line[:i])
		if len(fields) != 5 || len(fields[1]) != 4 || written && (fields[1][1] != 'w' || fields[1][3] != 's') {
			continue
		}
		ino, err := strconv.ParseUint(string(fields[4]), 10, 64)
		if err != nil {
			return err
		}
		if ino != 0 {
			add(ino, bytes.ReplaceAll(line[i:], []byte(`\012`), []byte("\n")))
		}
	}
	return lines.Err()
}

// add adds a file.
func (l *mapList) add(ino uint64, path []byte) {
	if _, known := l.inodes[ino]; !known {
		l.inodes[ino] = struct{}{}
		l.left -= 24
	}
	if _, known := l.paths[string(path)]; !known {
		l.paths[string(path)] = struct{}{}
		l.left -= len(path) + 8
	}
}

// addWritten adds a file that can be written. One whose name was removed may have
// others; and a name may itself end like that.
func (l *mapList) addWritten(ino uint64, path []byte) {
	p := string(path)
	for _, own := range l.own {
		if strings.HasPrefix(p, own+"/") {
			return
		}
	}
	if name, gone := strings.CutSuffix(p, " (deleted)"); gone {
		if strings.Count(name, "/") == 1 || name == "/dev/zero" {
			return // the kernel's: /memfd:x, /SYSV00000000, /[aio], ...; memory that is shared
		}
		l.all = l.all || !l.pathless
	}
	l.add(ino, path)
}
