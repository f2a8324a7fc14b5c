//go:build linux && (amd64 || arm64)

package gate

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// sendFrame is the order frame: it sends data, an IPv6 packet, as a frame, past the kernel's network stack.
func sendFrame(_ []string, packet []byte) ([]byte, error) {
	return nil, withSocket(unix.AF_PACKET, unix.SOCK_RAW, 0, func(fd int) error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return unix.Sendto(fd, append([]byte(link.GateMAC+link.BoxMAC+"\x86\xdd"), packet...), 0,
			&unix.SockaddrLinklayer{Ifindex: i.Index, Halen: 6})
	})
}

// routed returns a TCP SYN behind a routing header (RFC 8200, 4.4) with one segment. The packet begins with the
// extension header first: the routing header itself, or one with options before it.
func routed(first, kind, left byte, to, segmentTo string) []byte {
	body := append([]byte{unix.IPPROTO_TCP, 2, kind, left, 0, 0, 0, 0}, netip.MustParseAddr(segmentTo).AsSlice()...)
	body = append(body, segment(80, 1, 0, 2, nil, nil)...)
	if first != unix.IPPROTO_ROUTING {
		body = append([]byte{unix.IPPROTO_ROUTING, 0, 1, 4, 0, 0, 0, 0}, body...)
	}
	return packet6(first, b6, to, body...)
}

// TestGate_RefusesRoutingHeaders sends packets with routing headers through the link: each is refused and recorded
// without a decision, whichever type it has, however many segments are left, and whatever precedes it. Otherwise a
// packet could be decided by its first segment and reach its last.
func TestGate_RefusesRoutingHeaders(t *testing.T) { overBoth(t, testGateRefusesRoutingHeaders) }

func testGateRefusesRoutingHeaders(t *testing.T, k kind) {
	t.Parallel()
	const allowed, other, group = "2606::1", "2606::2", "ff02::1"
	b := &book{decide: func(r Request) Decision {
		t.Errorf("%+v is decided", r)
		return Decision{Verdict: Allow}
	}}
	var s *sandbox
	var send func(packet []byte)
	switch k {
	case veth:
		s = start(t, k, b, nil)
		send = func(p []byte) { s.must(t, "frame", p) }
	case socket:
		box, gate, err := link.Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer box.Close()
		s = &sandbox{book: b, told: make(chan struct{}, 1)}
		if s.Gate, err = New(t.Context(), Options{FD: gate, Policy: b, Report: s.report}); err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		send = func(p []byte) {
			if _, err := box.Write(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	sent := 0
	for _, kind := range []byte{0, 2, 3, 4, 253} {
		for _, left := range []byte{0, 1, 255} {
			for _, first := range []byte{unix.IPPROTO_ROUTING, unix.IPPROTO_HOPOPTS, unix.IPPROTO_DSTOPTS} {
				for _, to := range []string{allowed, group, g6} {
					send(routed(first, kind, left, to, other))
					sent++
				}
			}
		}
	}
	for _, to := range []string{allowed, group, g6} {
		for proto, why := range map[Proto]string{"ip-43": "routing header", "ip-0": "", "ip-60": ""} {
			s.wait(t, string(proto)+" to "+to, func(e Event) bool {
				return e.Kind == KindDeny && e.Proto == proto && e.Addr == netip.MustParseAddr(to) &&
					strings.Contains(e.Reason, why)
			})
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if decided, dropped := countAll(s.events, func(Event) bool { return true }); decided+dropped != sent {
		t.Errorf("of %d packets, %d were recorded and %d counted as dropped: %+v", sent, decided, dropped, s.events)
	}
	if to := b.reached(); len(to) != 0 {
		t.Errorf("%v was dialled", to)
	}
}
