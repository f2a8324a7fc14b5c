//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/limit"
)

// flow is a TCP connection or UDP flow of the sandbox, with its connection to the host outside.
type flow struct {
	proto Proto
	to    netip.AddrPort
	out   net.Conn
	ep    tcpip.Endpoint

	mustHail bool // must start with a ClientHello
	inspect  bool // must be TLS for a name that need not be inspected, or HTTP
	ssh      bool // the gate ends SSH: see Gate.ssh
	large    bool // has large buffers

	mu      sync.Mutex
	live    map[*exchange]struct{} // requests in progress; guarded by mu
	carried wallet.Carried         // grants whose secrets it has carried; guarded by mu

	spent   atomic.Pointer[budgets] // byte budgets of the rules that allow it
	by      atomic.Pointer[named]   // the name that allows it; changes with the ClientHello
	hello   atomic.Pointer[hello]   // nil before it arrives, and if the flow is not TLS
	in, sum atomic.Int64            // bytes into the sandbox; bytes in both directions
	moved   atomic.Int64            // time of the last byte, by Options.Now, in nanoseconds

	once  sync.Once
	cause atomic.Pointer[string] // why it was cut; nil if it was not
}

// charge makes further bytes of the flow count against b.
func (f *flow) charge(b *budgets) { f.spent.Store(b) }

// cut resets both sides of the flow at once; the first cause is recorded.
func (f *flow) cut(cause string) {
	f.once.Do(func() {
		f.cause.Store(&cause)
		f.ep.Abort() // first, or the goroutine that forwards the other side's end would close this one gracefully
		if t, ok := f.out.(*net.TCPConn); ok {
			t.SetLinger(0) //nolint:errcheck // a reset is a courtesy; the connection is closed in any case
		}
		f.out.Close()
	})
}

// room reserves a connection. If it cannot, it returns the reason.
func (g *Gate) room() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns >= g.bounds.Conns {
		return "the sandbox has too many connections"
	}
	g.conns++
	return ""
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns--
}

// add registers f so that it can be cut; remove unregisters it.
func (g *Gate) add(f *flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flows[f] = struct{}{}
}

func (g *Gate) remove(f *flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flows, f)
}

// stillAllowed reports whether the policy still allows f, and updates the name that allows it. That name stays valid
// for the life of f, even after its pin has expired.
func (g *Gate) stillAllowed(f *flow) bool {
	by, ok := f.by.Load(), true
	r := rule(g.current(), g.pins, f.proto, f.to.Addr(), f.to.Port(), g.now(), by.name)
	if !r.passes() || f.ssh != g.endsSSH(f.proto, f.to.Port(), r) {
		return false
	}
	n := named{Decision: r.byAddr}
	switch h := f.hello.Load(); {
	case h != nil:
		n, ok = r.hailed(h.name)
		ok = ok && (n.Verdict == Allow && sameLimits(n, by) || by.Verdict == Inspect)
	case f.mustHail: // decided again when the ClientHello arrives
	case f.inspect:
		ok = !r.mustHail
	case !by.name.IsZero():
		n, ok = r.hailed(by.name)
		ok = ok && !r.mustHail && r.verdict == Allow && sameLimits(n, by)
	default:
		ok = r.byAddr.Verdict == Allow && !r.mustHail && r.verdict == Allow && sameLimits(n, by)
	}
	return ok && g.stillAll(f)
}

// sameLimits reports whether two decisions have the same limits.
func sameLimits(n named, by *named) bool { return slices.Equal(n.Limits, by.Limits) }

// recheck cuts f, which was just added, if the gate was closed or the policy changed since the decision. A later
// change finds f among the flows.
func (g *Gate) recheck(ctx context.Context, f *flow) {
	switch {
	case ctx.Err() != nil:
		f.cut("the gate was closed")
	case !g.stillAllowed(f):
		f.cut("the policy was changed")
	}
}

// cutAll cuts all flows, when the gate closes.
func (g *Gate) cutAll() { g.cutIf(func(*flow) string { return "the gate was closed" }) }

// sweepFlows cuts flows that have been idle too long.
func (g *Gate) sweepFlows() {
	now := g.now().UnixNano()
	g.cutIf(func(f *flow) string {
		idle := g.bounds.Idle
		if f.proto == UDP {
			idle = g.bounds.UDPIdle
		}
		if now-f.moved.Load() < int64(idle) {
			return ""
		}
		return "idle for " + idle.String()
	})
}

func (g *Gate) cutIf(why func(*flow) string) {
	g.mu.Lock()
	all := make([]*flow, 0, len(g.flows))
	for f := range g.flows {
		all = append(all, f)
	}
	g.mu.Unlock()
	for _, f := range all {
		if cause := why(f); cause != "" {
			f.cut(cause)
		}
	}
}

// refusesTCP reports whether a packet is a SYN that the policy denies, and reports the denial: on the goroutine that
// reads packets, so that Close need not wait for it. The stack then answers with a reset. serveTCP decides about
// everything else, also about what a person is asked for.
func (g *Gate) refusesTCP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return false
	}
	to := netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
	rl := g.ruleTCP(to)
	if rl.passes() || rl.verdict == Ask {
		return false
	}
	g.refuse(TCP, to, rl)
	return true
}

// ruleTCP decides about a connection.
func (g *Gate) ruleTCP(to netip.AddrPort) ruling {
	switch own := isOwn(to.Addr()); {
	case own && to.Port() == dnsPort:
		return ruling{verdict: Allow}
	case own:
		return ruling{why: Decision{Reason: "the gate's own address serves DNS only"}}
	}
	return rule(g.current(), g.pins, TCP, to.Addr(), to.Port(), g.now())
}

// isOwn reports whether an address is the gate's.
func isOwn(a netip.Addr) bool { return a == link.Gate4() || a == link.Gate6() }

// serveTCP decides about one connection and forwards it. The stack calls it on its own goroutine for a SYN, and
// answers the SYN only at Complete.
func (g *Gate) serveTCP(ctx context.Context, r *tcp.ForwarderRequest) {
	if !g.begin() {
		r.Complete(false)
		return
	}
	defer g.end()
	id := r.ID()
	to := netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
	rl := g.ruleTCP(to)
	if rl.verdict == Ask {
		// The stack has not answered, so that the handshake waits.
		name := rl.name
		decide := func() ruling { return rule(g.current(), g.pins, TCP, to.Addr(), to.Port(), g.now(), name) }
		d := g.desk.hold(ctx, rl.asks(TCP, to.Addr(), to.Port()), rl.why, decided(decide))
		rl = decide().settled(d)
	}
	if !rl.passes() {
		g.refuse(TCP, to, rl)
		r.Complete(true)
		return
	}
	if full := g.room(); full != "" {
		g.journal.deny(
			Event{Proto: TCP, Name: rl.name.String(), Addr: to.Addr(), Port: to.Port(), Rule: rl.why.Rule, Reason: full})
		r.Complete(true)
		return
	}
	defer g.leave()
	if isOwn(to.Addr()) {
		g.acceptDNS(ctx, r)
		return
	}
	out := g.reach(ctx, TCP, to, &rl)
	if out == nil {
		r.Complete(true)
		return
	}
	defer out.Close()
	in, ep, ok := g.accept(ctx, r)
	if !ok {
		g.journal.emit(Event{
			Kind: KindEnd, Proto: TCP, Name: rl.name.String(), Addr: to.Addr(), Port: to.Port(),
			Verdict: Allow, Rule: rl.why.Rule, Reason: "the sandbox did not complete the connection",
		})
		return
	}
	f := &flow{proto: TCP, to: to, out: out, ep: ep, mustHail: rl.mustHail, inspect: rl.verdict == Inspect && !rl.mustHail,
		ssh: g.endsSSH(TCP, to.Port(), rl)}
	g.carry(ctx, f, in, rl)
}

// reach records a dial, then dials to. It returns nil if the dial was refused or failed. Because it may wait, it
// decides again just before it dials, and updates rl.
func (g *Gate) reach(ctx context.Context, proto Proto, to netip.AddrPort, rl *ruling) net.Conn {
	by := rl.plain()
	if rule, ok := g.spent.of(by.Limits).spend(0); !ok {
		g.journal.deny(
			Event{Proto: proto, Name: by.name.String(), Addr: to.Addr(), Port: to.Port(), Rule: rule, Reason: usedUp,
				Hint: by.Hint})
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.bounds.Dial)
	defer cancel()
	if g.dials.Wait(ctx) != nil {
		g.journal.deny(
			Event{Proto: proto, Name: by.name.String(), Addr: to.Addr(), Port: to.Port(), Rule: by.Rule,
				Reason: "too many connections in too short a time"})
		return nil
	}
	if *rl = rule(g.current(), g.pins, proto, to.Addr(), to.Port(), g.now()); !rl.passes() {
		g.refuse(proto, to, *rl)
		return nil
	}
	e := Event{Kind: KindConnect, Proto: proto, Name: rl.name.String(), Addr: to.Addr(), Port: to.Port(),
		Verdict: rl.verdict, Rule: rl.why.Rule, Reason: rl.why.Reason}
	if !g.journal.emit(e) {
		return nil
	}
	out, err := g.dial(ctx, string(proto), to)
	if err == nil && ctx.Err() != nil {
		out.Close()
		err = ctx.Err()
	}
	if err != nil {
		e.Kind, e.Reason = KindEnd, "not reached: "+reasonOf(err)
		g.journal.emit(e)
		return nil
	}
	return out
}

// reasonOf describes a failed dial without addresses.
func reasonOf(err error) string {
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		return no.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "the gate was closed"
	}
	return printable([]byte(err.Error()))
}

// accept completes the handshake with the sandbox.
func (g *Gate) accept(ctx context.Context, r *tcp.ForwarderRequest) (*gonet.TCPConn, tcpip.Endpoint, bool) {
	if ctx.Err() != nil {
		r.Complete(false)
		return nil, nil, false
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	r.Complete(terr != nil && ctx.Err() == nil)
	if terr != nil {
		return nil, nil, false
	}
	ep.SocketOptions().SetDelayOption(false)
	return gonet.NewTCPConn(&wq, ep), ep, true
}

// carry reads the ClientHello, if one is required, copies in both directions until the end, and reports the byte
// counts.
func (g *Gate) carry(ctx context.Context, f *flow, in *gonet.TCPConn, rl ruling) {
	by := g.opening(f, rl)
	f.by.Store(&by)
	f.moved.Store(g.now().UnixNano())
	f.large = g.size(f.ep)
	g.add(f)
	defer g.remove(f)
	g.recheck(ctx, f)
	w, first, err := g.hail(f, in, rl)
	switch {
	case err != nil:
		f.cut(err.Error())
		g.journal.refused(Event{Proto: TCP, Name: rl.name.String(), Addr: f.to.Addr(), Port: f.to.Port(), Rule: rl.why.Rule},
			err)
	case f.ssh:
		g.ssh(ctx, f, in, rl)
	case f.inspected():
		g.inspect(ctx, f, in, first, rl)
	case w != nil:
		g.splice(f, in, w, first)
	case rl.mustHail:
		g.splice(f, in, nil, first)
	default:
		g.splice(f, in, g.tokens.filter(&sniffer{g: g, f: f, rl: rl}), nil)
	}
	g.finish(f)
}

// size sets the connection's buffer sizes, and reports whether they are the large ones.
func (g *Gate) size(ep tcpip.Endpoint) (large bool) {
	g.mu.Lock()
	if large = g.big < limit.FlowBuffers; large {
		g.big++
	}
	g.mu.Unlock()
	if !large {
		ep.SocketOptions().SetReceiveBufferSize(limit.FlowSmallBuffer, true)
		ep.SocketOptions().SetSendBufferSize(limit.FlowSmallBuffer, true)
	}
	return large
}

// lingerFor is how long the sandbox may take to read the rest of a connection that both sides have ended.
const lingerFor = time.Minute

// finish reports the end and closes the endpoint. The sandbox has a limited time to read the rest, for a limited
// number of such endpoints.
func (g *Gate) finish(f *flow) {
	by, reason := f.by.Load(), ""
	cause := f.cause.Load()
	if cause != nil {
		reason = *cause
	}
	in := f.in.Load()
	g.journal.emit(Event{
		Kind: KindEnd, Proto: f.proto, Name: by.name.String(), Addr: f.to.Addr(), Port: f.to.Port(),
		Verdict: by.Verdict, Rule: by.Rule, Reason: reason, In: in, Out: f.sum.Load() - in,
	})
	f.out.Close()
	f.ep.Close()
	g.linger(&lingerer{ep: f.ep, large: f.large, until: g.now().Add(lingerFor)})
}

// lingerer is a closed endpoint with unsent bytes or an unacknowledged FIN.
type lingerer struct {
	ep    tcpip.Endpoint
	large bool
	until time.Time
}

func (l *lingerer) gone() bool {
	s := tcp.EndpointState(l.ep.State())
	return s == tcp.StateClose || s == tcp.StateError || s == tcp.StateTimeWait
}

// linger registers l. If there are as many as Bounds.Conns, it aborts the oldest.
func (g *Gate) linger(l *lingerer) {
	g.mu.Lock()
	var first *lingerer
	if len(g.lingering) >= g.bounds.Conns {
		first, g.lingering = g.lingering[0], g.lingering[1:]
		if first.large {
			g.big--
		}
	}
	g.lingering = append(g.lingering, l)
	g.mu.Unlock()
	if first != nil && !first.gone() {
		first.ep.Abort()
	}
}

// sweepLingering forgets finished endpoints, and aborts those past lingerFor, or all.
func (g *Gate) sweepLingering(all bool) {
	g.mu.Lock()
	seen := g.lingering
	g.lingering = nil
	g.mu.Unlock()
	now := g.now()
	var left []*lingerer
	freed := 0
	for _, l := range seen {
		gone := l.gone()
		if !gone && (all || !now.Before(l.until)) {
			l.ep.Abort()
			gone = true
		}
		if !gone {
			left = append(left, l)
		} else if l.large {
			freed++
		}
	}
	g.mu.Lock()
	g.lingering = append(left, g.lingering...)
	g.big -= freed
	g.mu.Unlock()
}
