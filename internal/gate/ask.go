package gate

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// Question is a pending request: a destination that the policy neither allows nor denies, with all queries and
// connections that wait for it.
type Question struct {
	Proto   Proto      // DNS if it is about a name, for any port
	Name    string     // "" for an address that no name was resolved to
	Addr    netip.Addr // not valid if there is a name
	Port    uint16     // 0 with DNS
	Since   time.Time
	Until   time.Time // when it is denied if unanswered
	Waiting int       // queries and connections that are held
	// ID, Grant, Method and Path are set for a request that would carry the secret of a grant.
	ID, Grant, Method, Path string
}

// place is the destination of a question.
type place struct {
	proto Proto
	name  policy.Host
	addr  netip.Addr
	port  uint16
	// grant is the grant whose secret would be used, and one is that request if each requires approval; else both are "".
	grant, one string
}

// subject is the request that a question about a grant shows; the zero subject is that of other questions.
type subject struct{ id, method, path string }

// question is a pending destination.
type question struct {
	place
	subject
	decide       func() Decision // by the policy in force
	since, until time.Time
	done         chan struct{} // closed when it is settled
	outcome      Decision      // set before done is closed; never Ask

	waiting int // guarded by desk.mu
}

// desk holds the pending requests. A question starts and ends with an event; a policy change settles it. It is safe
// for concurrent use.
type desk struct {
	journal  *journal
	now      func() time.Time
	patience time.Duration
	most     int // concurrent questions
	room     int // queries and connections that may be held

	mu   sync.Mutex          // before journal.mu
	open map[place]*question // guarded by mu
	held int                 // guarded by mu
}

func newDesk(j *journal, now func() time.Time, b Bounds) *desk {
	return &desk{journal: j, now: now, patience: b.Ask, most: b.Questions, room: b.Waiting, open: map[place]*question{}}
}

// hold waits until p, for which the policy returned d, is decided, and returns the decision: never Ask. The caller
// must check whether that is still current.
func (k *desk) hold(ctx context.Context, p place, d Decision, decide func() Decision) Decision {
	return k.holdAbout(ctx, subject{}, p, d, decide)
}

// holdAbout is hold for a question that shows s, if it is a new one.
func (k *desk) holdAbout(ctx context.Context, s subject, p place, d Decision, decide func() Decision) Decision {
	q, no := k.raiseAbout(s, p, d, decide, 1)
	if q == nil {
		return no
	}
	defer k.release(q)
	select {
	case <-q.done:
		return q.outcome
	case <-ctx.Done():
		d := Decision{Reason: "the gate was closed"}
		if q.grant != "" {
			d.Reason = "the request was given up"
		}
		if q.one != "" { // no other request waits for it
			k.settle(q, d)
		}
		return d
	}
}

// raise starts a question, or joins it, for held waiters. If it cannot, it returns nil and the denial no.
func (k *desk) raise(p place, d Decision, decide func() Decision, held int) (q *question, no Decision) {
	return k.raiseAbout(subject{}, p, d, decide, held)
}

func (k *desk) raiseAbout(
	s subject, p place, d Decision, decide func() Decision, held int,
) (q *question, no Decision) {
	q, fresh, no := k.join(s, p, d, decide, held)
	if fresh {
		k.review(q) // the policy may have changed before the question was registered
	}
	return q, no
}

func (k *desk) join(
	s subject, p place, d Decision, decide func() Decision, held int,
) (q *question, fresh bool, no Decision) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q = k.open[p]
	switch fresh = q == nil; {
	case k.held+held > k.room:
		return nil, false, Decision{Reason: "too many connections are waiting for approval", Hint: d.Hint}
	case fresh && len(k.open) >= k.most:
		return nil, false, Decision{Reason: "too many requests are pending approval", Hint: d.Hint}
	case fresh:
		now := k.now()
		q = &question{place: p, subject: s, decide: decide, since: now, until: now.Add(k.patience),
			done: make(chan struct{})}
		if !k.journal.emit(q.event(now, Decision{Verdict: Ask, Reason: d.Reason, Hint: d.Hint})) {
			return nil, false, Decision{Reason: "the request could not be written to the journal"}
		}
		k.open[p] = q
	}
	k.held += held
	q.waiting += held
	return q, fresh, Decision{}
}

// release unregisters one waiter of q.
func (k *desk) release(q *question) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held--
	q.waiting--
}

// event returns the event for q, or for its outcome.
func (q *question) event(now time.Time, d Decision) Event {
	e := Event{
		Time: now, Kind: KindAsk, Proto: q.proto, Name: q.name.String(), Addr: q.addr, Port: q.port,
		Verdict: d.Verdict, Rule: d.Rule, Reason: d.Reason, Hint: d.Hint, Until: q.until,
		Question: q.id, Method: q.method, Path: q.path,
	}
	if q.grant != "" {
		e.Grants = []string{q.grant}
	}
	return e
}

// answer settles the question with an ID, and reports whether it was pending.
func (k *desk) answer(id string, d Decision) bool {
	for _, q := range k.all() {
		if q.id == id && id != "" {
			d.Rule = "grant " + q.grant
			k.settle(q, d)
			return true
		}
	}
	return false
}

// review settles q if the policy in force decides it.
func (k *desk) review(q *question) {
	if d := q.decide(); d.Verdict != Ask {
		k.settle(q, d)
	}
}

// reviewAll reviews all questions after a policy change.
func (k *desk) reviewAll() {
	for _, q := range k.all() {
		k.review(q)
	}
}

func (k *desk) all() []*question {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.open))
}

// settle settles q, if it is not settled yet.
func (k *desk) settle(q *question, d Decision) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open[q.place] != q {
		return
	}
	delete(k.open, q.place)
	q.outcome = d
	if d.passes() {
		d.Verdict = Allow
	}
	e := q.event(k.now(), d)
	e.Until = time.Time{}
	// The result is ignored: a connection that follows has a separate event, without which it is not made.
	k.journal.emit(e)
	close(q.done)
}

// sweep denies questions that were not answered in time.
func (k *desk) sweep(now time.Time) {
	for _, q := range k.all() {
		if !now.Before(q.until) {
			k.settle(q, Decision{Reason: "not approved within " + k.patience.String()})
		}
	}
}

// close settles all questions, after all waiters have been released.
func (k *desk) close() {
	for _, q := range k.all() {
		k.settle(q, Decision{Reason: "the gate was closed"})
	}
}

// questions returns the pending questions, oldest first.
func (k *desk) questions() []Question {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]Question, 0, len(k.open))
	for _, q := range k.open {
		out = append(out,
			Question{Proto: q.proto, Name: q.name.String(), Addr: q.addr, Port: q.port, Since: q.since, Until: q.until,
				Waiting: q.waiting, ID: q.id, Grant: q.grant, Method: q.method, Path: q.path})
	}
	slices.SortFunc(out, func(a, b Question) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// asks returns the destination that a ruling of Ask is about: the name, if there is one.
func (r ruling) asks(proto Proto, addr netip.Addr, port uint16) place {
	if r.name.IsZero() {
		return place{proto: proto, addr: addr, port: port}
	}
	return place{proto: proto, name: r.name, port: port}
}

// settled returns r. If r is still Ask although its question was answered with d, the result is a denial.
func (r ruling) settled(d Decision) ruling {
	if r.verdict != Ask {
		return r
	}
	if d.passes() { // it was allowed, but no longer is
		d = Decision{Reason: "the approval no longer holds"}
	}
	d.Verdict = Deny
	r.verdict, r.why = Deny, d
	return r
}

// decided converts a function that returns rulings to one that returns decisions for a question.
func decided(f func() ruling) func() Decision {
	return func() Decision {
		r := f()
		d := r.why
		d.Verdict = r.verdict
		return d
	}
}
