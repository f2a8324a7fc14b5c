//go:build linux && (amd64 || arm64)

package process

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/entrance/entrancetest"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// entry starts a gate process with an entrance, with all its restrictions. dir is that of its journal.
func entry(t *testing.T, phases ...plan.Phase) (c entrancetest.Client, p *control.Process, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "journal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := programtest.Programs().File(program.Gate)
	if err != nil {
		t.Fatal(err)
	}
	p, err = control.Start(exe, "entrance", dir, nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	c, stream, messages := entrancetest.Listen(t)
	defer stream.Close()
	defer messages.Close()
	if _, err := p.BeginEntrance(stream, messages, phases, control.Decoys{}, control.Secrets{}); err != nil {
		t.Fatal(err)
	}
	return c, p, dir
}

// TestGateProgram_ServesEntrance runs a gate process for a sandbox whose connections come from two listeners.
func TestGateProgram_ServesEntrance(t *testing.T) {
	t.Parallel()
	host, port := echoOutside(t)
	datagrams := echoDatagrams(t, host)
	c, p, dir := entry(t, said(t, net.JoinHostPort(host, port)+", udp://"+datagrams))

	conn, err := c.Dial("tcp", net.JoinHostPort(host, port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := exchange(t, conn, "hello"); got != "hello" {
		t.Errorf("%q", got)
	}
	awaitCounts(t, p, 5)
	if _, err := c.Dial("tcp", net.JoinHostPort(host, "1")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port that no rule names: %v", err)
	}
	flow, err := c.Dial("udp", datagrams)
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()
	if got := exchange(t, flow, "datagram"); got != "datagram" {
		t.Errorf("%q", got)
	}
	for network, name := range map[string]string{"tcp": "stream.example", "udp": "datagram.example"} {
		if got := queryOver(t, c, network, name); got&15 != 3 {
			t.Errorf("a name that no rule names is answered with code %d over %s", got&15, network)
		}
	}
	if err := p.SetPolicy([]plan.Phase{said(t, "b.example")}); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("the gate did not cut a connection that the new policy denies: read %d bytes", n)
	}
	if _, err := c.Dial("tcp", net.JoinHostPort(host, port)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection that the new policy denies: %v", err)
	}

	p.Close()
	if _, err := c.Connect("tcp"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the exit of the gate: %v", err)
	}
	evs, err := journal.Read(journal.Place{Dir: dir}, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]func(wire.NetEvent) bool{
		"connection": func(e wire.NetEvent) bool {
			return e.Kind == wire.NetConnect && e.Addr == host && e.Proto == "tcp"
		},
		"flow":             func(e wire.NetEvent) bool { return e.Kind == wire.NetConnect && e.Addr == host && e.Proto == "udp" },
		"denial":           func(e wire.NetEvent) bool { return e.Kind == wire.NetDeny && e.Addr == host && e.Port == 1 },
		"name over TCP":    func(e wire.NetEvent) bool { return e.Name == "stream.example" && e.Verdict == "deny" },
		"name over UDP":    func(e wire.NetEvent) bool { return e.Name == "datagram.example" && e.Verdict == "deny" },
		"end by a policy":  func(e wire.NetEvent) bool { return e.Reason == "the policy was changed" && e.In == 5 && e.Out == 5 },
		"denial afterward": func(e wire.NetEvent) bool { return e.Kind == wire.NetDeny && e.Proto == "tcp" && e.Port != 1 },
	} {
		if !slices.ContainsFunc(evs, ok) {
			t.Errorf("the journal has no %s: %+v", what, evs)
		}
	}
	if slices.ContainsFunc(evs, failedLink) {
		t.Error("a link failure is reported that did not happen")
	}
}

// TestGateProgram_ClosesEntrance checks that a gate process with open connections exits by itself, and in time: one
// that is killed has not recorded the ends.
func TestGateProgram_ClosesEntrance(t *testing.T) {
	t.Parallel()
	host, port := echoOutside(t)
	c, p, dir := entry(t, said(t, net.JoinHostPort(host, port)))
	const open = 20
	var conns []net.Conn
	for range open {
		conn, err := c.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		exchange(t, conn, "x") // the gate has completed the connection
		conns = append(conns, conn)
	}
	p.Close()
	for _, conn := range conns {
		if n, err := conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes from a gate that has exited", n)
		}
	}
	evs, err := journal.Read(journal.Place{Dir: dir}, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	ends := 0
	for _, e := range evs {
		if e.Kind == wire.NetEnd && e.Reason == "the gate was closed" {
			ends++
		}
	}
	if ends != open {
		t.Errorf("%d ends are recorded of %d", ends, open)
	}
}

// TestGateProgram_RefusesOtherListeners checks that a gate process accepts only two listeners of the right types, in
// their order.
func TestGateProgram_RefusesOtherListeners(t *testing.T) {
	t.Parallel()
	exe, err := programtest.Programs().File(program.Gate)
	if err != nil {
		t.Fatal(err)
	}
	_, stream, messages := entrancetest.Listen(t)
	defer stream.Close()
	defer messages.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	connected := os.NewFile(uintptr(pair[0]), "connected")
	defer connected.Close()
	defer unix.Close(pair[1])
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	internet, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer internet.Close()
	for name, files := range map[string][2]*os.File{
		"in another order":        {messages, stream},
		"the same twice":          {stream, stream},
		"no socket":               {null, messages},
		"a connected socket":      {connected, messages},
		"a listener of the host":  {internet, messages},
		"no listener of messages": {stream, null},
	} {
		dir := filepath.Join(t.TempDir(), "journal")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		p, err := control.Start(exe, "entrance", dir, nil, os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.BeginEntrance(files[0], files[1], []plan.Phase{said(t, "a.example")}, control.Decoys{}, control.Secrets{}); !fault.Is(
			err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
		p.Close()
	}
}

// exchange sends a message and returns as many bytes of the answer.
func exchange(t *testing.T, c net.Conn, message string) string {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(message)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(message))
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// queryOver asks a server of DNS for the addresses of a name and returns the second byte of the flags of its reply.
func queryOver(t *testing.T, c entrancetest.Client, network, name string) byte {
	t.Helper()
	conn, err := c.Dial(network, "8.8.8.8:53") // the entrance's own, whatever the address
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	q, b := question(name), make([]byte, 514)
	if network == "tcp" {
		q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	}
	if _, err := conn.Write(q); err != nil {
		t.Fatal(err)
	}
	n, err := conn.Read(b)
	if network == "tcp" {
		n, b = n-2, b[2:]
	}
	if err != nil || n < 12 {
		t.Fatal(n, err)
	}
	return b[3]
}

// echoDatagrams echoes datagrams at an address until the test ends.
func echoDatagrams(t *testing.T, host string) (addr string) {
	t.Helper()
	u, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	var own sync.WaitGroup
	own.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			u.WriteTo(b[:n], from)
		}
	})
	t.Cleanup(func() {
		u.Close()
		own.Wait()
	})
	return u.LocalAddr().String()
}
