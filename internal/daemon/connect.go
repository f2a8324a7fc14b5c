package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Starter describes how to reach a daemon, and how to start one.
type Starter struct {
	Home   string // absolute
	Socket string // "" is the home's; a daemon is only started for that one
	// Args are the arguments that make the program serve; the flags "--home", "--idle" and "--ready-fd" are added.
	Args []string
	Name string   // argv[0]
	Env  []string // the daemon's whole environment
	Idle string   // value of --idle
}

// Connect connects to the daemon, and starts it if none runs. It is safe for concurrent use, even from several
// processes: they start one daemon.
func (s Starter) Connect(ctx context.Context) (net.Conn, error) {
	conn, err := s.meet(ctx)
	if err == nil {
		return conn, nil
	}
	if s.Socket != "" {
		return nil, fault.New(fault.Unavailable, "no daemon answers at %s", s.Socket).Because(err).
			WithHint("unset COPPICE_SOCKET, or start the daemon of that socket")
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, errDead) {
		if errors.Is(err, syscall.ENOTDIR) {
			return nil, fault.New(fault.Invalid, "open the home %s", s.Home).Because(syscall.ENOTDIR).
				WithHint("set COPPICE_HOME to a directory")
		}
		return nil, fault.New(fault.Unavailable, "connect to the daemon").Because(err)
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	conn, err = s.meet(ctx)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "connect to the daemon that was just started").Because(err).
			WithHint("see %s", LogPath(s.Home))
	}
	return conn, nil
}

// errDead means that a daemon exited after the connection and before its answer.
var errDead = errors.New("the daemon has just exited")

// meet connects to a daemon and makes sure that it answers. A daemon that is being killed still listens for a
// moment. A request on such a connection would be lost, and the client could not know whether it was carried out.
func (s Starter) meet(ctx context.Context) (_ net.Conn, err error) {
	conn, err := s.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err = io.WriteString(conn, "HEAD /v1/ping HTTP/1.1\r\nHost: coppice\r\n\r\n"); err == nil {
		// The answer has no body, and the daemon sends nothing more before the next request.
		answer := make([]byte, 0, 1024)
		for err == nil && !bytes.HasSuffix(answer, []byte("\r\n\r\n")) && len(answer) < cap(answer) {
			var n int
			n, err = conn.Read(answer[len(answer):cap(answer)])
			answer = answer[:len(answer)+n]
		}
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errors.Join(errDead, err)
	}
	return conn, nil
}

// Holder returns the process that claims to serve a home; held is false if none does. That process may have been
// killed.
func Holder(home string) (pid int, held bool) {
	b, err := os.ReadFile(filepath.Join(home, "lock"))
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	return pid, err == nil
}

// Dial connects to a running daemon.
func (s Starter) Dial(ctx context.Context) (net.Conn, error) {
	socket := s.Socket
	if socket == "" {
		socket = SocketPath(s.Home)
	}
	return client.DialSocket(ctx, socket)
}
