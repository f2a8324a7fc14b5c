package unixsock

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// FromOwn reports whether the process at the other end of an accepted connection is of this process's user. The mode of
// a socket already excludes others; this also protects where modes have no effect.
func FromOwn(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && cred.Uid == uint32(os.Geteuid())
	})
	return err == nil && ok
}

// Own is a listener that closes connections of other users.
type Own struct{ *net.UnixListener }

// Accept returns the next connection of this process's user.
func (l Own) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if FromOwn(conn) {
			return conn, nil
		}
		conn.Close()
	}
}
