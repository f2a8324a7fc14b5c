// Package unixsock makes unix domain sockets under names of any length, with the
// mode that they are to have from birth. It imports nothing of ours.
package unixsock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listen makes the socket name in the directory dir, with the permission bits mode,
// whatever the umask. It takes its name when it is ready: a dead socket of before is
// replaced, and nobody meets one that does not listen yet. The caller closes the
// listener, which leaves the name.
func Listen(dir, name string, mode os.FileMode) (_ *net.UnixListener, err error) {
	short, d, err := through(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	next := filepath.Join(short, "."+name+".new")
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := listen(next, mode)
	if err != nil {
		return nil, err
	}
	err = os.Chmod(next, mode)
	if err == nil {
		err = os.Rename(next, filepath.Join(short, name))
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close(), os.Remove(next))
	}
	return ln, nil
}

// backlog is how many connections may wait; the kernel takes less when
// net.core.somaxconn is less.
const backlog = 4096

// listen makes a socket that nobody may connect to for whom mode is not.
func listen(path string, mode os.FileMode) (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	// Its file gets the mode of the socket, less the umask (unix_bind_bsd in the
	// kernel's net/unix/af_unix.c). The umask is every thread's, and stays.
	if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
		return nil, os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	ln, err := net.FileListener(f) // of a descriptor of its own, and it leaves the name
	if err != nil {
		return nil, err
	}
	return ln.(*net.UnixListener), nil
}

// Dial connects to the socket name in the directory dir.
func Dial(dir, name string) (*net.UnixConn, error) {
	short, d, err := through(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(short, name), Net: "unix"})
}

// through gives a short name of a directory, which is good until d is closed: a
// socket's path may have 107 bytes only (unix(7)).
func through(dir string) (short string, d *os.File, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), os.NewFile(uintptr(fd), dir), nil
}
