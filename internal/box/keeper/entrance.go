//go:build linux && (amd64 || arm64)

package keeper

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
)

// entranceBacklog is how many connections of init may wait for the gate to accept them.
const entranceBacklog = 128

// listenEntrance makes the directory of the entrance of a locked workspace, and returns its listeners: see notify.Inet.
// Those of an earlier keeper are removed.
func listenEntrance(dir string) (stream, messages *os.File, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, nil, fault.Wrap(err, "remove the entrance of an earlier start")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, fault.Wrap(err, "make the entrance of the gate")
	}
	if stream, err = listenAt(dir, ask.Stream, unix.SOCK_STREAM); err != nil {
		return nil, nil, err
	}
	if messages, err = listenAt(dir, ask.Messages, unix.SOCK_SEQPACKET); err != nil {
		stream.Close()
		return nil, nil, err
	}
	return stream, messages, nil
}

// listenAt returns a Unix socket that listens at a name in a directory. The path of the directory may be longer than
// the address of a socket.
func listenAt(dir, name string, kind int) (*os.File, error) {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.Wrap(err, "make the entrance of the gate")
	}
	defer unix.Close(at)
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(err, "make the entrance of the gate")
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir, name))
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(at) + "/" + name}); err == nil {
		err = unix.Listen(fd, entranceBacklog)
	}
	if err != nil {
		f.Close()
		return nil, fault.Wrap(err, "make the entrance of the gate")
	}
	return f, nil
}
