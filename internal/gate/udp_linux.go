//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// tcpQueryIdle is how long a DNS connection over TCP may be idle.
const tcpQueryIdle = 10 * time.Second

// serveDNS answers queries to one address of the gate until c is closed. Excess queries are dropped: clients retry.
func (g *Gate) serveDNS(ctx context.Context, c *gonet.UDPConn) {
	buf := make([]byte, limit.Datagram)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		if !g.names.take() {
			g.journal.deny(Event{Proto: DNS, Reason: "too many queries at a time"})
			continue
		}
		m := append([]byte(nil), buf[:min(n, limit.DNSQuery+1)]...)
		reply := func() {
			defer g.names.give()
			if r := g.names.answer(ctx, m, 0); r != nil {
				if _, err := c.WriteTo(r, from); err != nil {
					g.counts.frames.Add(1)
				}
			}
		}
		if !g.begin() { // the gate is being closed: the query is decided all the same, so that a denial is reported
			reply()
			continue
		}
		go func() {
			defer g.end()
			reply()
		}()
	}
}

// acceptDNS answers the queries of one TCP connection, one at a time.
func (g *Gate) acceptDNS(ctx context.Context, r *tcp.ForwarderRequest) {
	in, ep, ok := g.accept(ctx, r)
	if !ok {
		return
	}
	ep.SocketOptions().SetReceiveBufferSize(limit.FlowSmallBuffer, true)
	ep.SocketOptions().SetSendBufferSize(limit.FlowSmallBuffer, true)
	stop := context.AfterFunc(ctx, ep.Abort)
	defer func() {
		stop()
		ep.Close()
		g.linger(&lingerer{ep: ep, until: g.now().Add(lingerFor)})
	}()
	for range limit.DNSStream {
		if in.SetDeadline(time.Now().Add(tcpQueryIdle)) != nil {
			return
		}
		var size [2]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return
		}
		m := make([]byte, binary.BigEndian.Uint16(size[:]))
		if len(m) > limit.DNSQuery {
			g.journal.deny(Event{Proto: DNS, Reason: "the query is too long"})
			return
		}
		if _, err := io.ReadFull(in, m); err != nil {
			return
		}
		if !g.names.take() {
			g.journal.deny(Event{Proto: DNS, Reason: "too many queries at a time"})
			return
		}
		a := g.names.answer(ctx, m, 1<<16-1)
		g.names.give()
		// held queries may have used up the deadline
		if a == nil || in.SetDeadline(time.Now().Add(tcpQueryIdle)) != nil {
			return
		}
		if _, err := in.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
			return
		}
	}
}

// serveUDP decides about the first datagram of a flow, on the goroutine that reads packets. It returns false if the
// stack should report the port as unreachable.
func (g *Gate) serveUDP(ctx context.Context, r *udp.ForwarderRequest) bool {
	id := r.ID()
	to := netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
	if to.Addr() == link.Gate4() || to.Addr() == link.Gate6() {
		g.refuse(UDP, to, ruling{why: Decision{Reason: "the gate's own address serves DNS only"}})
		return false
	}
	rl := rule(g.current(), g.pins, UDP, to.Addr(), to.Port(), g.now())
	if rl.verdict == Ask {
		// Senders of datagrams retransmit: none is stored until a person decides.
		name := rl.name
		decide := func() ruling { return rule(g.current(), g.pins, UDP, to.Addr(), to.Port(), g.now(), name) }
		q, no := g.desk.raise(rl.asks(UDP, to.Addr(), to.Port()), rl.why, decided(decide), 0)
		if q != nil {
			return true
		}
		rl = rl.settled(no)
	}
	if rl.verdict != Allow {
		g.refuse(UDP, to, rl)
		return false
	}
	g.mu.Lock()
	full := g.closed || g.udp >= g.bounds.Flows
	if !full {
		g.udp++
		g.wg.Add(1)
	}
	g.mu.Unlock()
	if full {
		g.journal.deny(
			Event{Proto: UDP, Name: rl.name.String(), Addr: to.Addr(), Port: to.Port(), Rule: rl.why.Rule,
				Reason: "the sandbox has too many UDP flows"})
		return false
	}
	done := func() {
		g.mu.Lock()
		g.udp--
		g.mu.Unlock()
		g.end()
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	if terr != nil {
		done()
		return false
	}
	in := gonet.NewUDPConn(&wq, ep)
	go func() {
		defer done()
		defer ep.Close()
		out := g.reach(ctx, UDP, to, &rl)
		if out == nil {
			return
		}
		defer out.Close()
		f := &flow{proto: UDP, to: to, out: out, ep: ep}
		by := rl.plain()
		f.by.Store(&by)
		f.moved.Store(g.now().UnixNano())
		g.add(f)
		defer g.remove(f)
		g.recheck(ctx, f)
		g.relay(f, in)
	}()
	return true
}

// relay copies datagrams in both directions until the flow is cut, which is the only way for it to end.
func (g *Gate) relay(f *flow, in *gonet.UDPConn) {
	f.charge(g.spent.of(f.by.Load().Limits))
	copyTo := func(dst io.Writer, src io.Reader, inward bool) {
		buf := make([]byte, limit.Datagram)
		for f.cause.Load() == nil {
			n, err := src.Read(buf)
			if err != nil {
				f.cut("unreachable")
				return
			}
			f.moved.Store(g.now().UnixNano())
			if p, found := g.tokens.sent.In(buf[:n]); found && !inward {
				by := f.by.Load()
				g.journal.refused(Event{Proto: UDP, Name: by.name.String(), Addr: f.to.Addr(), Port: f.to.Port(), Rule: by.Rule},
					caught{p, DecoySent})
				f.cut(DecoySent)
				return
			}
			if _, ok := f.spent.Load().spend(int64(n)); !ok {
				f.cut(usedUp)
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				continue // lost, as datagrams are
			}
			f.sum.Add(int64(n))
			if inward {
				f.in.Add(int64(n))
				g.counts.in.Add(int64(n))
			} else {
				g.counts.out.Add(int64(n))
			}
		}
	}
	var down sync.WaitGroup
	down.Go(func() { copyTo(in, f.out, true) })
	copyTo(f.out, in, false)
	down.Wait()
	by, n := f.by.Load(), f.in.Load()
	reason := ""
	if c := f.cause.Load(); c != nil {
		reason = *c
	}
	g.journal.emit(Event{
		Kind: KindEnd, Proto: UDP, Name: by.name.String(), Addr: f.to.Addr(), Port: f.to.Port(),
		Verdict: Allow, Rule: by.Rule, Reason: reason, In: n, Out: f.sum.Load() - n,
	})
}
