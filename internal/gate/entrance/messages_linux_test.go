//go:build linux && (amd64 || arm64)

package entrance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/entrance/entrancetest"
)

// TestMessages_PreservesDatagrams checks that messages are datagrams, also empty ones, that ones that are too long are
// lost, and that a sandbox that does not read does not matter.
func TestMessages_PreservesDatagrams(t *testing.T) {
	t.Parallel()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	s := open(t, func(ctx context.Context, network string, _ netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, u.LocalAddr().String())
	})
	if err := u.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{host, "[2606::1]:123"} {
		c, b := s.dial(t, "udp", to), make([]byte, 1<<17)
		if err := c.SetWriteBuffer(1 << 20); err != nil {
			t.Fatal(err)
		}
		most := mostOf(netip.MustParseAddrPort(to))
		for _, size := range []int{1, most + 1, 0, 3, 1 << 16, 1 << 17, 60000, most} {
			if err := entrancetest.Send(c.UnixConn, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			if size > most {
				continue
			}
			n, from, err := u.ReadFrom(b)
			if n != size || err != nil {
				t.Fatalf("%s: %d bytes of %d, %v", to, n, size, err)
			}
			if size == 0 {
				continue // Read would return io.EOF for an empty message
			}
			if _, err := u.WriteTo(b[:n], from); err != nil {
				t.Fatal(err)
			}
			if n, err := c.Read(b); n != size || err != nil {
				t.Errorf("%s: %d bytes of %d come back, %v", to, n, size, err)
			}
		}
		if err := entrancetest.Send(c.UnixConn, []byte("x")); err != nil {
			t.Fatal(err)
		}
		_, from, err := u.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		for range 2000 {
			if _, err := u.WriteTo(make([]byte, 1000), from); err != nil {
				t.Fatal(err)
			}
		}
		if err := entrancetest.Send(c.UnixConn, []byte("still here")); err != nil {
			t.Fatal(err)
		}
		if n, _, err := u.ReadFrom(b); string(b[:n]) != "still here" || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}

// datagramHosts is an internet of hosts for datagrams, by the last byte of their addresses: each has a socket.
type datagramHosts map[byte]*net.UDPConn

// newDatagramHosts returns an internet with n hosts.
func newDatagramHosts(t *testing.T, n int) datagramHosts {
	t.Helper()
	hosts := datagramHosts{}
	for i := range n {
		u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { u.Close() })
		if err := errors.Join(u.SetReadBuffer(4<<20), u.SetDeadline(time.Now().Add(2*time.Minute))); err != nil {
			t.Fatal(err)
		}
		hosts[byte(i+1)] = u
	}
	return hosts
}

func (h datagramHosts) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	a := to.Addr().As4()
	var d net.Dialer
	return d.DialContext(ctx, network, h[a[3]].LocalAddr().String())
}

// pair returns both ends of a pair, which are closed when the test ends.
func pair(t *testing.T) (c *net.UnixConn, far *os.File) {
	t.Helper()
	c, far, err := entrancetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); far.Close() })
	return c, far
}

// at is the address of a host of datagramHosts.
func at(host byte) string { return fmt.Sprintf("93.184.216.%d:7", host) }

// begin begins a session of a pair, and waits for its status.
func (s *scene) begin(t *testing.T, far *os.File, host byte, from uint16) *net.UnixConn {
	t.Helper()
	session, status, err := s.Begin(far, at(host), from)
	if err != nil {
		t.Fatal(err)
	}
	if no, err := entrancetest.Await(status); no != 0 || err != nil {
		t.Fatal(no, err)
	}
	return session
}

// end ends a session, and waits until the entrance has.
func end(t *testing.T, session *net.UnixConn) {
	t.Helper()
	if err := errors.Join(session.CloseWrite(), session.SetReadDeadline(time.Now().Add(2*time.Minute))); err != nil {
		t.Fatal(err)
	}
	ended(t, session)
}

// ended waits until the entrance has ended a session.
func ended(t *testing.T, session *net.UnixConn) {
	t.Helper()
	if err := session.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := session.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	session.Close()
}

// TestMessages_ChangePeers gives one pair to sessions with two hosts in turns. All that was queued before a session
// ends goes to its host and to no other, and each host sees one port.
func TestMessages_ChangePeers(t *testing.T) {
	t.Parallel()
	hosts := newDatagramHosts(t, 2)
	s := open(t, hosts.dial)
	c, far := pair(t)
	const turns, each = 200, 5
	var own sync.WaitGroup
	for host, u := range hosts {
		own.Go(func() {
			b, ports := make([]byte, 100), map[string]bool{}
			for i := range turns * each {
				n, from, err := u.ReadFrom(b)
				if err != nil || n != 5 || b[0] != host || binary.BigEndian.Uint32(b[1:]) != uint32(i) {
					t.Errorf("host %d, datagram %d: %x, %v", host, i, b[:n], err)
					return
				}
				ports[from.String()] = true
			}
			if len(ports) != 1 {
				t.Errorf("host %d sees the ports %v", host, ports)
			}
		})
	}
	for turn := range turns {
		for host := range byte(len(hosts)) {
			session := s.begin(t, far, host+1, 40000)
			for i := range each {
				if err := entrancetest.Send(c, binary.BigEndian.AppendUint32([]byte{host + 1}, uint32(turn*each+i))); err != nil {
					t.Fatal(err)
				}
			}
			end(t, session)
		}
	}
	own.Wait()
}

// TestMessages_ComeFromTheirPeer checks that no datagram of an earlier host that floods arrives in the session with
// the next one, which has the same port.
func TestMessages_ComeFromTheirPeer(t *testing.T) {
	t.Parallel()
	hosts := newDatagramHosts(t, 2)
	s := open(t, hosts.dial)
	c, far := pair(t)
	ctx, stop := context.WithCancel(t.Context())
	var own sync.WaitGroup
	defer own.Wait()
	defer stop()
	began := make(chan struct{})
	own.Go(func() {
		b := make([]byte, 100)
		_, to, err := hosts[1].ReadFrom(b)
		close(began)
		for err == nil && ctx.Err() == nil {
			_, err = hosts[1].WriteTo([]byte{1}, to)
		}
	})
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// queued returns the first bytes of what is queued, at most a thousand datagrams.
	queued := func() (from []byte) {
		b := make([]byte, 100)
		err := raw.Control(func(fd uintptr) {
			for len(from) < 1000 {
				n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
				if err != nil || n == 0 {
					return
				}
				from = append(from, b[0])
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return from
	}
	for turn := range 100 {
		session := s.begin(t, far, 1, 40000)
		if turn == 0 {
			if err := entrancetest.Send(c, []byte("begin")); err != nil {
				t.Fatal(err)
			}
			<-began
		}
		time.Sleep(5 * time.Millisecond) // some datagrams arrive
		end(t, session)
		for len(queued()) > 0 { // which init discards
		}
		session = s.begin(t, far, 2, 40000)
		time.Sleep(5 * time.Millisecond)
		if bytes.IndexByte(queued(), 1) >= 0 {
			t.Fatalf("turn %d: a datagram of the earlier host", turn)
		}
		end(t, session)
	}
}

// TestMessages_EndWithTheirSession checks that a session that init ends delivers nothing more to the sandbox, whose end
// stays as it was, and that one ends with the sandbox's end of the pair.
func TestMessages_EndWithTheirSession(t *testing.T) {
	t.Parallel()
	hosts := newDatagramHosts(t, 1)
	s := open(t, hosts.dial)
	c, far, err := entrancetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 100)
	for range 20 {
		session := s.begin(t, far, 1, 0)
		if err := entrancetest.Send(c, []byte("x")); err != nil {
			t.Fatal(err)
		}
		_, from, err := hosts[1].ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		stop, flooding := make(chan struct{}), make(chan struct{})
		go func() { // a host that sends until it is stopped
			defer close(flooding)
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = hosts[1].WriteTo(make([]byte, 100), from)
				}
			}
		}()
		if _, err := c.Read(b); err != nil {
			t.Error(err)
		}
		end(t, session)
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var left error
		for left == nil { // what came before the end
			if err := raw.Control(func(fd uintptr) {
				_, _, left = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
				if isSet(fd, unix.POLLHUP|unix.POLLRDHUP) {
					t.Error("the sandbox's end is hung up")
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		close(stop)
		<-flooding
		if err := raw.Control(func(fd uintptr) { _, _, left = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT) }); err != nil ||
			!errors.Is(left, unix.EAGAIN) {
			t.Error(err, left)
		}
	}
	session := s.begin(t, far, 1, 0)
	far.Close()
	if err := entrancetest.Send(c, []byte("the last")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	ended(t, session)
	for string(b[:8]) != "the last" {
		if _, _, err := hosts[1].ReadFrom(b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMessages_ShareNoPort checks that a session whose port is not free gets another, and its own answers.
func TestMessages_ShareNoPort(t *testing.T) {
	t.Parallel()
	hosts := newDatagramHosts(t, 1)
	s := open(t, hosts.dial)
	b := make([]byte, 10)
	for i := range byte(3) {
		c, far, err := entrancetest.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		defer far.Close()
		defer s.begin(t, far, 1, 40000).Close()
		if err := entrancetest.Send(c, []byte{i}); err != nil {
			t.Fatal(err)
		}
		n, from, err := hosts[1].ReadFrom(b)
		if err == nil {
			_, err = hosts[1].WriteTo(b[:n], from)
		}
		if err == nil {
			n, err = c.Read(b)
		}
		if n != 1 || b[0] != i || err != nil {
			t.Fatalf("session %d: %x, %v", i, b[:n], err)
		}
	}
}

// TestMessages_GiveBackTheirSlot checks that there is room for another session as soon as one has ended.
func TestMessages_GiveBackTheirSlot(t *testing.T) {
	t.Parallel()
	hosts := newDatagramHosts(t, 1)
	s := open(t, hosts.dial)
	for len(s.entrance.flows) < cap(s.entrance.flows)-1 {
		s.dial(t, "udp", at(1))
		for len(s.entrance.asking) > 0 {
			runtime.Gosched()
		}
	}
	_, far, err := entrancetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	for range 300 {
		end(t, s.begin(t, far, 1, 0))
	}
}

// TestMessages_IgnoreFlags clears O_NONBLOCK of the far end, which does not let the entrance wait, and ends sessions in
// every state of the pair.
func TestMessages_IgnoreFlags(t *testing.T) {
	t.Parallel()
	hosts := newDatagramHosts(t, 1)
	s := open(t, hosts.dial)
	for name, prepare := range map[string]func(c *net.UnixConn, far int) error{
		"a blocking far end": func(_ *net.UnixConn, far int) error { return unix.SetNonblock(far, false) },
		"an end that sends nothing more": func(c *net.UnixConn, far int) error {
			return errors.Join(c.CloseWrite(), unix.SetNonblock(far, false))
		},
		"an end that receives nothing more": func(c *net.UnixConn, far int) error {
			return errors.Join(c.CloseRead(), unix.SetNonblock(far, false))
		},
		"a full end": func(_ *net.UnixConn, far int) (err error) {
			for err == nil {
				err = unix.Send(far, make([]byte, 100), unix.MSG_DONTWAIT)
			}
			return unix.SetNonblock(far, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, far, err := entrancetest.Pair()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			defer far.Close()
			session := s.begin(t, far, 1, 0)
			if err := prepare(c, int(far.Fd())); err != nil {
				t.Fatal(err)
			}
			end(t, session)
		})
	}
	if _, err := s.Dial("udp", at(1)); err != nil {
		t.Error(err)
	}
}
