//go:build linux && (amd64 || arm64)

package notify

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ptmx is the device number of /dev/ptmx, which every master of a pseudo terminal has.
var ptmx = unix.Mkdev(5, 2)

// addition is struct seccomp_notif_addfd.
type addition struct {
	id           uint64
	flags        uint32
	from, to     uint32
	newfileFlags uint32
}

// openSlave carries out ioctl(TIOCGPTPEER) for a caller: it opens the slave of a terminal whose master the caller has.
// To a caller under Landlock that cannot open all terminals, the kernel would refuse its own.
func (s *server) openSlave(c caller) {
	slave, err := c.slave()
	s.opt.Lock.RLock()
	defer s.opt.Lock.RUnlock()
	if err != nil {
		s.answer(c.id, fail(err))
		return
	}
	defer unix.Close(slave)
	given, err := s.add(addition{id: c.id, from: uint32(slave), newfileFlags: uint32(c.args[2]) & unix.O_CLOEXEC})
	if err != nil {
		s.answer(c.id, fail(err))
		return
	}
	s.answer(c.id, verdict{value: given})
}

// add gives the caller a descriptor, and returns its number there. The caller takes it by itself; a signal that
// interrupts the wait for that withdraws it, and add gives it again. SECCOMP_ADDFD_FLAG_SEND is not used: interrupted,
// it has already answered the call with 0 and without a descriptor (seccomp_notify_addfd in kernel/seccomp.c).
func (l listener) add(a addition) (fd int64, err error) {
	err = uninterrupted(func() error {
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&a)))
		if e != 0 {
			return e
		}
		fd = int64(n)
		return nil
	})
	return fd, err
}

// slave opens the slave of the caller's terminal.
func (c caller) slave() (int, error) {
	master, err := c.descriptor(int(int32(c.args[0])))
	if err != nil {
		return -1, err
	}
	defer unix.Close(master)
	var st unix.Stat_t
	if err := unix.Fstat(master, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != ptmx { // for another device the request has another meaning
		return -1, unix.ENOTTY
	}
	flags := c.args[2]&(unix.O_ACCMODE|unix.O_NONBLOCK) | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, uintptr(flags))
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}
