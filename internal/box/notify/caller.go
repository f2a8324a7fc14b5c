//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

// caller is the thread that waits for an answer.
type caller struct {
	s   *server
	id  uint64
	tid int

	nr   int32 // the system call number
	args [6]uint64

	slot *slot // of a call that inetCall serves
}

// place is a path argument: a directory descriptor and an address, both of the caller.
type place struct {
	dir  int32
	addr uint64
}

// errGone means that the caller no longer waits.
var errGone = errors.New("the calling process has exited")

const pageSize = 4096

// read copies len(b) bytes at addr of the caller's memory, or fewer if the memory ends earlier. EFAULT means that
// nothing can be read there.
func (c caller) read(addr uint64, b []byte) (int, error) {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	return unix.ProcessVMReadv(c.tid, local, remote, 0)
}

// readAll copies len(b) bytes at addr of the caller's memory.
func (c caller) readAll(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if n, err := c.read(addr, b); err != nil || n < len(b) {
		return unix.EFAULT
	}
	return nil
}

// str copies the C string at addr, of at most max bytes without its NUL; a longer one is ENAMETOOLONG. It reads no
// further than the page on which the string ends.
func (c caller) str(addr uint64, max int) (string, error) {
	var first [256]byte
	buf := first[:0]
	for len(buf) <= max {
		at := addr + uint64(len(buf))
		n := int(pageSize - at%pageSize)
		if len(buf) == 0 && n > len(first) {
			n = len(first)
		}
		chunk := make([]byte, n)
		got, err := c.read(at, chunk)
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(chunk[:got], 0); i >= 0 {
			if len(buf)+i > max {
				return "", unix.ENAMETOOLONG
			}
			return string(append(buf, chunk[:i]...)), nil
		}
		if got < n {
			return "", unix.EFAULT
		}
		buf = append(buf, chunk[:got]...)
	}
	return "", unix.ENAMETOOLONG
}

// path copies the path of p.
func (c caller) path(p place) (string, error) { return c.str(p.addr, unix.PathMax-1) }

// start opens the directory at which a path starts: the caller's root for an absolute path, otherwise the working
// directory or the one to which a descriptor refers.
func (c caller) start(dir int32, name string) (int, error) {
	what := "cwd"
	switch {
	case strings.HasPrefix(name, "/"):
		what = "root"
	case dir != fdCwd && dir < 0:
		return -1, unix.EBADF
	case dir != fdCwd:
		what = "fd/" + strconv.Itoa(int(dir))
	}
	fd, err := openat(unix.AT_FDCWD, procPath(c.tid, what), unix.O_PATH)
	if errors.Is(err, unix.ENOENT) && strings.HasPrefix(what, "fd/") {
		err = unix.EBADF
	}
	return fd, err
}

// open opens name with O_PATH and flags as the caller would resolve it: relative to dir, within the caller's root. It
// does not follow magic links (ELOOP), except that the caller may name its own descriptors below /proc/self/fd and
// /dev/fd.
func (c caller) open(dir int32, name string, flags int) (int, error) {
	if name == "" {
		return -1, unix.ENOENT
	}
	if fd, ok := ownDescriptor(name); ok && flags&unix.O_NOFOLLOW == 0 {
		return c.openFD(fd)
	}
	start, err := c.start(dir, name)
	if err != nil {
		return -1, err
	}
	defer unix.Close(start)
	flags |= unix.O_PATH
	if strings.HasPrefix(name, "/") {
		return dirfd.Open(start, c.ownProcess(name), flags, dirfd.InRoot)
	}
	chrooted, err := c.chrooted()
	if err != nil {
		return -1, err
	}
	if !chrooted {
		return dirfd.Open(start, name, flags, unix.RESOLVE_NO_MAGICLINKS)
	}
	// A relative path of a caller with another root: while it stays below its start, roots do not matter. Otherwise it
	// is resolved as an absolute path.
	fd, err := dirfd.Open(start, name, flags, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
	if !errors.Is(err, unix.EXDEV) {
		return fd, err
	}
	root, err := os.Readlink(procPath(c.tid, "root"))
	if err != nil {
		return -1, err
	}
	at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(start))
	if err != nil {
		return -1, err
	}
	rel, below := strings.CutPrefix(at, strings.TrimSuffix(root, "/"))
	if !below || (rel != "" && rel[0] != '/') {
		return -1, unix.EXDEV // the directory is outside the caller's root
	}
	rootFD, err := c.start(fdCwd, "/")
	if err != nil {
		return -1, err
	}
	defer unix.Close(rootFD)
	return dirfd.Open(rootFD, rel+"/"+name, flags, dirfd.InRoot)
}

// openFD opens the file to which the caller's descriptor fd refers, with O_PATH.
func (c caller) openFD(fd int32) (int, error) {
	if fd < 0 {
		return -1, unix.EBADF
	}
	got, err := openat(unix.AT_FDCWD, procPath(c.tid, "fd/"+strconv.Itoa(int(fd))), unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		err = unix.EBADF
	}
	return got, err
}

// openParent opens the directory that contains name, and returns the last element of name, or "" if no such element can
// be created, removed or renamed.
func (c caller) openParent(dir int32, name string) (int, string, error) {
	trimmed := strings.TrimRight(name, "/")
	if trimmed == "" {
		return -1, "", unix.ENOENT
	}
	parent, base := path.Split(trimmed)
	if base == "." || base == ".." {
		base = ""
	}
	if parent == "" {
		parent = "."
	}
	fd, err := c.open(dir, parent, unix.O_DIRECTORY)
	return fd, base, err
}

// opener and openerFD return a function that opens the target of an operation.
func (c caller) opener(p place, follow bool) func() (int, error) {
	return func() (int, error) {
		name, err := c.path(p)
		if err != nil {
			return -1, err
		}
		flags := 0
		if !follow {
			flags = unix.O_NOFOLLOW
		}
		return c.open(p.dir, name, flags)
	}
}

func (c caller) openerFD(fd int32) func() (int, error) {
	return func() (int, error) { return c.openFD(fd) }
}

// chrooted reports whether the caller's root differs from that of this process.
func (c caller) chrooted() (bool, error) {
	var theirs, ours unix.Stat_t
	if err := unix.Stat(procPath(c.tid, "root/"), &theirs); err != nil {
		return false, err
	}
	if err := unix.Stat("/", &ours); err != nil {
		return false, err
	}
	return theirs.Dev != ours.Dev || theirs.Ino != ours.Ino, nil
}

// ownProcess replaces /proc/self, which would be this process, by the caller's own directory.
func (c caller) ownProcess(name string) string {
	for _, p := range [...]string{"/proc/self", "/proc/thread-self"} {
		if rest, ok := strings.CutPrefix(name, p); ok && (rest == "" || rest[0] == '/') {
			return "/proc/" + strconv.Itoa(c.tid) + rest
		}
	}
	return name
}

// ownDescriptor reports whether name is one of the usual names of the caller's own descriptors.
func ownDescriptor(name string) (int32, bool) {
	for i, std := range [...]string{"/dev/stdin", "/dev/stdout", "/dev/stderr"} {
		if name == std {
			return int32(i), true
		}
	}
	for _, p := range [...]string{"/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"} {
		if rest, ok := strings.CutPrefix(name, p); ok {
			n, err := strconv.ParseUint(rest, 10, 31)
			return int32(n), err == nil
		}
	}
	return 0, false
}

func openat(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// byFD returns a path of the file to which an O_PATH descriptor refers, for calls that do not take a descriptor. If
// that file is a symbolic link, it is not followed.
func byFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
