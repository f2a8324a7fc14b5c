//go:build linux && (amd64 || arm64)

package gate

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// TestClose_ReportsLastPackets checks that what the sandbox sent before the gate is closed is decided, and denials
// reported: here the gate has read nothing yet.
func TestClose_ReportsLastPackets(t *testing.T) { overBoth(t, testCloseReportsLastPackets) }

func testCloseReportsLastPackets(t *testing.T, k kind) {
	t.Parallel()
	s := launch(t, k)
	fd := s.link(t, 0)
	at := netip.MustParseAddr("93.184.216.34")
	// No answer arrives. A connection is given up after two seconds.
	if got := s.must(t, "flood", nil, "93.184.216.34:80", "1"); string(got) != "0" {
		t.Fatalf("%s connections without a gate", got)
	}
	s.do("ask", []byte("x"), "udp", "93.184.216.34:123", "none")
	for range 2 {
		s.do("ask", ask("last.example", dnsmessage.TypeA, false), "udp", "192.0.0.1:53", "none")
	}
	g, err := New(t.Context(), Options{FD: fd, Report: s.report})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	for _, want := range []Event{
		{Proto: TCP, Addr: at, Port: 80}, {Proto: UDP, Addr: at, Port: 123}, {Proto: DNS, Name: "last.example"},
	} {
		found := false
		for _, e := range s.events {
			found = found || e.Kind == KindDeny && e.Proto == want.Proto && e.Addr == want.Addr && e.Port == want.Port &&
				e.Name == want.Name
		}
		if !found {
			t.Errorf("no denial of %s %s %s:%d in %+v", want.Proto, want.Name, want.Addr, want.Port, s.events)
		}
	}
}
