//go:build linux && (amd64 || arm64)

package gate

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// isDropped reports whether an event counts packets that were dropped.
func isDropped(e Event) bool { return e.Kind == KindDeny && e.Reason == Dropped }

// countAll returns how many packets the denials that matches accepts and the reports of dropped ones count.
func countAll(events []Event, matches func(Event) bool) (decided, dropped int) {
	for _, e := range events {
		switch {
		case isDropped(e):
			dropped += e.Count
		case e.Kind == KindDeny && matches(e):
			decided += e.Count
		}
	}
	return decided, dropped
}

// TestGate_CountsDroppedPackets checks that every packet of a flood is either decided or counted as dropped, when the
// gate runs and when it is closed at once: a flood hides no destination without a trace.
func TestGate_CountsDroppedPackets(t *testing.T) {
	t.Parallel()
	to := netip.MustParseAddr("93.184.216.34")
	for name, during := range map[string]func(*testing.T, *sandbox){
		"while it runs": func(t *testing.T, s *sandbox) { s.wait(t, "dropped packets", isDropped) },
		"at its end":    func(*testing.T, *sandbox) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := launch(t, veth)
			fd := s.link(t, 0)
			const size = 60_000
			const sent = 5 * limit.LinkQueue / size // the kernel doubles the limit, for its metadata
			s.must(t, "datagrams", []byte(strings.Repeat("x", size)), to.String()+":123", strconv.Itoa(sent))
			g, err := New(t.Context(), Options{FD: fd, Report: s.report})
			if err != nil {
				t.Fatal(err)
			}
			during(t, s)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			decided, dropped := countAll(s.events, func(e Event) bool { return e.Addr == to })
			if dropped == 0 || decided+dropped < sent {
				t.Errorf("of %d packets, %d were decided and %d counted as dropped: %+v", sent, decided, dropped, s.events)
			}
		})
	}
}

// TestGate_CountsDroppedQueries checks that each datagram to the gate's name server is decided or counted as dropped,
// whatever it has, although the queue of the server is much smaller than that of the link.
func TestGate_CountsDroppedQueries(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"large":     strings.Repeat("x", 60_000),
		"empty":     "",
		"an answer": "\x00\x00\x80" + strings.Repeat("\x00", 9),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := launch(t, veth)
			fd := s.link(t, 0)
			const sent = 60
			s.must(t, "datagrams", []byte(data), "192.0.0.1:53", strconv.Itoa(sent))
			g, err := New(t.Context(), Options{FD: fd, Report: s.report})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			decided, dropped := countAll(s.events, func(e Event) bool { return e.Proto == DNS })
			if decided+dropped != sent {
				t.Errorf("of %d queries, %d were decided and %d counted as dropped: %+v", sent, decided, dropped, s.events)
			}
		})
	}
}

// TestClose_CountsUnreadPackets checks that packets which the gate has no time to decide about before it is closed are
// counted.
func TestClose_CountsUnreadPackets(t *testing.T) { overBoth(t, testCloseCountsUnreadPackets) }

func testCloseCountsUnreadPackets(t *testing.T, k kind) {
	t.Parallel()
	s := launch(t, k)
	fd := s.link(t, 0)
	to := netip.MustParseAddr("93.184.216.34")
	const sent = 400
	s.must(t, "datagrams", []byte("x"), to.String()+":123", strconv.Itoa(sent))
	g, err := New(t.Context(), Options{FD: fd, Report: s.report, Policy: slowly{5 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	decided, dropped := countAll(s.events, func(e Event) bool { return e.Addr == to })
	if dropped == 0 || decided+dropped < sent {
		t.Errorf("of %d packets, %d were decided and %d counted as dropped: %+v", sent, decided, dropped, s.events)
	}
}

// slowly denies everything, each time after a while.
type slowly struct{ pause time.Duration }

func (s slowly) Decide(r Request) Decision {
	time.Sleep(s.pause)
	return denyAll{}.Decide(r)
}
