// Package admission decides when the daemon starts a request that may need much memory. All listeners share one Gate:
// a request declares its maximum and its parties, and holds that part of the gate's memory until it has been
// answered. A party is a sandbox or a token. No party holds more than half, and parties take turns, so that none
// starves another. Requests that need little are not counted. The listeners and the daemon import it; it imports
// fault.
package admission

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Options configures a Gate.
type Options struct {
	// Memory is the memory of all admitted requests together, in bytes; positive.
	Memory int64
	// Heap measures the memory in use; nil disables that check.
	Heap *Heap
	// Log receives refusals, at most one line in ten seconds; nil is slog.Default().
	Log *slog.Logger
}

// Party is the sandbox or the token that sends a request.
type Party string

// Sandbox returns the party of a sandbox, by its ID.
func Sandbox(id string) Party { return Party("sandbox " + id) }

// Token returns the party of a token, by its ID.
func Token(id string) Party { return Party("token " + id) }

// Request is one request for memory.
type Request struct {
	What    string  // the operation, for the error
	Cost    int64   // maximum memory that it needs, in bytes; more than a share counts as a share
	Parties []Party // empty for a request of the owner that is not about a sandbox
}

// Stats is the state of a Gate.
type Stats struct {
	Memory  int64  // memory that admitted requests may use together, in bytes
	Held    int64  // part of it that requests in progress hold
	Waiting int    // requests that wait for admission
	Refused uint64 // requests refused so far
}

// Gate admits requests. Its methods are safe for concurrent use.
type Gate struct {
	memory int64
	heap   *Heap
	log    *slog.Logger

	mu      sync.Mutex
	held    int64            // guarded by mu
	parties map[Party]*party // parties that hold or wait; guarded by mu
	queue   []*waiter        // oldest first; guarded by mu
	turn    uint64           // admissions so far; guarded by mu
	refused uint64           // guarded by mu
	logged  time.Time        // time of the last logged refusal; guarded by mu
}

// party is the state of a Party with requests.
type party struct {
	held     int64
	requests int    // requests that hold or wait
	waiting  int    // requests that wait
	served   uint64 // the turn of its last admission
}

// waiter is a request that waits for admission.
type waiter struct {
	cost    int64
	parties []*party
	in      chan struct{} // closed when it is admitted
}

// New returns a Gate. With very little memory, it admits two requests at a time.
func New(opt Options) *Gate {
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	return &Gate{memory: max(2, opt.Memory), heap: opt.Heap, log: opt.Log, parties: map[Party]*party{}}
}

// Stats returns the current state.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{Memory: g.memory, Held: g.held, Waiting: len(g.queue), Refused: g.refused}
}

// share returns the maximum that one party may hold, in bytes.
func (g *Gate) share() int64 { return g.memory / 2 }

// Enter waits until r is admitted. The caller must then call leave once. Enter fails with the cause of ctx when that
// ends. It fails with Unavailable if r is not admitted within limit.AdmissionSeconds, if too many requests wait
// already, or if the heap is full.
func (g *Gate) Enter(ctx context.Context, r Request) (leave func(), err error) {
	if g.heap.full() {
		return nil, g.refuse(r, "the daemon's memory is in use")
	}
	w := &waiter{cost: min(r.Cost, g.share()), in: make(chan struct{})}
	if !g.join(w, r.Parties) {
		return nil, g.refuse(r, "too many requests wait for memory")
	}
	leave = func() { g.leave(w, r.Parties) }
	timer := time.NewTimer(limit.AdmissionSeconds * time.Second)
	defer timer.Stop()
	select {
	case <-w.in:
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	case <-timer.C:
		leave()
		return nil, g.refuse(r, "other requests hold the daemon's memory")
	}
	if g.heap.full() { // it may have filled meanwhile
		leave()
		return nil, g.refuse(r, "the daemon's memory is in use")
	}
	return leave, nil
}

// join adds w to the queue and admits what it can. It returns false if the queue is full.
func (g *Gate) join(w *waiter, names []Party) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) >= limit.AdmissionWaiting {
		return false
	}
	for _, name := range names {
		if p := g.parties[name]; p != nil && p.waiting >= limit.AdmissionWaitingOne {
			return false
		}
	}
	for _, name := range names {
		p := g.parties[name]
		if p == nil {
			p = &party{}
			g.parties[name] = p
		}
		p.requests++
		p.waiting++
		w.parties = append(w.parties, p)
	}
	g.queue = append(g.queue, w)
	g.admit()
	return true
}

// leave removes w, whether it is admitted or waits.
func (g *Gate) leave(w *waiter, names []Party) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(g.queue, w)
	if at >= 0 {
		g.queue = slices.Delete(g.queue, at, at+1)
	} else {
		g.held -= w.cost
	}
	for i, p := range w.parties {
		if at >= 0 {
			p.waiting--
		} else {
			p.held -= w.cost
		}
		if p.requests--; p.requests == 0 {
			delete(g.parties, names[i])
		}
	}
	g.admit()
}

// admit admits waiting requests in turn. g.mu is held.
func (g *Gate) admit() {
	for {
		at := next(g.queue, g.share())
		if at < 0 || g.held+g.queue[at].cost > g.memory {
			return // later requests do not overtake, or a large one might never be admitted
		}
		w := g.queue[at]
		g.queue = slices.Delete(g.queue, at, at+1)
		g.turn++
		g.held += w.cost
		for _, p := range w.parties {
			p.held += w.cost
			p.waiting--
			p.served = g.turn
		}
		close(w.in)
	}
}

// next returns the queue index of the next request: of those whose parties stay within their share, the one whose
// parties were served longest ago; of several, the oldest; -1 if none.
func next(queue []*waiter, share int64) int {
	at, since := -1, uint64(0)
	for i, w := range queue {
		served, fits := uint64(0), true
		for _, p := range w.parties {
			served = max(served, p.served)
			fits = fits && p.held+w.cost <= share
		}
		if fits && (at < 0 || served < since) {
			at, since = i, served
		}
	}
	return at
}

// logEvery is the minimum time between two log lines about refusals.
const logEvery = 10 * time.Second

// refuse counts and logs a refusal, and returns its error.
func (g *Gate) refuse(r Request, why string) error {
	g.mu.Lock()
	g.refused++
	n, now := g.refused, time.Now()
	quiet := !g.logged.IsZero() && now.Sub(g.logged) < logEvery
	if !quiet {
		g.logged = now
	}
	held, waiting := g.held, len(g.queue)
	g.mu.Unlock()
	if !quiet {
		g.log.Warn("a request was refused for lack of memory", "request", r.What, "why", why, "held", held, "waiting",
			waiting, "refused", n)
	}
	return fault.New(fault.Unavailable, "%s: %s", r.What, why).
		WithHint("try again in a few seconds, or give the daemon more memory: coppice serve --memory SIZE")
}
