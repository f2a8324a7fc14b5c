// Package unixsock creates Unix domain sockets at paths of any length, with their final mode from the start. It
// imports no other package of Coppice.
package unixsock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listen creates the socket name in the directory dir, with the permission bits mode, whatever the umask. The name
// appears only once the socket listens, and replaces a stale socket. The caller closes the listener, which does not
// remove the name.
func Listen(dir, name string, mode os.FileMode) (*net.UnixListener, error) {
	return listenAs(unix.SOCK_STREAM, dir, name, mode)
}

// ListenPackets is Listen for connections that keep the boundaries of messages (SOCK_SEQPACKET).
func ListenPackets(dir, name string, mode os.FileMode) (*net.UnixListener, error) {
	return listenAs(unix.SOCK_SEQPACKET, dir, name, mode)
}

func listenAs(typ int, dir, name string, mode os.FileMode) (_ *net.UnixListener, err error) {
	short, d, err := through(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	next := filepath.Join(short, "."+name+".new")
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ln, err := listen(typ, next, mode)
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

// backlog is the maximum number of waiting connections; the kernel reduces it to net.core.somaxconn.
const backlog = 4096

// listen creates a socket that only users with access by mode can connect to.
func listen(typ int, path string, mode os.FileMode) (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	// The socket's file gets the mode of the socket, less the umask (unix_bind_bsd in the kernel's net/unix/af_unix.c).
	// The umask is not changed, because all threads share it.
	if err := unix.Fchmod(fd, uint32(mode.Perm())); err != nil {
		return nil, os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	ln, err := net.FileListener(f) // duplicates the descriptor, and does not remove the name
	if err != nil {
		return nil, err
	}
	return ln.(*net.UnixListener), nil
}

// Dial connects to the socket name in the directory dir.
func Dial(dir, name string) (*net.UnixConn, error) { return dialAs("unix", dir, name) }

// DialPackets connects to a socket of ListenPackets.
func DialPackets(dir, name string) (*net.UnixConn, error) { return dialAs("unixpacket", dir, name) }

func dialAs(network, dir, name string) (*net.UnixConn, error) {
	short, d, err := through(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return net.DialUnix(network, nil, &net.UnixAddr{Name: filepath.Join(short, name), Net: network})
}

// through returns a short path of a directory, valid until d is closed: a socket's path is at most 107 bytes
// (unix(7)).
func through(dir string) (short string, d *os.File, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), os.NewFile(uintptr(fd), dir), nil
}
