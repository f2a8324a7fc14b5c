// Package admission decides when the daemon takes on a request that may need much
// memory. All doors share one Gate: a request says at most how much it takes and whose
// it is, and holds that part of the gate's memory until it has been answered. No party,
// which is a sandbox or a token, holds more than half, and parties take turns, so that
// none starves another. Requests that need little pass without a place. The doors and
// the daemon import it; it imports fault.
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
	// Memory is what all admitted requests may take together, in bytes; positive.
	Memory int64
	// Heap measures the memory in use; nil refuses nothing because of it.
	Heap *Heap
	// Log gets what was refused, a line in ten seconds at most; nil is slog.Default().
	Log *slog.Logger
}

// Party is the sandbox or the token that a request comes from.
type Party string

// Sandbox is the party that a sandbox is, by its id.
func Sandbox(id string) Party { return Party("sandbox " + id) }

// Token is the party that a token is, by its id.
func Token(id string) Party { return Party("token " + id) }

// Request is one request for memory.
type Request struct {
	What    string  // for the error: an operation
	Cost    int64   // what it takes at most, in bytes; more than a share counts as a share
	Parties []Party // whose it is; empty for one of the owner's on no sandbox
}

// Stats is the state of a Gate.
type Stats struct {
	Memory  int64  // what admitted requests may take together, in bytes
	Held    int64  // what those under way hold of it
	Waiting int    // requests that wait for a place
	Refused uint64 // requests refused so far
}

// Gate admits requests. Its methods may be called from several goroutines at once.
type Gate struct {
	memory int64
	heap   *Heap
	log    *slog.Logger

	mu      sync.Mutex
	held    int64            // guarded by mu
	parties map[Party]*party // those that hold or wait; guarded by mu
	queue   []*waiter        // oldest first; guarded by mu
	turn    uint64           // admissions so far; guarded by mu
	refused uint64           // guarded by mu
	logged  time.Time        // when a refusal was logged last; guarded by mu
}

// party is what a Gate knows of a Party with requests.
type party struct {
	held     int64
	requests int    // that hold or wait
	waiting  int    // of them
	served   uint64 // the turn of its last admission
}

// waiter is a request without a place.
type waiter struct {
	cost    int64
	parties []*party
	in      chan struct{} // closed when it is admitted
}

// New makes a Gate. One with hardly any memory admits two requests at a time.
func New(opt Options) *Gate {
	if opt.Log == nil {
		opt.Log = slog.Default()
	}
	return &Gate{memory: max(2, opt.Memory), heap: opt.Heap, log: opt.Log, parties: map[Party]*party{}}
}

// Stats gives the present state.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{Memory: g.memory, Held: g.held, Waiting: len(g.queue), Refused: g.refused}
}

// share is what one party may hold.
func (g *Gate) share() int64 { return g.memory / 2 }

// Enter waits for a place, which leave gives back; it must be called once. It fails
// with the cause of ctx when that ends, and with Unavailable when there is no place in
// limit.AdmissionSeconds, when too many wait already, or when the heap is full.
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

// join puts w in the queue and admits whom it can, unless too many wait.
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

// leave takes w out, whether it has a place or waits for one.
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

// admit gives places to those whose turn it is. g.mu is held.
func (g *Gate) admit() {
	for {
		at := next(g.queue, g.share())
		if at < 0 || g.held+g.queue[at].cost > g.memory {
			return // no later request goes first: a large one would never be admitted
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

// next gives the place in the queue of the request whose turn it is: of those whose
// parties stay within their share, the one whose parties were served longest ago, the
// oldest of several. It is -1 for none.
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

// logEvery is the time between two lines about refusals.
const logEvery = 10 * time.Second

// refuse counts and logs a refusal, and gives its error.
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
		g.log.Warn("a request was refused for lack of memory", "request", r.What, "why", why, "held", held, "waiting", waiting, "refused", n)
	}
	return fault.New(fault.Unavailable, "%s: %s", r.What, why).
		WithHint("try again in a few seconds, or give the daemon more memory: coppice serve --memory SIZE")
}
