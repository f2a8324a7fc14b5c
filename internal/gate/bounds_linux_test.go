//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/limit"
)

// TestBounds_AreThoseOfTheTable checks that the default bounds of a gate are those of package limit.
func TestBounds_AreThoseOfTheTable(t *testing.T) {
	t.Parallel()
	want := Bounds{
		Conns: limit.GateConns, Opening: limit.GateOpening, Inspect: limit.GateInspected,
		Logins: limit.GateLogins, Flows: limit.GateFlows, PerSec: limit.GateDials,
		Idle: time.Hour, UDPIdle: time.Minute, Dial: 15 * time.Second, Hello: 15 * time.Second,
		Ask: 55 * time.Second, Questions: limit.GateQuestions, Waiting: limit.GateWaiting, Bodies: limit.HeldBodies,
	}
	if got := (Bounds{}).withDefaults(); got != want {
		t.Errorf("%+v", got)
	}
}

// stuck is an internet whose servers do not answer. It counts the waiting connections.
type stuck struct {
	mu        sync.Mutex
	now, most int // guarded by mu
	sum       int // guarded by mu
}

func (s *stuck) dial(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
	s.mu.Lock()
	s.now++
	s.sum++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	return nil, ctx.Err()
}

func everything(Request) Decision { return Decision{Verdict: Allow, Rule: "all"} }

func TestDial_TimesOut(t *testing.T) { overBoth(t, testDialTimesOut) }

func testDialTimesOut(t *testing.T, k kind) {
	t.Parallel()
	out := &stuck{}
	s := start(t, k, &book{decide: everything},
		func(o *Options) { o.Dial, o.Bounds = out.dial, Bounds{Dial: 5 * time.Second} }) // also to begin, on a busy machine
	if got, err := s.do("exchange", []byte("x"), "tcp", "93.184.216.34:80"); err == nil {
		t.Errorf("%q", got)
	}
	s.wait(t, "the end of the dial", func(e Event) bool { return e.Kind == KindEnd && e.Port == 80 })
}

// TestOpening_IsBounded checks that connections in the handshake are bounded: further ones are dropped, and the
// sandbox's kernel retries.
func TestOpening_IsBounded(t *testing.T) { overBoth(t, testOpeningIsBounded) }

func testOpeningIsBounded(t *testing.T, k kind) {
	t.Parallel()
	const opening = 2
	out := &stuck{}
	s := start(t, k, &book{decide: everything}, func(o *Options) {
		o.Dial, o.Bounds = out.dial, Bounds{Opening: opening, Dial: 3 * time.Second}
	})
	if got := s.must(t, "flood", nil, "93.184.216.34:80", "10"); string(got) != "0" {
		t.Errorf("%s connections", got)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.most != opening {
		t.Errorf("%d were dialled at a time, %d in total", out.most, out.sum)
	}
}

func TestDials_AreRateLimited(t *testing.T) { overBoth(t, testDialsAreRateLimited) }

func testDialsAreRateLimited(t *testing.T, k kind) {
	t.Parallel()
	s := start(t, k, &book{decide: everything},
		func(o *Options) { o.Bounds = Bounds{PerSec: 1, Dial: 50 * time.Millisecond} })
	s.must(t, "flood", nil, "93.184.216.34:80", "10")
	s.denied(t, TCP, "too many connections in too short a time")
}

func TestDNS_OverTCPIsBounded(t *testing.T) { overBoth(t, testDNSOverTCPIsBounded) }

func testDNSOverTCPIsBounded(t *testing.T, k kind) {
	t.Parallel()
	s := start(t, k, &book{decide: func(Request) Decision { return Decision{} }}, nil)
	m := ask("a.example", dnsmessage.TypeA, false)
	one := append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...)
	count := func(b []byte) (answers int) {
		for ; len(b) > 2; answers++ {
			b = b[min(2+int(binary.BigEndian.Uint16(b)), len(b)):]
		}
		return answers
	}
	if n := count(s.must(t, "exchange", bytes.Repeat(one, limit.DNSStream), "tcp", "192.0.0.1:53")); n != limit.DNSStream {
		t.Errorf("%d queries were answered", n)
	}
	// The end of the connection may overtake responses.
	if got, err := s.do("exchange", bytes.Repeat(one, limit.DNSStream+1), "tcp", "192.0.0.1:53"); err == nil ||
		count(got) > limit.DNSStream {
		t.Errorf("%d queries were answered, %v", count(got), err)
	}
}
