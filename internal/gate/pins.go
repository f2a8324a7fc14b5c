package gate

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// Limits of pins. They are per sandbox, because a sandbox can make them grow at will.
const (
	minTTL = 5 * time.Second
	maxTTL = time.Hour
	// pinGrace is how much longer than the TTL that it reported the gate remembers an answer: programs keep
	// addresses, and the address did belong to the name.
	pinGrace = 10 * time.Minute
)

// pins records the DNS answers that a sandbox received: which addresses a name has, and which names an address was
// resolved from. An address can only be reached by its names. It is safe for concurrent use.
type pins struct {
	mu    sync.Mutex
	names map[policy.Host]*pinned             // guarded by mu
	addrs map[netip.Addr]map[policy.Host]pair // guarded by mu; the same pairs by address
	size  int                                 // number of pairs; guarded by mu
}

// pinned is the record of one name.
type pinned struct {
	answer  []netip.Addr // the last answer, to be repeated
	fresh   time.Time    // when the answer expires
	reaches map[netip.Addr]struct{}
}

// pair is a name that leads to an address.
type pair struct {
	told  time.Time // when the sandbox received it last
	until time.Time
}

func newPins() *pins {
	return &pins{names: map[policy.Host]*pinned{}, addrs: map[netip.Addr]map[policy.Host]pair{}}
}

// boundTTL returns a TTL within the bounds for an answer.
func boundTTL(ttl time.Duration) time.Duration { return min(max(ttl, minTTL), maxTTL) }

// put pins name to addrs, at least one, and reports whether there was room; if not, nothing is pinned. addrs is the
// whole answer; earlier addresses of name stay until they expire, since programs remember them.
func (p *pins) put(name policy.Host, addrs []netip.Addr, ttl time.Duration, now time.Time) bool {
	ttl = boundTTL(ttl)
	if len(addrs) == 0 || len(addrs) > limit.PinAddrs {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	added := 0
	for _, a := range addrs {
		if _, ok := p.addrs[a][name]; ok {
			continue
		}
		added++
		if len(p.addrs[a]) >= limit.PinNames {
			p.sweepAddr(a, now)
			if len(p.addrs[a]) >= limit.PinNames {
				return false
			}
		}
	}
	if p.size+added > limit.Pins {
		p.sweepLocked(now)
		if p.size+added > limit.Pins {
			return false
		}
	}
	of := p.names[name]
	if of == nil {
		of = &pinned{reaches: map[netip.Addr]struct{}{}}
		p.names[name] = of
	}
	for _, a := range addrs {
		if p.addrs[a] == nil {
			p.addrs[a] = map[policy.Host]pair{}
		}
		if _, ok := of.reaches[a]; !ok {
			of.reaches[a] = struct{}{}
			p.size++
		}
		p.addrs[a][name] = pair{told: now, until: now.Add(ttl + pinGrace)}
	}
	of.answer, of.fresh = slices.Clone(addrs), now.Add(ttl)
	for len(of.reaches) > limit.PinAddrs {
		p.forgetLocked(p.oldestLocked(name, of), name)
	}
	return true
}

// oldestLocked returns the address of name that expires first and is not in its answer.
func (p *pins) oldestLocked(name policy.Host, of *pinned) (oldest netip.Addr) {
	var first time.Time
	for a := range of.reaches {
		if slices.Contains(of.answer, a) {
			continue
		}
		u := p.addrs[a][name].until
		if !oldest.IsValid() || u.Before(first) || u.Equal(first) && a.Less(oldest) {
			oldest, first = a, u
		}
	}
	return oldest
}

// forgetLocked removes the pair of addr and name.
func (p *pins) forgetLocked(addr netip.Addr, name policy.Host) {
	if _, ok := p.addrs[addr][name]; !ok {
		return
	}
	p.size--
	if delete(p.addrs[addr], name); len(p.addrs[addr]) == 0 {
		delete(p.addrs, addr)
	}
	of := p.names[name]
	if delete(of.reaches, addr); len(of.reaches) == 0 {
		delete(p.names, name)
	}
}

// answer returns the pinned answer for name, and its remaining TTL.
func (p *pins) answer(name policy.Host, now time.Time) ([]netip.Addr, time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.names[name]
	if of == nil || !now.Before(of.fresh) {
		return nil, 0, false
	}
	return slices.Clone(of.answer), of.fresh.Sub(now), true
}

// of returns the names that addr was resolved from and that have not expired, the most recently resolved first.
func (p *pins) of(addr netip.Addr, now time.Time) []policy.Host {
	p.mu.Lock()
	defer p.mu.Unlock()
	pairs := p.addrs[addr]
	names := make([]policy.Host, 0, len(pairs))
	for n, x := range pairs {
		if now.Before(x.until) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, func(a, b policy.Host) int {
		if c := pairs[b].told.Compare(pairs[a].told); c != 0 {
			return c
		}
		return strings.Compare(a.String(), b.String())
	})
	return names
}

// sweep removes expired pins.
func (p *pins) sweep(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked(now)
}

func (p *pins) sweepLocked(now time.Time) {
	for _, a := range slices.Collect(maps.Keys(p.addrs)) {
		p.sweepAddr(a, now)
	}
}

func (p *pins) sweepAddr(a netip.Addr, now time.Time) {
	for n, x := range p.addrs[a] {
		if !now.Before(x.until) {
			p.forgetLocked(a, n)
		}
	}
}
