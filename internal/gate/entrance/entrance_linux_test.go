//go:build linux && (amd64 || arm64)

package entrance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate"
	"github.com/coppice-dev/coppice/internal/gate/entrance/ask"
	"github.com/coppice-dev/coppice/internal/gate/entrance/entrancetest"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// host is an address outside.
const host = "93.184.216.34:80"

// everything is a policy that allows everything.
type everything struct{}

func (everything) Decide(gate.Request) gate.Decision {
	return gate.Decision{Verdict: gate.Allow, Rule: "all"}
}

// scene is an entrance at a real gate, with an internet of one host.
type scene struct {
	entrancetest.Client
	entrance *Entrance
	gate     *gate.Gate
}

// open opens a scene, whose host is reached by dial.
func open(t testing.TB, dial func(context.Context, string, netip.AddrPort) (net.Conn, error)) *scene {
	t.Helper()
	box, packets, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	g, err := gate.New(context.Background(), gate.Options{FD: packets, Policy: everything{}, Dial: dial,
		Bounds: gate.Bounds{PerSec: 1e6}})
	if err != nil {
		t.Fatal(err)
	}
	c, stream, messages := entrancetest.Listen(t)
	e, err := New(box, stream, messages)
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{c, e, g}
	t.Cleanup(func() { s.close(t) })
	return s
}

// close closes the gate and the entrance, in the order of the gate process.
func (s *scene) close(t testing.TB) {
	t.Helper()
	if err := errors.Join(s.gate.Close(), s.entrance.Close()); err != nil {
		t.Error(err)
	}
}

// dial is Client.Dial, with a deadline for the connection.
func (s *scene) dial(t testing.TB, network, to string) *entrancetest.Conn {
	t.Helper()
	c, err := s.Dial(network, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// toServer returns a dial to a server on loopback that serves each connection.
func toServer(t testing.TB, serve func(*net.TCPConn)) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		own.Wait()
	})
	return func(ctx context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, l.Addr().String())
	}
}

// echo sends what it receives. It does so without splice(2), for which the runtime keeps pipes.
func echo(c *net.TCPConn) {
	io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	c.CloseWrite()
}

// hang is a dial to a host that does not answer.
func hang(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestStream_ForwardsEnds checks that the end of each direction is forwarded, while the other continues.
func TestStream_ForwardsEnds(t *testing.T) {
	t.Parallel()
	said := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	t.Run("the sandbox first", func(t *testing.T) {
		t.Parallel()
		s := open(t, toServer(t, func(c *net.TCPConn) {
			all, _ := io.ReadAll(c)
			c.Write(all)
		}))
		c := s.dial(t, "tcp", host)
		if _, err := c.Write(said); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); !bytes.Equal(got, said) || err != nil {
			t.Errorf("%d bytes of %d, %v", len(got), len(said), err)
		}
	})
	t.Run("the host first", func(t *testing.T) {
		t.Parallel()
		heard := make(chan []byte, 1)
		s := open(t, toServer(t, func(c *net.TCPConn) {
			c.Write(said)
			c.CloseWrite()
			all, _ := io.ReadAll(c)
			heard <- all
		}))
		c := s.dial(t, "tcp", host)
		if got, err := io.ReadAll(c); !bytes.Equal(got, said) || err != nil {
			t.Errorf("%d bytes of %d, %v", len(got), len(said), err)
		}
		if _, err := c.Write(said); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; !bytes.Equal(got, said) {
			t.Errorf("the host has %d bytes of %d", len(got), len(said))
		}
	})
	t.Run("a host that resets", func(t *testing.T) {
		t.Parallel()
		s := open(t, toServer(t, func(c *net.TCPConn) {
			c.Read(make([]byte, 1))
			c.SetLinger(0)
		}))
		c := s.dial(t, "tcp", host)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes", n)
		}
		for err := error(nil); err == nil; { // the connection has ended in the other direction too
			_, err = c.Write([]byte("x"))
		}
	})
	t.Run("a sandbox that does not read", func(t *testing.T) {
		t.Parallel()
		ended := make(chan error, 1)
		s := open(t, toServer(t, func(c *net.TCPConn) {
			c.Read(make([]byte, 1))
			var err error
			for err == nil {
				_, err = c.Write(said)
			}
			ended <- err
		}))
		c := s.dial(t, "tcp", host)
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("the host gets %v", err)
		}
	})
}

// TestStreams_Parallel checks that many connections do not mix.
func TestStreams_Parallel(t *testing.T) {
	t.Parallel()
	s := open(t, toServer(t, echo))
	var own sync.WaitGroup
	for i := range 200 {
		own.Go(func() {
			c, err := s.Dial("tcp", host)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			said := bytes.Repeat([]byte{byte(i)}, 1<<16)
			if _, err := c.Write(said); err != nil {
				t.Error(err)
				return
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
				return
			}
			if got, err := io.ReadAll(c); !bytes.Equal(got, said) || err != nil {
				t.Errorf("connection %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	own.Wait()
}

// TestDial_ReturnsErrno checks the statuses of addresses that cannot be connected to.
func TestDial_ReturnsErrno(t *testing.T) {
	t.Parallel()
	s := open(t, func(context.Context, string, netip.AddrPort) (net.Conn, error) { return nil, unix.ENETUNREACH })
	for to, want := range map[string]syscall.Errno{
		host: unix.ECONNREFUSED, "[2606::1]:80": unix.ECONNREFUSED, "93.184.216.34:0": unix.ECONNREFUSED,
		"192.0.0.1:80": unix.ECONNREFUSED, "192.0.0.2:80": unix.ECONNREFUSED, "127.0.0.1:80": unix.ENETUNREACH,
		"[::1]:80": unix.ENETUNREACH, "0.0.0.0:80": unix.ENETUNREACH, "224.0.0.1:80": unix.ENETUNREACH,
		"255.255.255.255:80": unix.ENETUNREACH, "[ff02::1]:80": unix.ENETUNREACH,
	} {
		if c, err := s.Dial("tcp", to); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", to, c, err)
		}
	}
}

// TestDial_EndsWithSession checks that a dial to a host that does not answer ends with the socket that it is for.
func TestDial_EndsWithSession(t *testing.T) {
	t.Parallel()
	s := open(t, hang)
	for name, end := range map[string]func(*entrancetest.Conn) error{
		"a close":    (*entrancetest.Conn).Close,
		"a shutdown": func(c *entrancetest.Conn) error { return errors.Join(c.CloseRead(), c.CloseWrite()) },
		"a close after a write": func(c *entrancetest.Conn) error {
			_, err := c.Write([]byte("early"))
			return errors.Join(err, c.CloseWrite(), c.Close())
		},
	} {
		c, status, err := s.Ask("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		if err := end(c); err != nil {
			t.Fatal(err)
		}
		if no, err := entrancetest.Await(status); no != unix.ECONNRESET && err == nil {
			t.Errorf("after %s: %v, %v", name, no, err)
		}
		c.Close()
	}
	for len(s.entrance.streams) > 0 { // all sessions end
		runtime.Gosched()
	}
}

// TestHeader_RefusesHostile checks that an invalid header ends its own connection and no other.
func TestHeader_RefusesHostile(t *testing.T) {
	t.Parallel()
	s := open(t, toServer(t, echo))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	end, far, err := entrancetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	defer far.Close()
	h := ask.Header(netip.MustParseAddrPort(host), 0)
	for _, tt := range []struct {
		name, networks string
		send           func(*net.UnixConn) error
	}{
		{"no descriptor", "tcp udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:]) }},
		{"one descriptor", "udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], w) }},
		{"two descriptors", "tcp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], w, w) }},
		{"two pipes", "udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], w, w) }},
		{"three descriptors", "tcp udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], w, far, far) }},
		{"the wrong order", "udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], far, w) }},
		{"a stream", "udp", func(c *net.UnixConn) error { return sendSocket(c, h[:], w, "unix") }},
		{"datagrams", "udp", func(c *net.UnixConn) error { return sendSocket(c, h[:], w, "unixgram") }},
		{"a socket of the Internet", "udp",
			func(c *net.UnixConn) error { return sendSocket(c, h[:], w, "udp") }},
		{"a listener", "udp", func(c *net.UnixConn) error { return sendListener(t, c, h[:], w) }},
		{"the wrong end", "tcp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], r) }},
		{"the wrong end", "udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], r, far) }},
		{"no pipe", "tcp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], null) }},
		{"no pipe", "udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:], null, far) }},
		{"a short header", "tcp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:19], w) }},
		{"a short header", "udp", func(c *net.UnixConn) error { return entrancetest.Send(c, h[:19], w, far) }},
		{"garbage", "tcp", func(c *net.UnixConn) error { return entrancetest.Send(c, bytes.Repeat([]byte{7}, len(h)), w) }},
		{"another version", "tcp", func(c *net.UnixConn) error { return entrancetest.Send(c, append([]byte{1}, h[1:]...), w) }},
		{"silence", "tcp udp", func(*net.UnixConn) error { return nil }},
		{"an end", "tcp udp", func(c *net.UnixConn) error { return c.CloseWrite() }},
	} {
		for _, network := range strings.Fields(tt.networks) {
			c, err := s.Connect(network)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.send(c); err != nil {
				t.Fatal(err)
			}
			if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s over %s: %d bytes, %v", tt.name, network, n, err)
			}
			c.Close()
		}
	}
	if _, err := s.Dial("tcp", host); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	// The entrance holds no descriptor that it refused, and has written to none.
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes were written, %v", n, err)
	}
}

// sendSocket sends a header with a pipe and a socket that is not the end of a pair.
func sendSocket(c *net.UnixConn, header []byte, w *os.File, network string) error {
	kind, domain := unix.SOCK_DGRAM, unix.AF_UNIX
	switch network {
	case "unix":
		kind = unix.SOCK_STREAM
	case "udp":
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), network)
	defer f.Close()
	return entrancetest.Send(c, header, w, f)
}

// sendListener is sendSocket with a listener of the right type.
func sendListener(t *testing.T, c *net.UnixConn, header []byte, w *os.File) error {
	t.Helper()
	_, stream, messages := entrancetest.Listen(t)
	defer stream.Close()
	defer messages.Close()
	return entrancetest.Send(c, header, w, messages)
}

// TestStatus_DoesNotWait passes a full pipe as the status pipe, in blocking mode.
func TestStatus_DoesNotWait(t *testing.T) {
	t.Parallel()
	s := open(t, toServer(t, echo))
	var full [2]int
	if err := unix.Pipe2(full[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(full[0])
	w := os.NewFile(uintptr(full[1]), "full")
	defer w.Close()
	for err := error(nil); err == nil; {
		_, err = unix.Write(full[1], make([]byte, 1))
	}
	if err := unix.SetNonblock(full[1], false); err != nil {
		t.Fatal(err)
	}
	c, err := s.Connect("tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := ask.Header(netip.MustParseAddrPort(host), 0)
	if err := entrancetest.Send(c, h[:], w); err != nil {
		t.Fatal(err)
	}
	echoes(t, c)
}

// TestStatus_NobodyWaits closes the end of the status pipe to read before the dial, and while it takes long, as init
// does for a caller that does not want to block. The connection is made.
func TestStatus_NobodyWaits(t *testing.T) {
	t.Parallel()
	dialled := make(chan struct{})
	to := toServer(t, echo)
	s := open(t, func(ctx context.Context, network string, at netip.AddrPort) (net.Conn, error) {
		select {
		case <-dialled:
		case <-ctx.Done():
		}
		return to(ctx, network, at)
	})
	var all []net.Conn
	for range 2 {
		c, status, err := s.Ask("tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		status.Close()
		all = append(all, c)
	}
	close(dialled)
	for _, c := range all {
		echoes(t, c)
	}
}

// echoes checks that a connection leads to echo.
func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	b := make([]byte, 1)
	err := c.SetDeadline(time.Now().Add(2 * time.Minute))
	if err == nil {
		_, err = c.Write([]byte("x"))
	}
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err != nil || b[0] != 'x' {
		t.Errorf("%q, %v", b, err)
	}
}

// TestHeaders_AreBounded floods an entrance with connections that send no header.
func TestHeaders_AreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, toServer(t, echo))
	for range limit.EntranceHeaders {
		c, err := s.Connect("tcp")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	refused := 0
	for err := errors.New(""); err != nil; refused++ { // until the first have timed out
		var c net.Conn
		if c, err = s.Dial("tcp", host); err == nil {
			c.Close()
		}
	}
	if refused == 1 {
		t.Error("a connection beyond the bound is accepted")
	}
}

// TestConnections_AreBounded checks that further connections than the bounds are closed at once.
func TestConnections_AreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, hang)
	for network, most := range map[string]int{"tcp": limit.EntranceStreams, "udp": limit.EntranceFlows} {
		room := map[string]slots{"tcp": s.entrance.streams, "udp": s.entrance.flows}[network]
		// Dials time out, on a busy machine perhaps before there are so many.
		for late := time.Now().Add(5 * time.Minute); len(room) < most; {
			if time.Now().After(late) {
				t.Fatalf("%s: %d connections, of at most %d", network, len(room), most)
			}
			before := len(room)
			c, status, err := s.Ask(network, host)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			defer status.Close()
			for soon := time.Now().Add(10 * time.Millisecond); len(room) == before && time.Now().Before(soon); {
				runtime.Gosched()
			}
		}
		if c, err := s.Dial(network, host); err == nil {
			t.Errorf("%v is connected beyond the bound", c)
		}
	}
}

// TestClose_EndsEverything checks that Close returns and leaves nothing, whatever is in progress. It is not parallel:
// it looks at all goroutines of the process.
func TestClose_EndsEverything(t *testing.T) {
	hosts := toServer(t, echo)
	before := openFiles(t)
	s := open(t, func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
		if to.Port() == 81 {
			return hang(ctx, network, to)
		}
		return hosts(ctx, network, to)
	})
	var ends []io.Closer
	for range 20 {
		c := s.dial(t, "tcp", host)
		flow := s.dial(t, "udp", host)
		for _, x := range []*entrancetest.Conn{c, flow} {
			if _, err := x.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			ends = append(ends, x)
		}
		dialling, status, err := s.Ask("tcp", "93.184.216.34:81")
		if err != nil {
			t.Fatal(err)
		}
		silent, err := s.Connect("tcp")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, dialling, status, silent)
	}
	s.close(t)
	s.close(t)
	if c, err := s.Connect("tcp"); err == nil {
		t.Errorf("%v is connected to an entrance that is closed", c)
	}
	for _, c := range ends {
		c.Close()
	}
	if left := goroutines(); left != "" {
		t.Errorf("goroutines are left:\n%s", left)
	}
	if n := openFiles(t) - before; n > 4 {
		t.Errorf("%d descriptors are left", n)
	}
}

// goroutines returns the running goroutines of entrances and their stacks. Because one that was stopped may take a
// moment to exit, it retries for a while.
func goroutines() string {
	buf := make([]byte, 1<<22)
	var left []string
	for range 1000 {
		left = nil
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "gvisor.dev/") || strings.Contains(g, "entrance.(*") && !strings.Contains(g, "testing.tRunner") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
		runtime.Gosched()
	}
	return strings.Join(left, "\n\n")
}

// openFiles counts the open descriptors.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
