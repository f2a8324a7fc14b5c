//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/coppice-dev/coppice/internal/decoy"
	"github.com/coppice-dev/coppice/internal/gate/inspect"
	"github.com/coppice-dev/coppice/internal/policy"
)

// inspected reports whether requests of f are decided on, once its ClientHello has
// come where it has to.
func (f *flow) inspected() bool {
	if f.hello.Load() == nil {
		return f.inspect
	}
	return f.by.Load().Verdict == Inspect
}

// inspect carries a connection request by request, until it is over.
func (g *Gate) inspect(ctx context.Context, f *flow, in *gonet.TCPConn, first []byte, rl ruling) {
	if !g.look() {
		f.cut(tooManyLooked)
		g.journal.deny(
			Event{Proto: TCP, Name: rl.name.String(), Addr: f.to.Addr(), Port: f.to.Port(), Rule: rl.why.Rule,
				Reason: tooManyLooked})
		return
	}
	defer g.lookAway()
	ca, err := g.ca()
	if err == nil {
		o := inspect.Options{
			Inside: &counted{Conn: in, g: g, f: f, first: first}, Outside: f.out, Port: f.to.Port(), Authority: ca,
			Roots: g.roots, Judge: judge{g, f}, Now: g.now, Patience: g.bounds.Hello,
		}
		if h := f.hello.Load(); h != nil {
			o.Name = h.name
		} else {
			for _, n := range rl.byName {
				o.Names = append(o.Names, n.name)
			}
		}
		err = inspect.Serve(ctx, o)
	}
	if err != nil && f.cause.Load() == nil {
		by := f.by.Load()
		g.journal.deny(
			Event{Proto: TCP, Name: by.name.String(), Addr: f.to.Addr(), Port: f.to.Port(), Rule: by.Rule,
				Reason: printable([]byte(err.Error()))})
	}
}

const tooManyLooked = "the sandbox has too many inspected connections"

// look takes the place of a connection that is inspected, which may hold hundreds of
// times as much of the process's memory as another; lookAway gives it back.
func (g *Gate) look() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.looked >= g.bounds.Inspect {
		return false
	}
	g.looked++
	return true
}

func (g *Gate) lookAway() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looked--
}

// counted is the sandbox's side of a connection. What was read before comes first.
type counted struct {
	net.Conn
	g     *Gate
	f     *flow
	first []byte
}

func (c *counted) Read(p []byte) (n int, err error) {
	if len(c.first) > 0 {
		n = copy(p, c.first)
		c.first = c.first[n:]
	} else {
		n, err = c.Conn.Read(p)
	}
	c.count(n, &c.g.counts.out)
	return n, err
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.f.in.Add(int64(n))
	c.count(n, &c.g.counts.in)
	return n, err
}

func (c *counted) count(n int, sum *atomic.Int64) {
	c.f.moved.Store(c.g.now().UnixNano())
	c.f.sum.Add(int64(n))
	sum.Add(int64(n))
}

// CloseWrite ends the way to the sandbox.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// rates are how often requests were made by rules that have a rate.
type rates struct {
	mu    sync.Mutex
	rules map[string]*rate.Limiter // guarded by mu; as many as the policies had rules
}

// of gives the count for a limit. It holds from one policy to the next, so that a
// change does not begin it anew.
func (r *rates) of(l Limit) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules == nil {
		r.rules = map[string]*rate.Limiter{}
	}
	x := r.rules[l.Rule]
	if x == nil {
		x = rate.NewLimiter(rate.Limit(float64(l.Rate.Count)/l.Rate.Per.Seconds()), int(l.Rate.Count))
		r.rules[l.Rule] = x
	}
	return x
}

// judge decides on the requests of one connection.
type judge struct {
	*Gate
	*flow
}

// exchange is a request that was allowed.
type exchange struct {
	judge
	request Request
	event   Event    // what it is, for what is told of it
	limits  []Limit  // written by Begin alone, with flow.mu
	spent   *budgets // the same
	in, out atomic.Int64

	sending sync.Mutex
	body    *decoy.Stream // guarded by sending
}

// request gives an error where the head of a request has a token.
func (t tokens) request(q inspect.Request) error {
	if t.sent == nil {
		return nil
	}
	if err := t.name(q.Host.String()); err != nil {
		return err
	}
	if err := t.fields(q.Header); err != nil {
		return err
	}
	return t.all(q.Method, q.Path, q.Query)
}

// fields gives an error where a header or a trailer has a token. Of their names nobody
// knows any more what was written large.
func (t tokens) fields(h http.Header) error {
	for k, vs := range h {
		if p, found := t.names.InName(k); found {
			return caught{p, DecoySent}
		}
		if err := t.all(vs...); err != nil {
			return err
		}
	}
	return nil
}

// caught tells of a token. What is told has no path, which may be made of it.
func (x *exchange) caught(err error) *inspect.Denial {
	e := x.event
	e.Verdict, e.Status, e.Path = Deny, http.StatusForbidden, ""
	x.journal.refused(e, err)
	return &inspect.Denial{Status: http.StatusForbidden, Reason: err.Error()}
}

// Sent looks through what is sent after the head.
func (x *exchange) Sent(b []byte) *inspect.Denial {
	x.sending.Lock()
	defer x.sending.Unlock()
	if p, found := x.body.Find(b); found {
		return x.caught(caught{p, DecoySent})
	}
	return nil
}

// Trailer looks through what follows the body.
func (x *exchange) Trailer(h http.Header) *inspect.Denial {
	if err := x.tokens.fields(h); err != nil {
		return x.caught(err)
	}
	return nil
}

// about makes an event of a request.
func (j judge) about(q inspect.Request) Event {
	by := j.by.Load()
	e := Event{Proto: TCP, Name: q.Host.String(), Addr: j.to.Addr(), Port: j.to.Port(),
		Method: printable([]byte(q.Method)), Path: printable([]byte(q.Path))}
	if q.Host.IsZero() {
		e.Name = by.name.String()
	}
	return e
}

// Deny tells of a request that no policy allows.
func (j judge) Deny(q inspect.Request, reason string) {
	e := j.about(q)
	e.Rule, e.Reason = j.by.Load().Rule, reason
	if err := j.tokens.request(q); err != nil { // a token may be part of the path
		e.Path = ""
		j.journal.refused(e, err)
		return
	}
	j.journal.deny(e)
}

// Begin decides on a request. It is underway before that, so that a change of the policy
// finds it or comes before.
func (j judge) Begin(q inspect.Request) (inspect.Exchange, *inspect.Denial) {
	x := &exchange{judge: j, event: j.about(q), body: j.tokens.sent.Stream()}
	if err := j.tokens.request(q); err != nil {
		return nil, x.caught(err)
	}
	x.request = Request{Proto: TCP, Host: q.Host, Addr: j.to.Addr(), Port: j.to.Port(), HTTP: &q.HTTPRequest}
	j.flow.mu.Lock()
	if j.live == nil {
		j.live = map[*exchange]struct{}{}
	}
	j.live[x] = struct{}{}
	j.flow.mu.Unlock()
	no := x.decide(q.Size)
	if no != nil {
		x.leave()
		return nil, no
	}
	return x, nil
}

func (x *exchange) leave() {
	x.flow.mu.Lock()
	defer x.flow.mu.Unlock()
	delete(x.live, x)
}

// ask asks the policy, and again if another one came in force before the limits were
// known to stillAll.
func (x *exchange) ask() Decision {
	for {
		p := x.policy.Load()
		d := (*p).Decide(x.request)
		spent := x.Gate.spent.of(d.Limits)
		x.flow.mu.Lock()
		x.limits, x.spent = d.Limits, spent
		x.flow.mu.Unlock()
		if p == x.policy.Load() {
			return d
		}
	}
}

// decide asks the policy, and tells what it says.
func (x *exchange) decide(size int64) *inspect.Denial {
	d := x.ask()
	x.event.Verdict, x.event.Rule, x.event.Reason = d.Verdict, d.Rule, d.Reason
	if d.Verdict != Allow {
		x.event.Verdict = Deny // nobody is asked about single requests
		return x.deny(http.StatusForbidden, d.Rule, d.Reason, d.Hint)
	}
	for _, l := range x.limits {
		if l.MaxRequest > 0 && size > l.MaxRequest {
			return x.deny(http.StatusRequestEntityTooLarge, l.Rule, tooLarge, "")
		}
	}
	for _, l := range x.limits {
		if l.Rate != (policy.Rate{}) && !x.rates.of(l).AllowN(x.now(), 1) {
			return x.deny(http.StatusTooManyRequests, l.Rule, "the rule's rate, "+l.Rate.String()+", is exhausted", "")
		}
	}
	e := x.event
	e.Kind = KindRequest
	if !x.journal.emit(e) {
		return &inspect.Denial{Status: http.StatusServiceUnavailable,
			Reason: "the request could not be written to the journal"}
	}
	return nil
}

const tooLarge = "the request exceeds the limit of its rule"

// deny tells that the request goes no further.
func (x *exchange) deny(status int, rule, reason, hint string) *inspect.Denial {
	e := x.event
	e.Rule, e.Reason, e.Hint, e.Status = rule, reason, hint, status
	if e.Verdict == Allow {
		e.Verdict = Deny
	}
	x.journal.deny(e)
	return &inspect.Denial{Status: status, Rule: rule, Reason: reason, Hint: hint}
}

// Spend counts bytes against what the rules allow.
func (x *exchange) Spend(out, in int64) *inspect.Denial {
	sent := x.out.Add(out)
	x.in.Add(in)
	for _, l := range x.limits {
		if l.MaxRequest > 0 && sent > l.MaxRequest {
			return x.deny(http.StatusRequestEntityTooLarge, l.Rule, tooLarge, "")
		}
	}
	if rule, ok := x.spent.spend(out + in); !ok {
		return x.deny(http.StatusForbidden, rule, usedUp, "")
	}
	return nil
}

// End tells what came of it.
func (x *exchange) End(status int, reason string) {
	x.leave()
	e := x.event
	e.Kind, e.Status, e.Reason, e.In, e.Out = KindAnswer, status, printable([]byte(reason)), x.in.Load(), x.out.Load()
	x.journal.emit(e)
}

// stillAll reports whether the policy still allows every request of f that is underway,
// with the same limits.
func (g *Gate) stillAll(f *flow) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for x := range f.live {
		if d := g.current().Decide(x.request); d.Verdict != Allow || !slices.Equal(d.Limits, x.limits) {
			return false
		}
	}
	return true
}
