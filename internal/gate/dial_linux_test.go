//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// dialler returns a gate that can only dial, by a policy.
func dialler(p Policy) *Gate {
	g := &Gate{}
	g.policy.Store(&p)
	return g
}

func allowAll(Request) Decision { return Decision{Verdict: Allow} }

// listensAt returns the address of a listener.
func listensAt(t *testing.T, l net.Listener) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestHostDial_Connects(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT) {
			continue // no IPv6 here
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		to := listensAt(t, l)
		c, err := dialler(policyFunc(allowAll)).hostDial(t.Context(), "tcp", to)
		if err != nil {
			t.Fatal(addr, err)
		}
		defer c.Close()
		there, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer there.Close()
		if c.RemoteAddr().String() != to.String() || c.LocalAddr().String() != there.RemoteAddr().String() {
			t.Errorf("from %v to %v, but accepted from %v at %v", c.LocalAddr(), c.RemoteAddr(), there.RemoteAddr(), to)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if n, err := there.Read(make([]byte, 1)); n != 1 {
			t.Error("nothing arrived", err)
		}
		if _, err := dialler(denyAll{}).hostDial(t.Context(), "tcp", to); !fault.Is(err, fault.Denied) {
			t.Errorf("an address of the host itself: %v", err)
		}
		if _, err := dialler(denyAll{}).hostDial(t.Context(), "udp", to); !fault.Is(err, fault.Denied) {
			t.Errorf("datagrams to an address of the host itself: %v", err)
		}
		taken := netip.MustParseAddrPort(c.LocalAddr().String()) // in use, so no other process can listen on it
		if _, err := dialler(policyFunc(allowAll)).hostDial(t.Context(), "tcp", taken); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a port without a listener: %v", err)
		}
	}
}

// TestHostDial_WaitsForSlowHost checks that hostDial waits for a slow host until the caller's deadline.
func TestHostDial_WaitsForSlowHost(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g, to := dialler(policyFunc(allowAll)), listensAt(t, l)
	first, err := g.hostDial(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	// The listener's queue is full, so the kernel drops further connections until they are retransmitted.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if c, err := g.hostDial(ctx, "tcp", to); !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a listener with a full queue: %v, %v", c, err)
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := g.hostDial(t.Context(), "tcp", to)
		if err == nil {
			c.Close()
		}
		dialled <- err
	}()
	for !underway(t, to) {
		runtime.Gosched()
	}
	for {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if c.RemoteAddr().String() != first.LocalAddr().String() {
			break
		}
	}
	if err := <-dialled; err != nil {
		t.Error(err)
	}
}

// underway reports whether a connection to an IPv4 address is being established.
func underway(t *testing.T, to netip.AddrPort) bool {
	t.Helper()
	all, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const synSent = "02"
	ip := to.Addr().As4()
	return strings.Contains(string(all),
		fmt.Sprintf(" %08X:%04X %s ", binary.NativeEndian.Uint32(ip[:]), to.Port(), synSent))
}
