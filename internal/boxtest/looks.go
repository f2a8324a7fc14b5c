//go:build linux && (amd64 || arm64)

package boxtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
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

// listens starts the server and returns its port; end stops it.
func (b *Box) listens(t *testing.T, addr string, port int) (got int, end func()) {
	t.Helper()
	if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
		t.Skip("needs python3: it listens")
	}
	s := b.Open(t, wire.ExecRequest{Cmd: []string{"/usr/bin/python3", "-u", "-c", server, addr, strconv.Itoa(port)}})
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

// seen returns the process whose arguments contain word.
func (b *Box) seen(t *testing.T, word string) (found wire.Process, ok bool) {
	t.Helper()
	r, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Processes {
		if slices.ContainsFunc(p.Args, func(a string) bool { return strings.Contains(a, word) }) {
			return p, true
		}
	}
	return found, false
}

// gone waits until a process has exited.
func (b *Box) gone(t *testing.T, word string) bool {
	t.Helper()
	for range 200 {
		if _, ok := b.seen(t, word); !ok {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// shown skips the test if the box cannot see its own processes.
func (b *Box) shown(t *testing.T) {
	t.Helper()
	if b.Enforced.State("proc") == plan.Weak {
		t.Skip("needs own-proc: parts of the outer /proc are masked")
	}
}

// looks are the rows about processes and ports.
var looks = []check{
	{"processes are listed", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		if r, err := b.Processes(t.Context()); err != nil || len(r.Processes) != 0 || r.More != 0 {
			t.Errorf("an empty box: %+v, %v", r, err)
		}
		before := time.Now()
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", `sleep 1234 & exec sh -c "while :; do :; done" "$(printf 'a\377b\n\001')" ""`}})
		st := WaitStarted(t, s)
		var p wire.Process
		for range 100 {
			if p, _ = b.seen(t, "while :; do :; done"); p.CPUMS > 50 && len(p.Args) == 5 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if p.PID != st.PID || p.State == "" || p.RSS <= 0 || p.CPUMS <= 0 || p.Start == 0 || p.Name == "" {
			t.Errorf("%+v: want process %d", p, st.PID)
		}
		if d := p.Started.Sub(before); d < -2*time.Second || d > time.Minute {
			t.Errorf("it was started %v after we did so", d)
		}
		if len(p.Args) != 5 || p.Args[3] != "a\ufffdb\n\x01" || len(p.Raw) != 5 ||
			string(p.Raw[3]) != "a\xffb\n\x01" || p.Cut {
			t.Errorf("%+v", p)
		}
		kid, ok := b.seen(t, "1234")
		if !ok || kid.PPID != p.PID || kid.Raw != nil {
			t.Errorf("%+v", kid)
		}
		if _, ok := b.seen(t, "coppice"); ok {
			t.Error("init is in the list")
		}
	}},
	{"a list of many processes with long arguments", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", `i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i+1)); done; echo ready; wait`,
					strings.Repeat("\x01", 100_000)}})
		WaitOutput(t, s, "ready")
		r, err := b.Processes(t.Context())
		if err != nil || len(r.Processes) < 151 {
			t.Fatalf("%d processes, %v", len(r.Processes), err)
		}
		if p, ok := b.seen(t, "while"); !ok || !p.Cut {
			t.Errorf("%v: %d arguments, cut %v", ok, len(p.Args), p.Cut)
		}
	}},
	{"one process is signalled", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		b.Sh(t, "sleep 4321 & sleep 4322 &")
		p, ok := b.seen(t, "4321")
		if !ok {
			t.Fatal("it does not run")
		}
		if err := b.SignalProcess(t.Context(), p.PID,
			wire.ProcessSignal{Name: "TERM", Start: p.Start + 1}); !fault.Is(err, fault.NotFound) {
			t.Errorf("one that was started later: %v", err)
		}
		if _, ok := b.seen(t, "4321"); !ok {
			t.Fatal("it is gone")
		}
		if err := b.SignalProcess(t.Context(), p.PID, wire.ProcessSignal{Name: "SIGKILL", Start: p.Start}); err != nil {
			t.Error(err)
		}
		if !b.gone(t, "4321") {
			t.Error("it runs on")
		}
		if _, ok := b.seen(t, "4322"); !ok {
			t.Error("its neighbour is gone")
		}
		var err error
		for range 200 { // an exiting process loses its arguments before it has exited
			if err = b.SignalProcess(t.Context(), p.PID, wire.ProcessSignal{Name: "KILL"}); err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !fault.Is(err, fault.NotFound) {
			t.Errorf("one that is gone: %v", err)
		}
	}},
	{"no other process is signalled", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		outside := []int{-1, 0, 1}
		if tier.Name == plan.TierWorkspace {
			outside = append(outside, os.Getpid(), os.Getppid())
		}
		for _, pid := range append(outside, 1<<30) {
			if err := b.SignalProcess(t.Context(), pid, wire.ProcessSignal{Name: "KILL"}); !fault.Is(err, fault.Denied) &&
				!fault.Is(err, fault.NotFound) {
				t.Errorf("process %d: %v", pid, err)
			}
		}
		if err := b.SignalProcess(t.Context(), 2, wire.ProcessSignal{Name: "NONE"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("no signal: %v", err)
		}
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sleep", "30"}})
		WaitStarted(t, s)
		p, ok := b.seen(t, "30")
		if !ok {
			t.Fatal("it does not run")
		}
		if tier.Name == plan.TierWorkspace { // its parent is init
			if err := b.SignalProcess(t.Context(), p.PPID, wire.ProcessSignal{Name: "KILL"}); !fault.Is(err, fault.Denied) {
				t.Errorf("init: %v", err)
			}
		}
		if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
			t.Errorf("%+v", r)
		}
	}},
	{"a signal waits for a thaw", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		b.Sh(t, "sleep 5678 &")
		p, _ := b.seen(t, "5678")
		f, err := b.Freeze(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			done <- b.SignalProcess(context.Background(), p.PID, wire.ProcessSignal{Name: "KILL", Start: p.Start})
		}()
		select {
		case err := <-done:
			t.Errorf("it did not wait: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if !b.gone(t, "5678") {
			t.Error("it runs on")
		}
	}},
	{"ports are listed, and reached, and close", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.shown(t)
		port, end := b.listens(t, "127.0.0.1", 0)
		checkPort(t, b, "127.0.0.1", port)
		end()
		for range 100 {
			if r, err := b.Ports(t.Context()); err != nil || len(r.Ports) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if r, err := b.Ports(t.Context()); err != nil || len(r.Ports) != 0 {
			t.Errorf("%+v, %v", r, err)
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
			if strings.Contains(addr, ":") {
				if ln, err := net.Listen("tcp", "[::1]:0"); err != nil {
					t.Logf("needs IPv6: %v", err)
					continue
				} else {
					ln.Close()
				}
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
		// Meanwhile init is not blocked.
		if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
			t.Errorf("%+v", r)
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
