package gate

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/limit"
)

// resolving returns a resolver that allows all names; found is the lookup outside.
func resolving(t *testing.T, found func(context.Context, string) ([]netip.Addr, time.Duration, error)) *resolver {
	b := &book{decide: func(Request) Decision { return Decision{Verdict: Allow} }}
	j, wait := newJournal(time.Now, func(Event) {})
	t.Cleanup(func() { j.close(); wait() })
	return newResolver(func() Policy { return b }, newPins(), j, newDesk(j, time.Now, Bounds{}), found, time.Now)
}

func TestAnswer_BoundsAddresses(t *testing.T) {
	t.Parallel()
	var many []netip.Addr
	for i := range limit.DNSAnswers + 10 {
		many = append(many, netip.AddrFrom16([16]byte{0x26, 6, 0x28, 0, 15: byte(i + 1)}))
	}
	r := resolving(t, func(context.Context, string) ([]netip.Addr, time.Duration, error) { return many, time.Minute, nil })
	m := ask("a.example", dnsmessage.TypeAAAA, false)
	if x := unpack(t, m, r.answer(t.Context(), m, 1<<16-1)); len(x.addrs) != limit.DNSAnswers ||
		x.RCode != dnsmessage.RCodeSuccess {
		t.Errorf("%d addresses, code %d", len(x.addrs), x.RCode)
	}
	m = ask("a.example", dnsmessage.TypeAAAA, true)
	m[len(m)-8], m[len(m)-7] = 0xff, 0xff // the client accepts 64 KiB
	q, _, _, ok := parseQuery(m)
	if !ok || q.size != limit.DNSDatagram {
		t.Fatalf("%d bytes, %v", q.size, ok)
	}
	a := q.reply(dnsmessage.RCodeSuccess, append(many, many...), time.Minute, q.size)
	if x := unpack(t, m, a); len(a) > limit.DNSDatagram || !x.Truncated {
		t.Errorf("%d bytes, %+v", len(a), x.Header)
	}
}

func TestQueries_AreBoundedAtOnce(t *testing.T) {
	t.Parallel()
	r := resolving(t, nil)
	for i := range limit.DNSQueries {
		if !r.take() {
			t.Fatalf("query %d gets no slot", i)
		}
	}
	if r.take() {
		t.Error("a query beyond the limit gets a slot")
	}
	r.give()
	if !r.take() {
		t.Error("a released slot is not reused")
	}
}

func TestLookup_TimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := resolving(t, func(ctx context.Context, _ string) ([]netip.Addr, time.Duration, error) {
			<-ctx.Done()
			return nil, 0, ctx.Err()
		})
		begun, m := time.Now(), ask("a.example", dnsmessage.TypeA, false)
		if x := unpack(t, m, r.answer(t.Context(), m, 0)); x.RCode != dnsmessage.RCodeServerFailure {
			t.Errorf("code %d", x.RCode)
		}
		if d := time.Since(begun); d != limit.DNSLookupSeconds*time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

func TestPrintable_TruncatesLongText(t *testing.T) {
	t.Parallel()
	if got := printable([]byte(strings.Repeat("a", 10*limit.EventText))); len(got) != limit.EventText {
		t.Errorf("%d bytes", len(got))
	}
}
