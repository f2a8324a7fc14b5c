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

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/coppice-dev/coppice/internal/decoy"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/inspect"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Options are what New needs. FD is the only one without a default.
type Options struct {
	// FD is the packet socket of link.Open, or the gate's end of link.Pair: New finds out
	// which. New owns it, also when it fails.
	FD *os.File
	// MTU is the link's; 0 is link.DefaultMTU, or link.PairMTU.
	MTU int
	// Policy decides; nil denies everything. SetPolicy changes it.
	Policy Policy
	// Dial reaches an address outside, by "tcp" or "udp". It is given addresses that the
	// policy allowed and the gate resolved itself, never names. The default is a
	// net.Dialer of the process's network namespace that refuses the host's own addresses
	// unless the policy names them.
	Dial func(ctx context.Context, network string, addr netip.AddrPort) (net.Conn, error)
	// Lookup resolves a name that the policy allows, with the time for which the answer
	// may be used. An error that is a *net.DNSError with IsNotFound means that there is no
	// such name. The default is the host's resolver, and a minute.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, time.Duration, error)
	// Report gets every event, one after the other, from one goroutine. While it lags
	// behind by more than a thousand, everything is denied. It must not call Close, which
	// waits for it.
	Report func(Event)
	// Roots are the authorities that a server's certificate has to come from where its
	// requests are inspected; nil is those of the host.
	Roots *x509.CertPool
	// Tokens are those of decoys: what has one goes nowhere, whatever the policy says.
	Tokens []decoy.Token
	// Now tells the time; nil is time.Now.
	Now func() time.Time
	// Bounds; the zero value of each has a default.
	Bounds Bounds
}

// Bounds limit what one sandbox can take of its keeper's resources. The defaults are in
// package limit.
type Bounds struct {
	Conns   int           // TCP connections at a time
	Opening int           // of these, not yet established
	Inspect int           // of these, with inspected requests
	Flows   int           // flows of datagrams at a time
	PerSec  int           // connections and flows dialled in a second; further ones wait
	Idle    time.Duration // idle time after which a connection is closed
	UDPIdle time.Duration // the same for a flow of datagrams
	Dial    time.Duration // time to dial a host
	Hello   time.Duration // time for a ClientHello

	Ask       time.Duration // time to decide a question
	Questions int           // destinations asked about at a time; further ones are denied
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
	number(&b.Flows, limit.GateFlows)
	number(&b.PerSec, limit.GateDials)
	duration(&b.Idle, limit.GateIdleSeconds*time.Second)
	duration(&b.UDPIdle, limit.GateDatagramIdleSeconds*time.Second)
	duration(&b.Dial, limit.GateDialSeconds*time.Second)
	duration(&b.Hello, limit.GateHelloSeconds*time.Second)
	duration(&b.Ask, limit.GateAskSeconds*time.Second)
	number(&b.Questions, limit.GateQuestions)
	number(&b.Waiting, limit.GateWaiting)
	b.Waiting = min(b.Waiting, max(b.Opening/2, 1))
	return b
}

// Stats are counts since the gate was made, but for Conns and Flows.
type Stats struct {
	Conns, Flows int   // now
	In, Out      int64 // bytes of payload into the sandbox and out of it
	Frames       int64 // frames that were dropped in silence, as every network does
	EventsLost   int64 // events that found no room; what they were about did not happen, or was a denial or an end

	Asking []Question // what waits for a person now, the longest first
}

// Gate is the internet of one sandbox. Its methods may be called from any goroutine.
type Gate struct {
	fd       *os.File
	ethernet bool // of fd: frames come out of it, and not packets alone
	mtu      int
	bounds   Bounds
	roots    *x509.CertPool
	dial     func(context.Context, string, netip.AddrPort) (net.Conn, error)
	now      func() time.Time
	policy   atomic.Pointer[Policy]
	pins     *pins
	journal  *journal
	tokens   tokens
	desk     *desk
	names    *resolver
	stack    *stack.Stack
	link     *front
	counts   counts
	buffers  buffers
	spent    spending
	rates    rates
	ca       func() (*inspect.Authority, error) // made when it is asked for
	dials    *rate.Limiter

	eventfds []int // of link, to be closed when it has ended

	cancel  context.CancelCauseFunc
	flushed func() // waits for the journal

	mu        sync.Mutex
	closed    bool               // guarded by mu
	conns     int                // places taken; guarded by mu
	udp       int                // the same for datagrams; guarded by mu
	looked    int                // connections that are inspected; guarded by mu
	big       int                // connections with large buffers; guarded by mu
	flows     map[*flow]struct{} // guarded by mu
	lingering []*lingerer        // guarded by mu
	wg        sync.WaitGroup     // every goroutine; Add only under mu and before closed
	closing   sync.Once
}

// counts is what Stats tells.
type counts struct{ in, out, frames atomic.Int64 }

// New makes the gate of the sandbox whose packets come out of o.FD. When ctx ends,
// nothing new is let through; Close is needed in any case.
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

// newGate is New for who knows what comes out of o.FD.
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
		pins: newPins(), flows: map[*flow]struct{}{}}
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
	g.SetPolicy(o.Policy)
	g.names = newResolver(g.current, g.pins, g.journal, g.desk, o.Lookup, g.now)
	g.names.tokens = g.tokens
	ctx, g.cancel = context.WithCancelCause(ctx)
	if err := g.start(ctx); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// SetPolicy puts p in force. Connections that it does not allow, or not in the same
// way, are cut; what waits for a person and is decided by p waits no longer. nil denies
// everything.
func (g *Gate) SetPolicy(p Policy) {
	if p == nil {
		p = denyAll{}
	}
	g.policy.Store(&p)
	g.desk.reviewAll()
	g.mu.Lock()
	all := make([]*flow, 0, len(g.flows))
	for f := range g.flows {
		all = append(all, f)
	}
	g.mu.Unlock()
	for _, f := range all {
		if !g.still(f) {
			f.cut("the policy was changed")
		}
	}
}

func (g *Gate) current() Policy { return *g.policy.Load() }

// CA gives the certificate of the authority by which the gate ends TLS where requests
// are inspected, as PEM. Who is inside has to trust it.
func (g *Gate) CA() ([]byte, error) {
	a, err := g.ca()
	if err != nil {
		return nil, err
	}
	return a.PEM(), nil
}

// Settle waits until Options.Report has had every event of before the call, or ctx ends.
func (g *Gate) Settle(ctx context.Context) { g.journal.settle(ctx) }

// Stats gives the counts of now.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	s := Stats{Conns: g.conns, Flows: g.udp}
	g.mu.Unlock()
	s.In, s.Out, s.Frames = g.counts.in.Load(), g.counts.out.Load(), g.counts.frames.Load()
	s.EventsLost = g.journal.dropped()
	s.Asking = g.desk.questions()
	return s
}

// Close cuts every connection, reports what is left to report, and returns when no
// goroutine of the gate is left. It may be called more than once.
func (g *Gate) Close() (err error) {
	g.closing.Do(func() {
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		g.cancel(fault.New(fault.Cancelled, "the gate is closed"))
		g.stop()
		g.desk.close()
		g.journal.close()
		g.flushed()
		err = g.fd.Close()
	})
	return err
}

// begin takes a goroutine on, and reports whether it may go on; end lets it go.
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

// tick does what is due once a second.
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
		g.sweepFlows()
		g.sweepLingering(false)
	}
}

// drop tells of a packet that the front did not let through.
func (g *Gate) drop(proto Proto, dst netip.Addr, why string) {
	g.journal.deny(Event{Proto: proto, Addr: dst, Reason: why})
}

// echo reports whether addr answers echo requests: the gate itself, and what the policy
// allows. Nothing is sent outside for it.
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

// refuse tells of a ruling that does not allow.
func (g *Gate) refuse(proto Proto, to netip.AddrPort, r ruling) {
	g.journal.deny(Event{
		Proto: proto, Name: r.name.String(), Addr: to.Addr(), Port: to.Port(),
		Verdict: r.verdict, Rule: r.why.Rule, Reason: r.why.Reason, Hint: r.why.Hint,
		Fix: r.why.Fix,
	})
}
