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
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/policy"
)

// inspected reports whether the requests of f are inspected, once its ClientHello has arrived if it needs one.
func (f *flow) inspected() bool {
	if f.hello.Load() == nil {
		return f.inspect
	}
	return f.by.Load().Verdict == Inspect
}

// inspect forwards a connection request by request, until it ends.
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

// look reserves an inspected connection, which may use hundreds of times as much memory as others; lookAway releases
// it.
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

// counted is the sandbox's side of a connection. It first returns the bytes that were already read.
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

// CloseWrite closes the direction towards the sandbox.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// rates counts the requests of rules with a rate limit.
type rates struct {
	mu    sync.Mutex
	rules map[string]*rate.Limiter // guarded by mu; at most as many as the policies had rules
}

// of returns the limiter for a limit. It is kept across policy changes, so that a change does not reset it.
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

// judge decides about the requests of one connection.
type judge struct {
	*Gate
	*flow
}

// exchange is an allowed request.
type exchange struct {
	judge
	request Request
	event   Event    // template of its events
	limits  []Limit  // written only by Begin, with flow.mu held
	spent   *budgets // likewise
	in, out atomic.Int64
	carry   *wallet.Carry // nil if the request carries no secret
	leaks   leaks
	room    room

	sending sync.Mutex
	body    *decoy.Stream // guarded by sending
}

// request returns an error if the head of a request contains a token.
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

// fields returns an error if a header or trailer contains a token. The case of header names is lost by then.
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

// caught reports a token. The event has no path, since the path may contain the token.
func (x *exchange) caught(err error) *inspect.Denial {
	e := x.event
	e.Verdict, e.Status, e.Path = Deny, http.StatusForbidden, ""
	x.journal.refused(e, err)
	return &inspect.Denial{Status: http.StatusForbidden, Reason: err.Error()}
}

// Sent searches what is sent after the head.
func (x *exchange) Sent(b []byte) *inspect.Denial {
	x.sending.Lock()
	defer x.sending.Unlock()
	if p, found := x.body.Find(b); found {
		return x.caught(caught{p, DecoySent})
	}
	return nil
}

// Trailer searches the trailers.
func (x *exchange) Trailer(h http.Header) *inspect.Denial {
	if err := x.tokens.fields(h); err != nil {
		return x.caught(err)
	}
	return nil
}

// about returns an event for a request.
func (j judge) about(q inspect.Request) Event {
	by := j.by.Load()
	e := Event{Proto: TCP, Name: q.Host.String(), Addr: j.to.Addr(), Port: j.to.Port(),
		Method: printable([]byte(q.Method)), Path: printable([]byte(q.Path))}
	if q.Host.IsZero() {
		e.Name = by.name.String()
	}
	return e
}

// Deny reports a request that is denied under any policy.
func (j judge) Deny(q inspect.Request, reason string) {
	e := j.about(q)
	e.Rule, e.Reason = j.by.Load().Rule, reason
	if err := j.tokens.request(q); err != nil { // the path may contain a token
		e.Path = ""
		j.journal.refused(e, err)
		return
	}
	j.journal.deny(e)
}

// Begin decides about a request. The request is registered before that, so that a policy change either finds it or
// precedes it.
func (j judge) Begin(ctx context.Context, q inspect.Request) (inspect.Exchange, *inspect.Denial) {
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
	no := x.decide(ctx, q)
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

// ask asks the policy, and again if the policy changed before stillAll could see the limits.
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

// decide asks the policy, and which secrets the request carries, and reports the decision.
func (x *exchange) decide(ctx context.Context, q inspect.Request) *inspect.Denial {
	d := x.ask()
	x.event.Verdict, x.event.Rule, x.event.Reason = d.Verdict, d.Rule, d.Reason
	if d.Verdict != Allow {
		x.event.Verdict = Deny // approval is not requested for single requests
		return x.deny(http.StatusForbidden, d.Rule, d.Reason, d.Hint)
	}
	for _, l := range x.limits {
		if l.MaxRequest > 0 && q.Size > l.MaxRequest {
			return x.deny(http.StatusRequestEntityTooLarge, l.Rule, tooLarge, "")
		}
	}
	for _, l := range x.limits {
		if l.Rate != (policy.Rate{}) && !x.rates.of(l).AllowN(x.now(), 1) {
			return x.deny(http.StatusTooManyRequests, l.Rule, "the rule's rate, "+l.Rate.String()+", is exhausted", "")
		}
	}
	if no := x.charge(ctx, q); no != nil {
		return no
	}
	e := x.event
	e.Kind = KindRequest
	if !x.record(ctx, e) {
		x.uncharge()
		return &inspect.Denial{Status: http.StatusServiceUnavailable,
			Reason: "the request could not be written to the journal"}
	}
	return nil
}

const tooLarge = "the request exceeds the limit of its rule"

// deny reports that the request was stopped.
func (x *exchange) deny(status int, rule, reason, hint string) *inspect.Denial {
	e := x.event
	e.Rule, e.Reason, e.Hint, e.Status = rule, reason, hint, status
	if e.Verdict == Allow {
		e.Verdict = Deny
	}
	x.journal.deny(e)
	return &inspect.Denial{Status: status, Rule: rule, Reason: reason, Hint: hint}
}

// Spend counts bytes against the limits of the rules.
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

// End reports the result.
func (x *exchange) End(status int, reason string) {
	x.leave()
	x.release()
	if x.carry != nil {
		defer x.carry.Done()
	}
	if why := x.leaks.cause(); why != "" {
		reason = why
	}
	// The errors of package net/http quote what the server sent.
	if x.wallet.Names(x.request.Host) {
		reason = x.wallet.Live().Text(reason, x.leaked)
	}
	e := x.event
	e.Grants = nil
	e.Kind, e.Status, e.Reason, e.In, e.Out = KindAnswer, status, printable([]byte(reason)), x.in.Load(), x.out.Load()
	x.journal.emit(e)
}

// stillAll reports whether the policy still allows every request in progress of f, with the same limits.
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
