//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// maxConnecting is how many calls of connect(2) are carried out at a time: each may take minutes, and a thread of this
// process. Further callers wait.
const maxConnecting = 128

// maxAddress is the size of sockaddr_storage, the largest address that the kernel takes.
const maxAddress = 128

// pathAt is the offset of sun_path in sockaddr_un.
const pathAt = 2

// CanConnect returns why this process cannot carry out connect(2) for its descendants; nil if it can.
func CanConnect() error {
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fault.Wrap(err, "pidfd_open")
	}
	defer unix.Close(self)
	fd, err := unix.PidfdGetfd(self, self, 0)
	if err != nil { // the profiles of container engines allow it only with CAP_SYS_PTRACE
		return fault.Wrap(err, "pidfd_getfd")
	}
	unix.Close(fd)
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if s := string(bytes.TrimSpace(scope)); err == nil && s != "0" && s != "1" {
		return fault.New(fault.Unsupported, "kernel.yama.ptrace_scope is %s", s).
			WithHint("set it to 1: sysctl kernel.yama.ptrace_scope=1")
	}
	return nil
}

// connect carries out a caller's connect(2), and never passes it to the kernel: the caller's descriptors and its memory
// could change after a check. It uses the caller's own socket, and an address that it has read once. A path is resolved
// to a file that stays open while it is checked and connected to.
//
// A call may take minutes, during which the sandbox can be frozen.
func (s *server) connect(c caller) {
	w := &waiting{c: c, pause: firstCheck}
	v := verdict{errno: w.enter(s.connecting)}
	if v.errno == 0 {
		v = s.connectFor(c)
		<-s.connecting
	}
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	s.answer(c.id, v)
}

func (s *server) connectFor(c caller) verdict {
	socket, err := c.descriptor(int(int32(c.args[0])))
	if err != nil && s.inet != nil {
		return s.unreachable(c, err)
	}
	if err != nil {
		return fail(err)
	}
	defer unix.Close(socket)
	address, err := c.askedAddress(c.args[1], c.args[2])
	if err != nil {
		return fail(err)
	}
	if !s.valid(c.id) {
		return verdict{errno: unix.ESRCH} // the caller has died
	}
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fail(err)
	}
	if s.inet != nil {
		if v, ok := s.inetConnect(c, socket, address); ok {
			return v
		}
	}
	if domain == unix.AF_UNIX {
		file, err := s.reachable(c, address)
		if err != nil {
			return s.refused(c, "connect", err)
		}
		defer unix.Close(file)
		address = append(address[:pathAt:pathAt], byFD(file)+"\x00"...)
	}
	_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(socket), uintptr(unsafe.Pointer(&address[0])),
		uintptr(len(address)))
	return verdict{errno: e}
}

// errOutside is the refusal of a name that is not in Options.Sockets.
var errOutside = fmt.Errorf("not in a directory of the sandbox: %w", unix.EACCES)

// reachable opens the socket that the address of a Unix socket names, if it is in one of Options.Sockets. An abstract
// name is not: Landlock, which would distinguish the sandbox's own, does not restrict this process.
func (s *server) reachable(c caller, address []byte) (file int, err error) {
	name, _, _ := bytes.Cut(address[pathAt:], []byte{0})
	switch {
	case *(*uint16)(unsafe.Pointer(&address[0])) != unix.AF_UNIX:
		return -1, unix.EINVAL
	case len(name) == 0:
		return -1, errOutside
	}
	if file, err = c.open(fdCwd, string(name), 0); err != nil {
		return -1, err
	}
	at, err := os.Readlink(byFD(file))
	if err == nil {
		for _, dir := range s.opt.Sockets {
			if strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") {
				return file, nil
			}
		}
		err = errOutside
	}
	unix.Close(file)
	return -1, err
}

// refused answers a call that is not carried out, and reports it if it is a refusal of this package.
func (s *server) refused(c caller, call string, err error) verdict {
	if errors.Is(err, errOutside) {
		return s.tell(c, call, unix.EACCES)
	}
	return fail(err)
}

// descriptor returns a duplicate of the caller's descriptor fd, which the calling function closes.
func (c caller) descriptor(fd int) (int, error) {
	if c.s.inet != nil {
		if inode, err := socketAt(c.tid, int32(fd)); err == nil {
			if kept, ok := c.s.inet.kept.dup(inode, c.tid, int32(fd)); ok {
				return kept, nil
			}
		}
	}
	process, err := c.process()
	if err != nil {
		return -1, unix.EACCES
	}
	defer unix.Close(process)
	got, err := unix.PidfdGetfd(process, fd, 0)
	if errors.Is(err, unix.EPERM) { // a process that cannot be traced, such as ssh-agent(1)
		return -1, unix.EACCES
	}
	return got, err
}

// process returns a pidfd of the caller. Before Linux 6.9 there are none of threads (PIDFD_THREAD), and it is that of
// the process, which is the caller itself for the first thread.
func (c caller) process() (int, error) {
	fd, err := unix.PidfdOpen(c.tid, unix.O_EXCL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.PidfdOpen(c.tid, 0)
	}
	if err == nil {
		return fd, nil
	}
	status, err := c.status()
	if err != nil {
		return -1, err
	}
	pid, err := strconv.Atoi(status["Tgid"])
	if err != nil {
		return -1, err
	}
	return unix.PidfdOpen(pid, 0)
}
