//go:build linux && (amd64 || arm64)

package boxtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// server listens on an address, and returns each line with a "+" before it. At the end of the input it sends "end" and
// closes the connection.
const server = `
import socket, sys, threading
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, dualstack_ipv6=False)
print("listens on", s.getsockname()[1], flush=True)
def serve(c):
    f = c.makefile("rwb")
    for line in f:
        f.write(b"+" + line)
        f.flush()
    f.write(b"end")
    f.close()
    c.close()
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
`

// namesPeer is a server that sends each client its own address by accept(2) and by getpeername(2), and the server's own
// address and port.
const namesPeer = `
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, dualstack_ipv6=False)
print("listens on", s.getsockname()[1], flush=True)
while True:
    c, a = s.accept()
    assert a == c.getpeername() and a[1] > 0, (a, c.getpeername())
    c.sendall(("%s %s %s %d" % (a[0], c.getpeername()[0], *c.getsockname()[:2])).encode())
    c.close()
`

// bound has a socket that is bound to a port and does not listen.
const bound = `
import socket, sys, time
s = socket.socket()
s.bind((sys.argv[1], int(sys.argv[2])))
print("listens on", s.getsockname()[1], flush=True)
time.sleep(1000)
`

// hasIPv6 reports whether the host has IPv6.
func hasIPv6(t *testing.T) bool {
	t.Helper()
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Logf("needs IPv6: %v", err)
		return false
	}
	ln.Close()
	return true
}

// listens starts the server and returns its port; end stops it.
func (b *Box) listens(t *testing.T, addr string, port int) (got int, end func()) {
	t.Helper()
	return b.serves(t, server, addr, port)
}

// serves is listens with another program in Python, which prints its port.
func (b *Box) serves(t *testing.T, program, addr string, port int) (got int, end func()) {
	t.Helper()
	if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
		t.Skip("needs python3: it listens")
	}
	s := b.Open(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-u", "-c", program, addr, strconv.Itoa(port)}})
	st := WaitStarted(t, s)
	line := WaitOutput(t, s, "\n")
	if _, err := fmt.Sscanf(line, "listens on %d", &got); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return got, func() {
		t.Helper()
		if err := b.Signal(t.Context(), st.Exec, "KILL"); err != nil {
			t.Error(err)
		}
		Collect(s)
	}
}

// ports are about the ports that a sandbox listens on.
var ports = []check{
	{"ports are listed, and reached, and close", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		port, end := b.listens(t, "127.0.0.1", 0)
		checkPort(t, b, "127.0.0.1", port)
		end()
		for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			r, err := b.Ports(t.Context())
			if err == nil && len(r.Ports) == 0 {
				break
			}
			if err != nil || time.Now().After(late) {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if _, err := b.DialPort(t.Context(), port); !fault.Is(err, fault.NotFound) {
			t.Errorf("one that was closed: %v", err)
		}
		for _, port := range []int{0, -1, 65536} {
			if _, err := b.DialPort(t.Context(), port); !fault.Is(err, fault.Invalid) {
				t.Errorf("port %d: %v", port, err)
			}
		}
	}},
	{"ports at other addresses", nil, func(t *testing.T, tier Tier) {
		for _, addr := range []string{"0.0.0.0", "127.0.0.2", "::1", "::"} {
			b := tier.Start(t)
			b.shown(t)
			if strings.Contains(addr, ":") && !hasIPv6(t) {
				continue
			}
			port, end := b.listens(t, addr, 0)
			checkPort(t, b, addr, port)
			end()
		}
	}},
	{"ports of a separate network", walled, func(t *testing.T, tier Tier) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		b := tier.Start(t)
		port := ln.Addr().(*net.TCPAddr).Port
		if _, err := b.DialPort(t.Context(), port); !fault.Is(err, fault.NotFound) {
			t.Errorf("a port of the host: %v", err)
		}
		if r := b.Sh(t, "grep -c . /proc/net/if_inet6; head -1 /proc/net/dev >/dev/null"); r.Exit.Code != 0 {
			t.Logf("%+v", r)
		}
		// The same port number is free inside.
		got, end := b.listens(t, "127.0.0.1", port)
		defer end()
		if got != port {
			t.Errorf("port %d", got)
		}
		checkPort(t, b, "127.0.0.1", port)
	}},
	{"ports of the host's network", hosts, func(t *testing.T, tier Tier) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		strange := ln.Addr().(*net.TCPAddr).Port
		b := tier.Start(t, func(c *plan.Config) { c.Net = plan.NetHost })
		b.shown(t)
		if _, err := b.DialPort(t.Context(), strange); !fault.Is(err, fault.NotFound) {
			t.Errorf("a stranger's: %v", err)
		}
		port, end := b.listens(t, "127.0.0.1", 0)
		defer end()
		checkPort(t, b, "127.0.0.1", port)
		r, err := b.Ports(t.Context())
		if err != nil || slices.ContainsFunc(r.Ports, func(p wire.Port) bool { return p.Port == strange }) {
			t.Errorf("%+v, %v", r, err)
		}
		// While a process of the host has the same port on the usual address.
		_, end2 := b.listens(t, "127.0.0.3", strange)
		defer end2()
		checkPort(t, b, "127.0.0.3", strange)
	}},
	{"a server sees a client on loopback", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		for addr, want := range map[string]string{"127.0.0.1": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::1": "::1",
			"::": "::1"} {
			if strings.Contains(addr, ":") && !hasIPv6(t) {
				continue
			}
			port, end := b.serves(t, namesPeer, addr, 0)
			conn, err := b.DialPort(t.Context(), port)
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			got, err := io.ReadAll(conn)
			conn.Close()
			if want := fmt.Sprintf("%s %s %s %d", want, want, want, port); err != nil || string(got) != want {
				t.Errorf("a server at %s sees %q, expected %q: %v", addr, got, want, err)
			}
			end()
		}
	}},
	{"a listener that accepts no connection", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: it listens")
		}
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-u", "-c", `
import socket, time
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(0)
print(s.getsockname()[1], flush=True)
time.sleep(1000)
`}})
		port := atoi(WaitOutput(t, s, "\n"))
		var open []net.Conn
		defer func() {
			for _, c := range open {
				c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for len(open) < 10 {
			c, err := b.DialPort(ctx, port)
			if err != nil {
				if !fault.Is(err, fault.Timeout) {
					t.Errorf("%v", err)
				}
				break
			}
			open = append(open, c)
		}
		// In tier gvisor a client that meets a full queue gets a SYN cookie, and waits connected.
		if len(open) == 10 && tier.Name != plan.TierGvisor {
			t.Error("its queue is never full")
		}
		// Meanwhile neither init nor the other ports are blocked, also by clients that wait.
		waits, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		for range 20 {
			all.Go(func() {
				if c, err := b.DialPort(waits, port); err == nil {
					c.Close()
				}
			})
		}
		if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
			t.Errorf("%+v", r)
		}
		other, end := b.listens(t, "127.0.0.1", 0)
		defer end()
		checkPort(t, b, "127.0.0.1", other)
	}},
	{"a port on which no process listens yet", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		port, end := b.serves(t, bound, "127.0.0.1", 0)
		defer end()
		if r, err := b.Ports(t.Context()); err != nil || len(r.Ports) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := b.DialPort(t.Context(), port); !fault.Is(err, fault.NotFound) {
			t.Errorf("%v", err)
		}
	}},
	{"many connections at once", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		port, end := b.listens(t, "127.0.0.1", 0)
		defer end()
		done := make(chan error)
		for range 20 {
			go func() {
				c, err := b.DialPort(context.Background(), port)
				if err == nil {
					_, err = talk(c, "x\n")
				}
				done <- err
			}()
		}
		for range 20 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}},
}

// checkPort checks that the port is listed and that its server answers.
func checkPort(t *testing.T, b *Box, addr string, port int) {
	t.Helper()
	r, err := b.Ports(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Ports, func(p wire.Port) bool { return p.Port == port && p.Address == addr })
	if i < 0 {
		t.Fatalf("%s:%d is not in %+v", addr, port, r.Ports)
	}
	if p := r.Ports[i]; p.PID == 0 || !strings.HasPrefix(p.Program, "python3") {
		t.Errorf("%+v", p)
	}
	conn, err := b.DialPort(t.Context(), port)
	if err != nil {
		t.Fatalf("%s:%d: %v", addr, port, err)
	}
	if got, err := talk(conn, "one\ntwo\n"); err != nil || got != "+one\n+two\nend" {
		t.Errorf("%s:%d: %q, %v", addr, port, got, err)
	}
}

// talk sends text, closes its half of the connection, and returns what it receives.
func talk(conn net.Conn, text string) (string, error) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return "", fmt.Errorf("%T has no halves", conn)
	}
	if err := half.CloseWrite(); err != nil {
		return "", err
	}
	var b bytes.Buffer
	_, err := b.ReadFrom(conn)
	return b.String(), err
}
