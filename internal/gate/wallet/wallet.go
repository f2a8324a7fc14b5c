package wallet

import (
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/scrub"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// Source is where values come from; it is a *line.Client.
type Source interface {
	Get(ctx context.Context, grant, host, method, path string) (line.Value, error)
	Fresh(grant string, v line.Value) bool
}

// Grants are the grants of a sandbox. The zero Grants are none.
type Grants struct {
	Sandbox string // its name, for hints
	Issued  []grant.Issued
	Used    map[string]int64 // uses before, by grant
	// Approved are the hosts to which the owner has approved uses, by grant; only for grants with AskFirst.
	Approved map[string][]string
}

// Wallet is the grants that are in force. Its methods are safe for concurrent use.
type Wallet struct {
	now  func() time.Time
	live scrub.Live // the values of held

	mu      sync.Mutex
	set     grant.Set                // guarded by mu
	issued  map[string]grant.Issued  // of set, by name; guarded by mu
	hosts   map[string][]string      // as Grants.Approved; guarded by mu
	counts  map[string]*count        // by grant; guarded by mu
	source  Source                   // nil if the gate has no line to the broker; guarded by mu
	values  map[string]*value        // what new requests may carry, by grant; guarded by mu
	held    map[*value]struct{}      // these, and what may be in answers in progress; guarded by mu
	open    map[policy.Host]int      // requests in progress, by host, to those of grants; guarded by mu
	waiting map[string]chan struct{} // grants whose value was asked for; closed with the answer; guarded by mu
}

// keepFor is how long a value is used without asking for it again.
const keepFor = time.Minute

// tries is how often a value is asked for that changes as soon as it arrives.
const tries = 5

// New returns a Wallet without grants.
func New(now func() time.Time) *Wallet {
	return &Wallet{now: now, counts: map[string]*count{}, values: map[string]*value{}, held: map[*value]struct{}{},
		open: map[policy.Host]int{}, waiting: map[string]chan struct{}{}}
}

// Change replaces the grants; requests that the others decided carry no secret any more. The values of grants that are
// gone go out no more. They are still removed from answers until Forget, so that the caller can end connections in
// between.
func (w *Wallet) Change(g Grants) error {
	set, err := grant.NewSet(g.Sandbox, g.Issued)
	if err != nil {
		return err
	}
	issued, counts := map[string]grant.Issued{}, map[string]*count{}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range g.Issued {
		issued[one.Name] = one
		c := &count{used: g.Used[one.Name]}
		if old := w.counts[one.Name]; old != nil && reflect.DeepEqual(one, w.issued[one.Name]) {
			c = old
			c.used = max(c.used, g.Used[one.Name])
		}
		counts[one.Name] = c
	}
	before := w.issued
	w.set, w.issued, w.counts, w.hosts = set, issued, counts, g.Approved
	for name, one := range before {
		if !w.standsLocked(name, one) {
			w.dropLocked(name)
		}
	}
	return nil
}

// Connect replaces the source of values. nil means that there is none.
func (w *Wallet) Connect(s Source) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source = s
}

// Inspects reports whether a grant, even a revoked one, is for a port of a host, so that requests must be inspected.
func (w *Wallet) Inspects(h policy.Host, port uint16) bool {
	return w.any(func(g grant.Issued) bool { return slices.Contains(g.Ports, port) && names(g, h) })
}

// Names reports whether a grant, even a revoked one, is for a host.
func (w *Wallet) Names(h policy.Host) bool {
	return w.any(func(g grant.Issued) bool { return names(g, h) })
}

func names(g grant.Issued, h policy.Host) bool {
	return g.SSHUser() == "" && slices.ContainsFunc(g.Hosts, func(p policy.Pattern) bool { return p.Matches(h) })
}

func (w *Wallet) any(is func(grant.Issued) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, g := range w.issued {
		if is(g) {
			return true
		}
	}
	return false
}

// Carried are grants whose secrets a connection has carried.
type Carried map[string]grant.Issued

// Gone returns a grant of c that is revoked or changed; "" if there is none.
func (w *Wallet) Gone(c Carried) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if !w.standsLocked(name, c[name]) {
			return name
		}
	}
	return ""
}

func (w *Wallet) standsLocked(name string, was grant.Issued) bool {
	g, ok := w.issued[name]
	return ok && !g.Revoked && reflect.DeepEqual(g, was)
}

// Drop makes the value of a grant go out no more, because it was rotated or revoked. Answers to requests that carry it
// are still searched.
func (w *Wallet) Drop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropLocked(name)
}

func (w *Wallet) dropLocked(name string) {
	if v := w.values[name]; v != nil {
		v.gone = true
		delete(w.values, name)
		w.sweepLocked(nil)
	}
}

// Forget overwrites the values of grants that are gone, even if a request carries one. The caller has ended its
// connection.
func (w *Wallet) Forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweepLocked(func(v *value) bool {
		g, ok := w.issued[v.grant]
		return v.gone && (!ok || g.Revoked || g.Placeholder != v.placeholder)
	})
}

// Sweep overwrites values that are too old. The caller calls it every second.
func (w *Wallet) Sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweepLocked(nil)
}

// Close overwrites all values. Connections have ended.
func (w *Wallet) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.source, w.values = nil, map[string]*value{}
	w.sweepLocked(func(*value) bool { return true })
}

// Live returns the values to remove from answers.
func (w *Wallet) Live() *scrub.Live { return &w.live }

// Carry is the secrets of one request: those that it carries, and those that its answer may have although it carries
// none, since the host has received them before. The caller must call Done.
type Carry struct {
	w      *Wallet
	puts   []grant.Put
	uses   Carried // the grants of puts
	Grants Carried // these, and those of the answer
	values map[string]*value
	host   policy.Host // counted in Wallet.open, unless it is zero
}

// Decide decides which secrets a request carries, and counts that as a use. A nil Carry is none, to a host of no grant.
// The caller must ask Gone after it has made sure that a later Change finds its connection. approved are grants that
// the owner has approved for this request; if another one requires approval, Decide returns it, and counts nothing.
func (w *Wallet) Decide(u grant.Use, approved Carried) (*Carry, *Pending, *grant.Refusal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.HTTP.Method == http.MethodTrace {
		for _, g := range w.issued {
			if names(g, u.Host) {
				return nil, nil, &grant.Refusal{Grant: g.Name, Reason: "method TRACE returns what was sent",
					Hint: "use another method"}
			}
		}
	}
	now := w.now()
	r := w.set.Decide(u, w.spentLocked(now), now)
	if r.Deny != nil {
		return nil, nil, r.Deny
	}
	for _, p := range r.Put {
		was, is := approved[p.Grant]
		is = is && w.standsLocked(p.Grant, was)
		if g := w.issued[p.Grant]; !is && w.asksLocked(g, u.Host) {
			return nil, &Pending{Grant: g, Each: g.Ask == grant.AskEach}, nil
		}
	}
	c := &Carry{w: w, puts: r.Put, uses: Carried{}, Grants: w.sentLocked(u.Host, now), values: map[string]*value{}}
	for _, p := range r.Put {
		if _, again := c.uses[p.Grant]; !again {
			g := w.issued[p.Grant]
			c.uses[p.Grant], c.Grants[p.Grant] = g, g
			w.counts[p.Grant].add(now, g.Rate)
		}
	}
	for _, g := range w.issued {
		if names(g, u.Host) {
			w.open[u.Host]++
			c.host = u.Host
			return c, nil, nil
		}
	}
	return nil, nil, nil
}

// sentLocked returns the grants in force whose secrets a host may have received before, also from the sandbox's parent.
func (w *Wallet) sentLocked(h policy.Host, now time.Time) Carried {
	all := Carried{}
	for name, g := range w.issued {
		over := g.Revoked || !g.Until.IsZero() && !now.Before(g.Until)
		sent := g.SSHUser() == "" // a key of SSH stays with the broker
		if sent && !over && names(g, h) && (w.counts[name].used > 0 || len(g.Aliases) > 0) {
			all[name] = g
		}
	}
	return all
}

// Uses returns the names of the grants whose secrets the request carries, in order.
func (c *Carry) Uses() []string { return slices.Sorted(maps.Keys(c.uses)) }

// spentLocked returns the uses of all grants.
func (w *Wallet) spentLocked(now time.Time) grant.Spent {
	spent := grant.Spent{}
	for name, c := range w.counts {
		spent[name] = grant.Count{Used: c.used, Recent: c.recent(now, w.issued[name].Rate)}
	}
	return spent
}

// Cancel takes back the uses, since the request did not leave.
func (c *Carry) Cancel() {
	c.w.mu.Lock()
	for name, g := range c.uses {
		if n := c.w.counts[name]; n != nil && c.w.standsLocked(name, g) {
			n.used--
		}
	}
	c.w.mu.Unlock()
	c.Done()
}

// Fetch gets the values, from the broker if necessary. Its errors have a hint, and are Denied if the broker refuses.
func (c *Carry) Fetch(ctx context.Context, host policy.Host, method, path string) error {
	for _, name := range slices.Sorted(maps.Keys(c.Grants)) {
		v, err := c.w.fetch(ctx, name, c.Grants[name], host, method, path)
		if err != nil {
			return err
		}
		c.values[name] = v
	}
	return nil
}

// Done tells that the answer has ended.
func (c *Carry) Done() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for _, v := range c.values {
		v.uses--
	}
	c.values = nil
	if !c.host.IsZero() {
		if c.w.open[c.host]--; c.w.open[c.host] == 0 {
			delete(c.w.open, c.host)
		}
		c.host = policy.Host{}
	}
	c.w.sweepLocked(nil)
}

// fetch returns the value of a grant, for the use of one request.
func (w *Wallet) fetch(ctx context.Context, name string, g grant.Issued, host policy.Host, method, path string) (
	*value, error) {
	for range tries {
		w.mu.Lock()
		switch v, asked := w.values[name], w.waiting[name]; {
		case !w.standsLocked(name, g):
			w.mu.Unlock()
			return nil, fault.New(fault.Denied, "grant %s was revoked", name)
		case v != nil && w.now().Before(v.until):
			v.uses++
			w.mu.Unlock()
			return v, nil
		case w.source == nil:
			w.mu.Unlock()
			return nil, noBroker()
		case asked != nil:
			w.mu.Unlock()
			select {
			case <-asked:
			case <-ctx.Done():
				return nil, fault.New(fault.Unavailable, "the broker of secrets does not answer").Because(ctx.Err()).
					WithHint("find out why: coppice secret test %s", g.Secret)
			}
		default:
			source, done := w.source, make(chan struct{})
			w.waiting[name] = done
			w.mu.Unlock()
			got, err := source.Get(ctx, name, host.String(), method, path)
			w.mu.Lock()
			delete(w.waiting, name)
			close(done)
			if err == nil && w.standsLocked(name, g) && source.Fresh(name, got) {
				w.keepLocked(name, g, got)
			}
			got.Close()
			w.mu.Unlock()
			if err != nil {
				return nil, err
			}
		}
	}
	return nil, fault.New(fault.Unavailable, "the secret of grant %s changes all the time", name).WithHint("try again")
}

// noBroker is the error of a request that needs a value when the gate has no line to the broker.
func noBroker() error {
	return fault.New(fault.Unavailable, "the broker of secrets does not run").
		WithHint("start it outside of the sandbox: coppice secret ls")
}
