//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/coppice-dev/coppice/internal/decoy"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/inspect"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Options configures New. Only FD is required.
type Options struct {
	// FD is the packet socket of link.Open, or the gate's end of link.Pair; New detects which. New takes ownership of
	// it, even if it fails.
	FD *os.File
	// MTU is that of the link, in bytes; 0 is link.DefaultMTU, or link.PairMTU.
	MTU int
	// Policy decides about destinations; nil denies everything. SetPolicy changes it.
	Policy Policy
	// Dial connects to an address outside, by "tcp" or "udp". It is only called with addresses that the policy
	// allowed and the gate resolved itself. The default is a net.Dialer in the process's network namespace that
	// refuses the host's own addresses unless the policy names them.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Lookup resolves a name that the policy allows, and returns the TTL of the answer. A *net.DNSError with
	// IsNotFound means that the name does not exist. The default uses the host's resolver and a TTL of a minute.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, time.Duration, error)
	// Report is called with every event, in order, from one goroutine. While it is more than a thousand events
	// behind, everything is denied. It must not call Close, which waits for it.
	Report func(Event)
	// Roots are the certificate authorities for servers whose requests are inspected; nil uses those of the host.
	Roots *x509.CertPool
	// Tokens are those of decoys: traffic that contains one is denied under any policy.
	Tokens []decoy.Token
	// Wallet has the grants, which SetSecrets changes; nil is one without grants.
	Wallet *wallet.Wallet
	// Now returns the current time; nil uses time.Now.
	Now func() time.Time
	// Bounds limits the gate's resources; a zero field has a default.
	Bounds Bounds
}

// Bounds limits what one sandbox can use of its gate's resources. The defaults are in package limit.
type Bounds struct {
	Conns   int           // concurrent TCP connections
	Opening int           // of these, in the handshake
	Inspect int           // of these, with inspected requests
	Logins  int           // of these, over SSH that the gate ends
	Flows   int           // concurrent UDP flows
	PerSec  int           // connections and flows dialled per second; further ones wait
	Idle    time.Duration // idle time after which a connection is closed
	UDPIdle time.Duration // the same for a UDP flow
	Dial    time.Duration // time to dial a host
	Hello   time.Duration // time for a ClientHello
	Bodies  int           // bytes of request bodies that are held for their secrets; further ones are refused

	Ask       time.Duration // time to decide about a pending request
	Questions int           // concurrent pending destinations; further ones are denied
	Waiting   int           // queries and connections that wait for a decision; further ones are denied; less than Opening
}

func (b Bounds) withDefaults() Bounds {
	number := func(n *int, or int) {
		if *n <= 0 {
			*n = or
		}
	}
	duration := func(d *time.Duration, or time.Duration) {
		if *d <= 0 {
			*d = or
		}
	}
	number(&b.Conns, limit.GateConns)
	number(&b.Opening, limit.GateOpening)
	number(&b.Inspect, limit.GateInspected)
	number(&b.Logins, limit.GateLogins)
	number(&b.Flows, limit.GateFlows)
	number(&b.PerSec, limit.GateDials)
	duration(&b.Idle, limit.GateIdleSeconds*time.Second)
	duration(&b.UDPIdle, limit.GateDatagramIdleSeconds*time.Second)
	duration(&b.Dial, limit.GateDialSeconds*time.Second)
	duration(&b.Hello, limit.GateHelloSeconds*time.Second)
	duration(&b.Ask, limit.GateAskSeconds*time.Second)
	number(&b.Bodies, limit.HeldBodies)
	number(&b.Questions, limit.GateQuestions)
	number(&b.Waiting, limit.GateWaiting)
	b.Waiting = min(b.Waiting, max(b.Opening/2, 1))
	return b
}

// Stats are counters since the gate was created, and the current Conns, Flows and Asking.
type Stats struct {
	Conns, Flows int   // current
	In, Out      int64 // payload bytes into the sandbox and out of it
	Frames       int64 // frames dropped without an event, as on every network
	// EventsLost counts events lost because the queue was full. What they reported did not happen, or was a denial or
	// an end.
	EventsLost int64

	Asking []Question // pending requests, oldest first
}

// Gate is the network of one sandbox. Its methods are safe for concurrent use.
type Gate struct {
	fd       *os.File
	ethernet bool // frames come out of fd, not packets
	mtu      int
	bounds   Bounds
	roots    *x509.CertPool
	dial     func(context.Context, string, netip.AddrPort) (net.Conn, error)
	now      func() time.Time
	policy   atomic.Pointer[Policy]
	pins     *pins
	journal  *journal
	tokens   tokens
	wallet   *wallet.Wallet
	bodies   *semaphore.Weighted // bytes of request bodies that are held for their secrets
	logins   logins
	desk     *desk
	names    *resolver
	stack    *stack.Stack
	link     *front
	child    stack.LinkEndpoint // below link
	counts   counts
	buffers  buffers
	spent    spending
	rates    rates
	ca       func() (*inspect.Authority, error) // created on first use
	dials    *rate.Limiter

	eventfds []int            // created by the link; closed after it
	unread   chan struct{}    // closed when the link is read no more
	dns      []tcpip.Endpoint // of the servers of DNS

	cancel  context.CancelCauseFunc
	flushed func() // waits for the journal

	mu        sync.Mutex
	closed    bool               // guarded by mu
	conns     int                // reserved connections; guarded by mu
	udp       int                // reserved UDP flows; guarded by mu
	looked    int                // inspected connections; guarded by mu
	big       int                // connections with large buffers; guarded by mu
	flows     map[*flow]struct{} // guarded by mu
	lingering []*lingerer        // guarded by mu
	wg        sync.WaitGroup     // every goroutine; Add only under mu and before closed
	closing   sync.Once
	drops     drops
}

// counts are the counters of Stats.
type counts struct{ in, out, frames atomic.Int64 }

// New starts the gate of the sandbox whose packets come from o.FD. When ctx ends, new connections are denied; the
// caller must call Close in any case.
func New(ctx context.Context, o Options) (*Gate, error) {
	if o.FD == nil {
		return nil, fault.New(fault.Invalid, "a gate requires the socket of its link")
	}
	pair, err := link.IsPair(o.FD)
	if err != nil {
		return nil, fault.Wrap(errors.Join(err, o.FD.Close()), "read packets from the sandbox")
	}
	return newGate(ctx, o, !pair)
}

// newGate is New with the kind of o.FD known.
func newGate(ctx context.Context, o Options, ethernet bool) (*Gate, error) {
	switch {
	case o.MTU == 0 && ethernet:
		o.MTU = link.DefaultMTU
	case o.MTU == 0:
		o.MTU = link.PairMTU
	}
	if o.MTU < link.MinMTU || o.MTU > link.MaxMTU {
		o.FD.Close()
		return nil, fault.New(fault.Invalid, "invalid MTU %d", o.MTU).
			WithHint("must be %d to %d", link.MinMTU, link.MaxMTU)
	}
	g := &Gate{fd: o.FD, ethernet: ethernet, mtu: o.MTU, bounds: o.Bounds.withDefaults(), dial: o.Dial, now: o.Now,
		pins: newPins(), flows: map[*flow]struct{}{}, unread: make(chan struct{})}
	g.dials = rate.NewLimiter(rate.Limit(g.bounds.PerSec), 2*g.bounds.PerSec)
	if g.now == nil {
		g.now = time.Now
	}
	if g.dial == nil {
		g.dial = g.hostDial
	}
	if o.Lookup == nil {
		o.Lookup = systemLookup
	}
	if o.Report == nil {
		o.Report = func(Event) {}
	}
	g.roots = o.Roots
	g.ca = sync.OnceValues(func() (*inspect.Authority, error) { return inspect.NewAuthority(g.now()) })
	g.journal, g.flushed = newJournal(g.now, o.Report)
	g.desk = newDesk(g.journal, g.now, g.bounds)
	g.tokens = newTokens(o.Tokens)
	if g.wallet = o.Wallet; g.wallet == nil {
		g.wallet = wallet.New(g.now)
	}
	g.bodies = semaphore.NewWeighted(int64(g.bounds.Bodies))
	g.logins.most = g.bounds.Logins
	g.SetPolicy(o.Policy)
	g.names = newResolver(g.current, g.pins, g.journal, g.desk, o.Lookup, g.now)
	g.names.tokens = g.tokens
	ctx, g.cancel = context.WithCancelCause(ctx)
	if err := g.start(ctx); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// SetPolicy puts p in force. Connections that p does not allow, or not in the same way, are cut; pending requests
// that p decides are settled. nil denies everything.
func (g *Gate) SetPolicy(p Policy) {
	if p == nil {
		p = denyAll{}
	}
	p = granted{p, g.wallet}
	g.policy.Store(&p)
	g.desk.reviewAll()
	g.cutIf(func(f *flow) string {
		if !g.stillAllowed(f) {
			return "the policy was changed"
		}
		return ""
	})
}

func (g *Gate) current() Policy { return *g.policy.Load() }

// CA returns the certificate, as PEM, of the authority that the gate uses to inspect TLS. The sandbox must trust it.
func (g *Gate) CA() ([]byte, error) {
	a, err := g.ca()
	if err != nil {
		return nil, err
	}
	return a.PEM(), nil
}

// Settle waits until Options.Report has been called for all events before this call, or until ctx ends.
func (g *Gate) Settle(ctx context.Context) { g.journal.settle(ctx) }

// Stats returns the current counters.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	s := Stats{Conns: g.conns, Flows: g.udp}
	g.mu.Unlock()
	s.In, s.Out, s.Frames = g.counts.in.Load(), g.counts.out.Load(), g.counts.frames.Load()
	s.EventsLost = g.journal.dropped()
	s.Asking = g.desk.questions()
	return s
}

// Close decides about the packets that the sandbox has sent so far, as far as that takes no longer than a second, so
// that denials are reported. Then it cuts all connections, reports the remaining events, and returns when all
// goroutines of the gate have ended. It may be called more than once.
func (g *Gate) Close() (err error) {
	g.closing.Do(func() {
		g.readLast()
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		g.cancel(fault.New(fault.Cancelled, "the gate is closed"))
		g.stop()
		g.wallet.Close()
		g.desk.close()
		g.journal.close()
		g.flushed()
		err = g.fd.Close()
	})
	return err
}

// begin registers a goroutine, or returns false if the gate is closed; end unregisters it.
func (g *Gate) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Add(1)
	return true
}

func (g *Gate) end() { g.wg.Done() }

// tick runs periodic work once a second.
func (g *Gate) tick(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := g.now()
		g.pins.sweep(now)
		g.journal.sweep(now)
		g.desk.sweep(now)
		g.reportDropped(0)
		g.endLogins()
		g.logins.sweep()
		g.sweepFlows()
		g.sweepLingering(false)
		g.wallet.Sweep()
	}
}

// drop reports a packet that the front refused.
func (g *Gate) drop(proto Proto, dst netip.Addr, why string) {
	g.journal.deny(Event{Proto: proto, Addr: dst, Reason: why})
}

// echo reports whether addr answers echo requests: the gate itself, and addresses that the policy allows. Nothing is
// sent outside.
func (g *Gate) echo(addr netip.Addr) bool {
	if addr == link.Gate4() || addr == link.Gate6() {
		return true
	}
	r := rule(g.current(), g.pins, ICMP, addr, 0, g.now())
	if r.verdict != Allow {
		g.refuse(ICMP, netip.AddrPortFrom(addr, 0), r)
	}
	return r.verdict == Allow
}

// refuse reports a ruling that denies.
func (g *Gate) refuse(proto Proto, to netip.AddrPort, r ruling) {
	g.journal.deny(Event{
		Proto: proto, Name: r.name.String(), Addr: to.Addr(), Port: to.Port(),
		Verdict: r.verdict, Rule: r.why.Rule, Reason: r.why.Reason, Hint: r.why.Hint,
		Fix: r.why.Fix,
	})
}
