//go:build linux && (amd64 || arm64)

package gate

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// TestGate_SurvivesHostilePair checks that a gate at a pair with a hostile other end continues, and can be closed.
func TestGate_SurvivesHostilePair(t *testing.T) {
	t.Parallel()
	t.Run("that does not read", func(t *testing.T) {
		t.Parallel()
		g, fd := wire(t, socket)
		defer unix.Close(fd)
		q := ask("a.example", dnsmessage.TypeA, false)
		query := packet4(17, b4, g4, append([]byte{0x9c, 0x41, 0, 53, 0, byte(8 + len(q)), 0, 0}, q...)...)
		ping := packet4(1, b4, g4, append([]byte{8, 0, 0, 0}, make([]byte, 4000)...)...)
		for _, p := range [][]byte{query, ping} {
			binary.BigEndian.PutUint16(p[10:], sum(p[:20], 0))
		}
		for range 5000 {
			for _, p := range [][]byte{query, ping, packet4(6, b4, "93.184.216.34", segment(80, 1, 0, 2, nil, nil)...)} {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
				n, err := unix.Poll(fds, 60000)
				for err == unix.EINTR { // the runtime preempts with signals
					n, err = unix.Poll(fds, 60000)
				}
				if err != nil || n == 0 {
					t.Fatal("the gate no longer reads", err)
				}
				if err := unix.Sendmsg(fd, p, nil, nil, unix.MSG_DONTWAIT); err != nil && err != unix.EAGAIN {
					t.Fatal(err)
				}
			}
		}
		if lost := g.Stats().Frames; lost == 0 {
			t.Error("more is queued than the limit")
		}
		survives(t, socket, fd, ping, make([]byte, 1<<17))
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("that goes", func(t *testing.T) {
		t.Parallel()
		s, g, box := bare(t)
		box.Close()
		s.denied(t, "", "link failed, so all connections are blocked: ")
		g.link.Wait()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("from other addresses", func(t *testing.T) {
		t.Parallel()
		s, g, box := bare(t)
		defer box.Close()
		defer g.Close()
		for _, p := range [][]byte{packet4(17, "10.0.0.1", "1.1.1.1", make([]byte, 8)...),
			packet6(6, "fe80::1", "2606::1", make([]byte, 20)...)} {
			if _, err := box.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		for _, to := range []string{"1.1.1.1", "2606::1"} {
			s.wait(t, "a foreign source", func(e Event) bool {
				return e.Kind == KindDeny && e.Addr == netip.MustParseAddr(to) &&
					e.Reason == "the source address of the packet is not the sandbox's"
			})
		}
	})
}

// bare returns a gate that denies everything, and the other end of its pair.
func bare(t *testing.T) (*sandbox, *Gate, *os.File) {
	t.Helper()
	s := &sandbox{told: make(chan struct{}, 1)}
	box, gate, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(t.Context(), Options{FD: gate, Report: s.report})
	if err != nil {
		t.Fatal(err)
	}
	return s, g, box
}

// TestNew_RefusesOtherDescriptors checks that descriptors that are not an end of a link are refused.
func TestNew_RefusesOtherDescriptors(t *testing.T) {
	t.Parallel()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stream[1])
	for _, f := range []*os.File{null, os.NewFile(uintptr(stream[0]), "stream")} {
		if g, err := New(t.Context(), Options{FD: f}); err == nil {
			t.Errorf("%s is accepted", f.Name())
			g.Close()
		}
		if f.Close() == nil {
			t.Errorf("%s is not closed", f.Name())
		}
	}
}
