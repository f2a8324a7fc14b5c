//go:build linux && (amd64 || arm64)

package process

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/sentrytest"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

func TestMain(m *testing.M) { os.Exit(programtest.Run(m)) }

// TestGateProgram_ServesPair runs a gate process with all its restrictions for a sandbox whose packets arrive over a
// Pair.
func TestGateProgram_ServesPair(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	host, port := echoOutside(t)
	exe, err := programtest.Programs().File(program.Gate)
	if err != nil {
		t.Fatal(err)
	}
	p, err := control.Start(exe, "pair", dir, nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	box, gate, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	defer gate.Close()
	if _, err := p.Begin(gate, []plan.Phase{said(t, net.JoinHostPort(host, port))}, control.Decoys{}, control.Secrets{}); err != nil {
		t.Fatal(err)
	}
	s, err := sentrytest.New(int(box.Fd()), link.BoxInterface())
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(s.Close)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	c, err := s.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	awaitCounts(t, p, 5)
	if _, err := s.DialContext(ctx, "tcp", net.JoinHostPort(host, "1")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that no rule names: %v", err)
	}
	if got := query(ctx, t, s, "evil.example"); got&15 != 3 {
		t.Errorf("a name that no rule names is answered with code %d", got&15)
	}
	if err := p.SetPolicy([]plan.Phase{said(t, "b.example")}); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("the gate did not cut a connection that the new policy denies: read %d bytes", n)
	}

	p.Close()
	evs, err := journal.Read(journal.Place{Dir: dir}, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]func(wire.NetEvent) bool{
		"connection": func(e wire.NetEvent) bool { return e.Kind == wire.NetConnect && e.Addr == host },
		"denial":     func(e wire.NetEvent) bool { return e.Kind == wire.NetDeny && e.Addr == host && e.Port == 1 },
		"name":       func(e wire.NetEvent) bool { return e.Name == "evil.example" && e.Verdict == "deny" },
	} {
		if !slices.ContainsFunc(evs, ok) {
			t.Errorf("the journal has no %s: %+v", what, evs)
		}
	}
	if slices.ContainsFunc(evs, failedLink) {
		t.Error("a link failure is reported that did not happen")
	}
	// The sentry's end reads no EOF while another process has a copy of the gate's end.
	if hungUp(t, box) {
		t.Error("the sentry's end has hung up while a copy of the gate's end is held")
	}
	stop()
	if err := gate.Close(); err != nil {
		t.Fatal(err)
	}
	if !hungUp(t, box) {
		t.Error("the sentry's end has not hung up without the other")
	}
}

// TestGateProgram_ReportsEndOfPair closes the sandbox's end, as the exit of a sentry does.
func TestGateProgram_ReportsEndOfPair(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := programtest.Programs().File(program.Gate)
	if err != nil {
		t.Fatal(err)
	}
	p, err := control.Start(exe, "pair", dir, nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	box, gate, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	if err := box.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Begin(gate, []plan.Phase{said(t, "a.example")}, control.Decoys{}, control.Secrets{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.After(time.Minute); ; {
		evs, err := journal.Read(journal.Place{Dir: dir}, journal.Query{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(evs, failedLink) {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("%+v", evs)
		default:
		}
		if _, err := p.Now(); err != nil { // the gate continues
			t.Fatal(err)
		}
	}
}

func failedLink(e wire.NetEvent) bool { return strings.Contains(e.Reason, "link failed") }

// echoOutside runs an echo server at an address of this machine that is not loopback, which a policy can name.
func echoOutside(t *testing.T) (host, port string) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().Is4() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(p.Addr().String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		var own sync.WaitGroup
		own.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				own.Go(func() {
					io.Copy(c, c)
					c.Close()
				})
			}
		})
		t.Cleanup(func() {
			l.Close()
			own.Wait()
		})
		host, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return host, port
	}
	t.Skip("needs an-address: this machine has only loopback addresses")
	return "", ""
}

// query asks the gate for the addresses of a name and returns the second byte of the flags of its reply.
func query(ctx context.Context, t *testing.T, s *sentrytest.Sentry, name string) byte {
	t.Helper()
	c, err := s.DialContext(ctx, "udp", net.JoinHostPort(link.Gate6().String(), "53"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(question(name)); err != nil {
		t.Fatal(err)
	}
	if d, ok := ctx.Deadline(); ok {
		c.SetReadDeadline(d)
	}
	b := make([]byte, 512)
	if n, err := c.Read(b); err != nil || n < 12 {
		t.Fatal(n, err)
	}
	return b[3]
}

// awaitCounts waits until the gate has counted n bytes in both directions of one connection, which it does after it has
// sent them.
func awaitCounts(t *testing.T, p *control.Process, n int64) {
	t.Helper()
	for {
		now, err := p.Now()
		if err != nil || now.Conns != 1 || now.In > n || now.Out > n {
			t.Fatalf("%+v, %v", now, err)
		}
		if now.In == n && now.Out == n {
			return
		}
	}
}

// question returns a query for the IPv4 addresses of a name.
func question(name string) []byte {
	q := []byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	for label := range strings.SplitSeq(name, ".") {
		q = append(append(q, byte(len(label))), label...)
	}
	return append(q, 0, 0, 1, 0, 1)
}

// hungUp reports whether the other end of a socket is closed.
func hungUp(t *testing.T, f *os.File) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}
