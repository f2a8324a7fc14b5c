package broker

import (
	"crypto/subtle"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// Bounds on gets of a grant. Gates keep values, so more are a sign of a bug, or of a gate that was taken over.
const (
	getsPerSecond = 10
	getsAtOnce    = 20
	// A command over SSH takes two questions, and nothing is kept between two.
	signsPerSecond = 20
	signsAtOnce    = 100
)

// Bounds on registrations.
const (
	ticketLength = 32
	maxGrants    = 256 // of a sandbox
	maxHosts     = 64  // of a grant
)

// registry is who may get what. A value is sent while mu is held, and only for a grant that is still registered then:
// what is removed from the registry is dropped by the gates after any value that was sent before.
type registry struct {
	mu    sync.Mutex
	boxes map[string]*box // by sandbox
}

// box is the registration of a sandbox.
type box struct {
	sandbox string
	ticket  []byte
	grants  map[string]*granted
	lines   map[*line.Server]bool
}

// granted is a registered grant. It does not change, except for its leases; another one replaces it.
type granted struct {
	client.Granted
	hosts []policy.Pattern
	rate  *rate.Limiter
	held  held
}

// parse returns the grants of a registration, or Invalid.
func parse(r client.Registration) (map[string]*granted, error) {
	no := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "register grants: "+format, args...)
	}
	switch {
	case r.Sandbox == "":
		return nil, no("no sandbox")
	case len(r.Ticket) != ticketLength:
		return nil, no("a ticket of %d bytes, not %d", len(r.Ticket), ticketLength)
	case len(r.Grants) > maxGrants:
		return nil, no("more than %d grants", maxGrants)
	}
	all := map[string]*granted{}
	for _, g := range r.Grants {
		if g.Name == "" || g.Secret == "" || len(g.Hosts) == 0 || len(g.Hosts) > maxHosts || all[g.Name] != nil {
			return nil, no("invalid grant %.64q", g.Name)
		}
		one := &granted{Granted: g, rate: rate.NewLimiter(getsPerSecond, getsAtOnce)}
		if g.User != "" {
			one.rate = rate.NewLimiter(signsPerSecond, signsAtOnce)
		}
		for _, h := range g.Hosts {
			p, err := policy.ParsePattern(h)
			if err != nil {
				return nil, fault.Wrap(err, "register grant %s", g.Name)
			}
			one.hosts = append(one.hosts, p)
		}
		all[g.Name] = one
	}
	return all, nil
}

// same reports whether both grants allow the same.
func (g *granted) same(o *granted) bool {
	return o != nil && g.Secret == o.Secret && g.User == o.User && slices.Equal(g.Hosts, o.Hosts) && g.Until.Equal(o.Until)
}

// fresh returns a grant that allows the same as g.
func (g *granted) fresh() *granted { return &granted{Granted: g.Granted, hosts: g.hosts, rate: g.rate} }

// register replaces the registration of a sandbox. It returns the grants that are gone, whose leases the caller ends.
func (r *registry) register(reg client.Registration) (gone []*granted, err error) {
	grants, err := parse(reg)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.of(reg.Ticket); b != nil && b.sandbox != reg.Sandbox {
		return nil, fault.New(fault.Conflict, "register grants: the ticket is that of another sandbox")
	}
	old := r.boxes[reg.Sandbox]
	if old == nil || subtle.ConstantTimeCompare(old.ticket, reg.Ticket) != 1 {
		r.boxes[reg.Sandbox] = &box{sandbox: reg.Sandbox, ticket: reg.Ticket, grants: grants,
			lines: map[*line.Server]bool{}}
		if old == nil {
			return nil, nil
		}
		old.hangUp()
		return slices.Collect(maps.Values(old.grants)), nil
	}
	was := old.grants
	old.grants = grants
	for name, g := range was {
		if g.same(grants[name]) {
			grants[name] = g
			continue
		}
		gone = append(gone, g)
		old.drop(name)
	}
	return gone, nil
}

// withdraw removes the registration of a sandbox, closes its lines, and returns its grants.
func (r *registry) withdraw(sandbox string) []*granted {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.boxes[sandbox]
	if b == nil {
		return nil
	}
	delete(r.boxes, sandbox)
	b.hangUp()
	return slices.Collect(maps.Values(b.grants))
}

// rotate makes the gates that have a value of the secret forget it, and returns the grants that were replaced for it.
func (r *registry) rotate(secret string) (gone []*granted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.boxes {
		for name, g := range b.grants {
			if g.Secret == secret {
				gone = append(gone, g)
				b.grants[name] = g.fresh()
				b.drop(name)
			}
		}
	}
	return gone
}

// users returns the sandboxes that have a grant of the secret, sorted, and the number of grants.
func (r *registry) users(secret string) (sandboxes []string, grants int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.boxes {
		n := 0
		for _, g := range b.grants {
			if g.Secret == secret {
				n++
			}
		}
		if n > 0 {
			sandboxes, grants = append(sandboxes, b.sandbox), grants+n
		}
	}
	slices.Sort(sandboxes)
	return sandboxes, grants
}

// sandboxes returns all registered sandboxes.
func (r *registry) sandboxes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.boxes))
}

// of returns the box with a ticket, or nil. The caller holds mu.
func (r *registry) of(ticket []byte) (found *box) {
	for _, b := range r.boxes { // all of them, so that the time tells nothing
		if subtle.ConstantTimeCompare(b.ticket, ticket) == 1 {
			found = b
		}
	}
	return found
}

// join accepts a line under a ticket. It is closed when the registration ends.
func (r *registry) join(ticket []byte, l *line.Server) (*box, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.of(ticket)
	if b == nil {
		return nil, fault.New(fault.Denied, "the broker of secrets does not know the ticket of this sandbox").
			WithHint("restart the sandbox, which registers it again")
	}
	if err := l.Begin(); err != nil {
		return nil, err
	}
	b.lines[l] = true
	return b, nil
}

// leave forgets a line.
func (r *registry) leave(b *box, l *line.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(b.lines, l)
}

// permit decides about a question of a line, and returns the grant that it may have the value of.
func (r *registry) permit(b *box, l *line.Server, a line.Ask, now time.Time) (*granted, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := b.grants[a.Grant]
	if !b.lines[l] || g == nil {
		return nil, fault.New(fault.Denied, "the sandbox has no grant %s", a.Grant).
			WithHint("give it: coppice grant %s %s", b.sandbox, a.Grant)
	}
	return g, g.permits(a.Host, now)
}

// permits decides whether a gate may have the value for a request to host.
func (g *granted) permits(host string, now time.Time) error {
	h, err := policy.ParseHost(host)
	matches := func(p policy.Pattern) bool { return p.Matches(h) }
	switch {
	case err != nil || !slices.ContainsFunc(g.hosts, matches):
		return fault.New(fault.Denied, "grant %s is not for host %.80q", g.Name, host).
			WithHint("name the host when you give it: --host")
	case g.over(now):
		return fault.New(fault.Denied, "grant %s has expired", g.Name).WithHint("give it again: coppice grant")
	case !g.rate.AllowN(now, 1):
		return fault.New(fault.Unavailable, "too many requests for the value of grant %s", g.Name).
			WithHint("try again in a second; the gate keeps values, so this is a bug: report it")
	}
	return nil
}

// over reports whether the grant has expired.
func (g *granted) over(now time.Time) bool { return !g.Until.IsZero() && !now.Before(g.Until) }

// current reports whether a line may still have the value of g. The caller holds mu.
func (b *box) current(l *line.Server, g *granted) bool { return b.lines[l] && b.grants[g.Name] == g }

// drop makes all lines forget a value. The caller holds mu of the registry.
func (b *box) drop(grant string) {
	for l := range b.lines {
		l.Drop(grant)
	}
}

// hangUp closes all lines. The caller holds mu of the registry.
func (b *box) hangUp() {
	for l := range b.lines {
		l.Close()
	}
	clear(b.lines)
}
