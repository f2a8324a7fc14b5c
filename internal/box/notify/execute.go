//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Each program start is notified twice: when it is requested, by execve(2), and when the program has begun, by the
// first call that C libraries and the Go runtime make. The request is only the caller's claim, which its other threads
// may change until the kernel has read it. So Options.Asked and Options.Began let their receiver ask the kernel
// afterwards what was executed. Both notifications are answered with CONTINUE, at once.

// Execution is a thread's execve(2) request, with the arguments that the thread claims.
type Execution struct {
	TID  int    // the thread
	Path string // the file; for a relative path with a directory descriptor, after the directory's path
	Args []byte // each ends with NUL
	Cut  bool   // there are more arguments
}

// Bounds of the copy of a caller's arguments.
const (
	maxAskedArgs  = 64
	maxAskedBytes = 4 << 10
	maxAskedFirst = 256 // bytes of each in the first read
)

// executable returns the path of the file to be executed, and the address of its arguments.
func (c caller) executable() (path string, argv uint64, err error) {
	dir, name, argv := int32(fdCwd), c.args[0], c.args[1]
	if c.nr == unix.SYS_EXECVEAT {
		dir, name, argv = int32(c.args[0]), c.args[1], c.args[2]
	}
	path, err = c.str(name, unix.PathMax-1)
	if err == nil && dir != fdCwd && !strings.HasPrefix(path, "/") {
		at, _ := os.Readlink(procPath(c.tid, "fd/"+strconv.Itoa(int(dir))))
		path = strings.TrimSuffix(at+"/"+path, "/")
	}
	return path, argv, err
}

// missing reports whether nothing exists at an absolute path, as when compilers and execvp(3) try one directory after
// the other. The caller then gets ENOENT, and the kernel does not execute anything, so later changes of the path do not
// matter. A caller that may not search a directory also gets ENOENT, and not EACCES.
func (c caller) missing(path string) bool {
	if c.nr != unix.SYS_EXECVE || !strings.HasPrefix(path, "/") {
		return false
	}
	fd, err := c.open(fdCwd, path, 0)
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ENOENT) && c.s.valid(c.id)
}

// execute reports an execve(2) and answers it.
func (s *server) execute(c caller) {
	path, argv, err := c.executable()
	if err != nil { // the kernel will fail in the same way
		s.answer(c.id, proceed)
		return
	}
	if c.missing(path) {
		s.answer(c.id, verdict{errno: unix.ENOENT})
		return
	}
	x := Execution{TID: c.tid, Path: path}
	x.Args, x.Cut = c.strings(argv)
	if !s.valid(c.id) { // the data may be that of another process
		return
	}
	s.opt.Asked(x)
	if !s.answer(c.id, proceed) {
		s.opt.Unasked(c.tid)
	}
}

// strings copies the beginning of a vector of strings that ends with a null pointer, with two calls if no string is
// long.
func (c caller) strings(vector uint64) (all []byte, cut bool) {
	var words [maxAskedArgs]uint64
	n := min(len(words)*8, int(2*pageSize-vector%pageSize)) // at most two pages
	got, _ := c.read(vector, unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n))
	list, whole := words[:got/8], false
	for i, at := range list {
		if at == 0 {
			list, whole = list[:i], true
			break
		}
	}
	if len(list) == 0 {
		return nil, !whole
	}
	var buf [maxAskedArgs * maxAskedFirst]byte
	var remote [maxAskedArgs]unix.RemoteIovec
	room := 0
	for i, at := range list {
		n := min(maxAskedFirst, int(pageSize-at%pageSize))
		remote[i] = unix.RemoteIovec{Base: uintptr(at), Len: n}
		room += n
	}
	got, _ = unix.ProcessVMReadv(c.tid, []unix.Iovec{{Base: &buf[0], Len: uint64(room)}}, remote[:len(list)], 0)
	for i, from := 0, 0; i < len(list); i++ {
		to := from + remote[i].Len
		arg, ended := []byte(nil), false
		if to <= got {
			arg, _, ended = bytes.Cut(buf[from:to], []byte{0})
		}
		if from = to; !ended {
			text, err := c.str(uint64(remote[i].Base), maxAskedBytes-len(all))
			if err != nil {
				return append(all, arg...), true
			}
			arg = []byte(text)
		}
		if all = append(append(all, arg...), 0); len(all) >= maxAskedBytes {
			return all[:maxAskedBytes], true
		}
	}
	return all, !whole
}
