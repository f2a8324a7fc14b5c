//go:build linux && (amd64 || arm64)

package gate

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
)

// TestGate_CountsDroppedPackets checks that every packet of a flood is either decided or counted as dropped, when the
// gate runs and when it is closed at once: a flood hides no destination without a trace.
func TestGate_CountsDroppedPackets(t *testing.T) {
	t.Parallel()
	isDropped := func(e Event) bool { return e.Kind == KindDeny && e.Reason == Dropped }
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
			s.must(t, "datagrams", []byte(strings.Repeat("x", size)), "93.184.216.34:123", strconv.Itoa(sent))
			g, err := New(t.Context(), Options{FD: fd, Report: s.report})
			if err != nil {
				t.Fatal(err)
			}
			during(t, s)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			decided, dropped := 0, 0
			for _, e := range s.events {
				switch {
				case isDropped(e):
					dropped += e.Count
				case e.Kind == KindDeny && e.Addr == netip.MustParseAddr("93.184.216.34"):
					decided += e.Count
				}
			}
			if dropped == 0 || decided+dropped < sent {
				t.Errorf("of %d packets, %d were decided and %d counted as dropped: %+v", sent, decided, dropped, s.events)
			}
		})
	}
}
