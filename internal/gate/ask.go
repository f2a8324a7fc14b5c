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

// Question is a place that waits for a person: the policy says neither yes nor no. There
// is one of each place, however many wait for it.
type Question struct {
	Proto   Proto      // DNS where it is about a name, whatever the port
	Name    string     // "" for an address that no name was resolved to
	Addr    netip.Addr // not valid where there is a name
	Port    uint16     // 0 with DNS
	Since   time.Time
	Until   time.Time // it is denied then
	Waiting int       // queries and connections that are held for it
}

// place is what a question is about.
type place struct {
	proto Proto
	name  policy.Host
	addr  netip.Addr
	port  uint16
}

// question is a place that is being asked about.
type question struct {
	place
	decide       func() Decision // by the policy in force
	since, until time.Time
	done         chan struct{} // closed when it is settled
	outcome      Decision      // set before done is closed; never Ask

	waiting int // guarded by desk.mu
}

// desk is where places wait for a person. A question begins with an event and ends with
// one; what it waits for is another policy. It is safe for use by several goroutines.
type desk struct {
	journal  *journal
	now      func() time.Time
	patience time.Duration
	most     int // questions at a time
	room     int // queries and connections that are held at a time

	mu   sync.Mutex          // before journal.mu
	open map[place]*question // guarded by mu
	held int                 // guarded by mu
}

func newDesk(j *journal, now func() time.Time, b Bounds) *desk {
	return &desk{journal: j, now: now, patience: b.Ask, most: b.Questions, room: b.Waiting, open: map[place]*question{}}
}

// hold waits until p, of which decide said d, is decided on, and gives what came of it:
// never Ask. Whether that is still so, the caller finds out.
func (k *desk) hold(ctx context.Context, p place, d Decision, decide func() Decision) Decision {
	q, no := k.raise(p, d, decide, 1)
	if q == nil {
		return no
	}
	defer k.release(q)
	select {
	case <-q.done:
		return q.outcome
	case <-ctx.Done():
		return Decision{Reason: "the gate was closed"}
	}
}

// raise begins a question, or joins it, with so many who are held for it. When there is
// none, no says why.
func (k *desk) raise(p place, d Decision, decide func() Decision, held int) (q *question, no Decision) {
	q, fresh, no := k.join(p, d, decide, held)
	if fresh {
		k.review(q) // the policy may have changed before it was here to be found
	}
	return q, no
}

func (k *desk) join(p place, d Decision, decide func() Decision, held int) (q *question, fresh bool, no Decision) {
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
		q = &question{place: p, decide: decide, since: now, until: now.Add(k.patience), done: make(chan struct{})}
		if !k.journal.emit(q.event(now, Decision{Verdict: Ask, Reason: d.Reason, Hint: d.Hint})) {
			return nil, false, Decision{Reason: "the request could not be written to the journal"}
		}
		k.open[p] = q
	}
	k.held += held
	q.waiting += held
	return q, fresh, Decision{}
}

// release lets go of one who was held for q.
func (k *desk) release(q *question) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held--
	q.waiting--
}

// event tells of q, or of what came of it.
func (q *question) event(now time.Time, d Decision) Event {
	return Event{
		Time: now, Kind: KindAsk, Proto: q.proto, Name: q.name.String(), Addr: q.addr, Port: q.port,
		Verdict: d.Verdict, Rule: d.Rule, Reason: d.Reason, Hint: d.Hint, Until: q.until,
	}
}

// review settles q if the policy in force decides it.
func (k *desk) review(q *question) {
	if d := q.decide(); d.Verdict != Ask {
		k.settle(q, d)
	}
}

// reviewAll reviews all questions, for another policy.
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

// settle ends q, if it has not ended yet.
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
	// What follows of it is told by itself, or does not happen.
	k.journal.emit(e)
	close(q.done)
}

// sweep ends what nobody has decided in time.
func (k *desk) sweep(now time.Time) {
	for _, q := range k.all() {
		if !now.Before(q.until) {
			k.settle(q, Decision{Reason: "not approved within " + k.patience.String()})
		}
	}
}

// close ends all questions, when nobody is held any more.
func (k *desk) close() {
	for _, q := range k.all() {
		k.settle(q, Decision{Reason: "the gate was closed"})
	}
}

// questions gives those that wait, the one that has waited longest first.
func (k *desk) questions() []Question {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]Question, 0, len(k.open))
	for _, q := range k.open {
		out = append(out,
			Question{Proto: q.proto, Name: q.name.String(), Addr: q.addr, Port: q.port, Since: q.since, Until: q.until,
				Waiting: q.waiting})
	}
	slices.SortFunc(out, func(a, b Question) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
	})
	return out
}

// asks gives the place that a ruling of Ask is about: the name, where there is one.
func (r ruling) asks(proto Proto, addr netip.Addr, port uint16) place {
	if r.name.IsZero() {
		return place{proto: proto, addr: addr, port: port}
	}
	return place{proto: proto, name: r.name, port: port}
}

// settled is r, which says Ask though d came of the question, as what it comes to: no.
func (r ruling) settled(d Decision) ruling {
	if r.verdict != Ask {
		return r
	}
	if d.passes() { // it was allowed, and is not any more
		d = Decision{Reason: "the approval no longer holds"}
	}
	d.Verdict = Deny
	r.verdict, r.why = Deny, d
	return r
}

// decided makes of a ruling the decision of a question.
func decided(f func() ruling) func() Decision {
	return func() Decision {
		r := f()
		d := r.why
		d.Verdict = r.verdict
		return d
	}
}
