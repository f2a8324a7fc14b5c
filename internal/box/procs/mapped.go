//go:build linux && (amd64 || arm64)

package procs

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

// The maximum sizes of a Mapped, in bytes. As JSON, both fit into a frame of the keeper (wire.MaxFrame), the second
// together with programs.
const (
	maxMapped  = 512 << 10
	maxWritten = 96 << 10
)

// MappedBy returns the files that processes, given by their pids in this process's /proc, have mapped, including the
// programs that they execute.
func MappedBy(pids []int) initlink.Mapped {
	l := newMapList(maxMapped)
	for _, pid := range pids {
		l.read(pid, (*mapList).scan)
	}
	return l.mapped()
}

// WrittenBy returns the files that processes, given by their pids in this process's /proc, can write through shared
// mappings: such a write need not change the times of the file. Files under the directories own are left out, since no
// snapshot contains them. pathless says that the caller can find a file by its inode, so that a file without a path
// does not set All.
func WrittenBy(pids []int, own []string, pathless bool) initlink.Mapped {
	l := newMapList(maxWritten)
	l.own, l.pathless = own, pathless
	for _, pid := range pids {
		l.read(pid, (*mapList).query)
	}
	return l.mapped()
}

// mapList collects a Mapped.
type mapList struct {
	inodes   map[uint64]struct{}
	paths    map[string]struct{}
	left     int // bytes left
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

// read adds the mapped files of a process, if it exists.
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

// eachMapping reads the files of /proc/PID/maps, or only those that are mapped shared and writable:
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

// addWritten adds a file that can be written. A file whose name was removed may have other names, and a name may itself
// end in " (deleted)".
func (l *mapList) addWritten(ino uint64, path []byte) {
	p := string(path)
	for _, own := range l.own {
		if strings.HasPrefix(p, own+"/") {
			return
		}
	}
	if name, gone := strings.CutSuffix(p, " (deleted)"); gone {
		if strings.Count(name, "/") == 1 || name == "/dev/zero" {
			return // shared memory with a name from the kernel: /memfd:x, /SYSV00000000, /[aio], ...
		}
		l.all = l.all || !l.pathless
	}
	l.add(ino, path)
}
