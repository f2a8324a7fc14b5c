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

// Bounds of pins. They are per sandbox, which makes them grow as it likes.
const (
	minTTL = 5 * time.Second
	maxTTL = time.Hour
	// pinGrace is how much longer than it told the sandbox the gate remembers an answer:
	// programs keep addresses, and the address did belong to the name.
	pinGrace = 10 * time.Minute
)

// pins is what a sandbox was told: which addresses a name has, and which names an
// address was resolved from. An address is reached by its names alone. It is safe for
// use by several goroutines.
type pins struct {
	mu    sync.Mutex
	names map[policy.Host]*pinned             // guarded by mu
	addrs map[netip.Addr]map[policy.Host]pair // guarded by mu; the same pairs, the other way round
	size  int                                 // pairs; guarded by mu
}

// pinned is what one name has.
type pinned struct {
	answer  []netip.Addr // the last answer, to be told again
	fresh   time.Time    // until when it may be
	reaches map[netip.Addr]struct{}
}

// pair is a name that leads to an address.
type pair struct {
	told  time.Time // when the sandbox was told last
	until time.Time
}

func newPins() *pins {
	return &pins{names: map[policy.Host]*pinned{}, addrs: map[netip.Addr]map[policy.Host]pair{}}
}

// boundTTL makes a TTL fit for an answer.
func boundTTL(ttl time.Duration) time.Duration { return min(max(ttl, minTTL), maxTTL) }

// put pins name to addrs, of which there is one at least, and reports whether there was
// room; if not, nothing is pinned. addrs is the whole answer; what the name led to before it still does until
// it expires, since programs remember.
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

// oldestLocked is the address of name that expires first and is not in its answer.
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

// forgetLocked takes the pair of addr and name away.
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

// answer is what name may be told again, and for how long.
func (p *pins) answer(name policy.Host, now time.Time) ([]netip.Addr, time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.names[name]
	if of == nil || !now.Before(of.fresh) {
		return nil, 0, false
	}
	return slices.Clone(of.answer), of.fresh.Sub(now), true
}

// of gives the names that addr was resolved from and that have not expired, the one
// that the sandbox asked for last first.
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

// sweep forgets what has expired.
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
