//go:build linux && (amd64 || arm64)

package boxtest

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

// connects is a program that connects to the sandbox's own socket, sends a line, and carries out a step.
const connects = `import os, socket, sys, time
if len(sys.argv) > 2: os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX)
s.connect("` + plan.SelfSocket + `")
s.sendall(b"line\n")
`

// selves are about the sandbox's own socket.
var selves = []check{
	{"the daemon learns that a client of the sandbox's own socket is gone", walled, func(t *testing.T, tier Tier) {
		b, conns := tier.startSelf(t)
		// A client that is half-closed gets its answer.
		half := b.Open(t, wire.ExecRequest{Cmd: []string{"python3", "-c", connects +
			"s.shutdown(socket.SHUT_WR); print(s.makefile().read())"}})
		c := <-conns
		gone := make(chan bool, 1)
		go func() { gone <- unixsock.AwaitHangup(c) }()
		select {
		case <-gone:
			t.Error("a client that is half-closed counts as gone")
		case <-time.After(time.Second):
		}
		if _, err := c.Write([]byte("answer\n")); err != nil {
			t.Error(err)
		}
		c.Close()
		if r := Collect(half); !strings.Contains(r.Stdout, "answer") {
			t.Errorf("%+v", r)
		}
		// A client that is killed, or closes its connection, is gone, whether or not it was half-closed.
		for _, step := range []string{"os.kill(os.getpid(), 9)", "s.close(); time.sleep(1000)",
			"s.shutdown(socket.SHUT_WR); time.sleep(0.3); s.close(); time.sleep(1000)"} {
			x := b.Open(t, wire.ExecRequest{Cmd: []string{"python3", "-c", connects + step}})
			c := <-conns
			go func() { gone <- unixsock.AwaitHangup(c) }()
			select {
			case <-gone:
			case <-time.After(time.Minute):
				t.Errorf("%s: the connection is still open", step)
			}
			c.Close()
			x.Close()
		}
	}},
	{"the daemon can identify clients of the sandbox's user", []string{plan.TierGvisor}, func(t *testing.T, tier Tier) {
		b, conns := tier.startSelf(t)
		for uid, want := range map[string]string{"": plan.SelfUser, "65534": plan.SelfName} {
			if uid != "" && !b.Config.Caller.Root {
				continue // the sandbox has one user
			}
			x := b.Open(t, wire.ExecRequest{Cmd: append([]string{"python3", "-c", connects + "s.recv(1)", "-"},
				strings.Fields(uid)...)})
			c := <-conns
			if c.name != want {
				t.Errorf("uid %q: connected to %q, want %q", uid, c.name, want)
			}
			c.Close()
			Collect(x)
		}
	}},
}

// selfConn is a connection to the socket of a name.
type selfConn struct {
	*net.UnixConn
	name string
}

// startSelf starts a box with a socket of its own, and returns the connections that its processes make, once each has
// sent a line.
func (tier Tier) startSelf(t *testing.T) (*Box, <-chan selfConn) {
	t.Helper()
	conns := make(chan selfConn)
	b := tier.Start(t, func(c *plan.Config) {
		c.Self = true
		dir := filepath.Join(c.RunDir, plan.SelfDir)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{plan.SelfName, plan.SelfUser} {
			ln, err := unixsock.Listen(dir, name, 0o666)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			go func() {
				for {
					conn, err := ln.AcceptUnix()
					if err != nil {
						return
					}
					if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "line\n" {
						t.Errorf("%s: %q, %v", name, line, err)
					}
					conns <- selfConn{conn, name}
				}
			}()
		}
	})
	if r := b.Sh(t, "command -v python3"); r.Exit.Code != 0 {
		t.Skip("needs python3: to connect from inside")
	}
	return b, conns
}
