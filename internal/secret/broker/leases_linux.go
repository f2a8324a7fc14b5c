package broker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/store"
)

// keepLease is the prefix of the names of leases in catalog.own.
const keepLease = "lease-"

// renewAgain is how long the broker waits after a server did not answer, and sweepEvery how often it tries to revoke
// what an earlier broker left.
const (
	renewAgain = 5 * time.Second
	sweepEvery = time.Minute
)

// written is a lease as it is stored until it is revoked.
type written struct {
	Lease string   `json:"lease"`
	At    settings `json:"at"`
}

// leases are the dynamic secrets that were created and not revoked.
type leases struct {
	catalog *catalog
	log     *slog.Logger
	work    *idle // what runs in the background

	mu   sync.Mutex
	live map[string]bool // names of those of this broker
}

// held is what a grant holds: secrets with leases, one after the other. The last one is given to gates.
type held struct {
	turn  sync.Mutex // held while a value is opened, so that one lease is enough for concurrent gets
	all   []*lease
	ended bool
}

// lease is a secret with a lease. The turn of its grant guards it.
type lease struct {
	name  string // in catalog.own
	value store.Value
	at    settings
	last  bool // it cannot be renewed
	stop  context.CancelFunc
}

// value returns the value of a registered grant, with a lease that the grant holds if it is dynamic. The caller closes
// it.
func (ls *leases) value(ctx context.Context, g *granted) (store.Value, error) {
	h := &g.held
	h.turn.Lock()
	defer h.turn.Unlock()
	if h.ended {
		return store.Value{}, fault.New(fault.Denied, "grant %s was changed or revoked", g.Name).
			WithHint("see the sandbox's grants: coppice grants")
	}
	now := ls.catalog.now()
	if n := len(h.all); n > 0 && !h.all[n-1].last && now.Before(h.all[n-1].value.Until) {
		return h.all[n-1].value.Clone(), nil
	}
	v, at, err := ls.catalog.open(ctx, g.Secret)
	if err != nil || v.Lease() == "" {
		return v, err
	}
	l, err := ls.begin(ctx, v, *at)
	if err != nil {
		ls.catalog.release(ctx, v)
		v.Close()
		return store.Value{}, err
	}
	h.all = append(h.all, l)
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	done := ls.work.enter()
	go func() {
		defer done()
		ls.renew(renewing, g, l)
	}()
	return v.Clone(), nil
}

// begin writes a lease down.
func (ls *leases) begin(ctx context.Context, v store.Value, at settings) (*lease, error) {
	l := &lease{name: keepLease + strings.ToLower(rand.Text()), value: v, at: at}
	text, err := json.Marshal(written{v.Lease(), at})
	if err != nil {
		return nil, err
	}
	lockPages(v.Bytes())
	ls.own(l.name, true)
	if err := ls.catalog.own.Put(ctx, store.Ref{Name: l.name, Kind: "lease"}, text); err != nil {
		ls.own(l.name, false)
		return nil, fault.Wrap(err, "write down a lease")
	}
	return l, nil
}

// own notes whether a lease is one of this broker.
func (ls *leases) own(name string, is bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if delete(ls.live, name); is {
		ls.live[name] = true
	}
}

func (ls *leases) isOwn(name string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.live[name]
}

// renew renews a lease until it is stopped or ends. When its grant expires, it revokes what the grant holds, whether or
// not there is a daemon to withdraw it.
func (ls *leases) renew(ctx context.Context, g *granted, l *lease) {
	h := &g.held
	for {
		h.turn.Lock()
		at, until := l.value.RenewAt(), l.value.Until
		if l.last || at.IsZero() {
			at = until
		}
		h.turn.Unlock()
		if !g.Until.IsZero() && (at.IsZero() || g.Until.Before(at)) {
			at = g.Until
		}
		if at.IsZero() || !sleep(ctx, at.Sub(ls.catalog.now())) {
			return
		}
		switch now := ls.catalog.now(); {
		case g.over(now):
			ls.end(context.WithoutCancel(ctx), g) // which cancels ctx
			return
		case !until.IsZero() && !now.Before(until):
			ls.forget(ctx, h, l)
			return
		case !ls.extend(ctx, h, l) && !sleep(ctx, renewAgain):
			return
		}
	}
}

// extend renews a lease once. It returns false if the server did not answer.
func (ls *leases) extend(ctx context.Context, h *held, l *lease) bool {
	h.turn.Lock()
	defer h.turn.Unlock()
	if ctx.Err() != nil || l.last {
		return true
	}
	before := l.value.Until
	err := l.value.Renew(ctx)
	switch {
	case err == nil && l.value.Until.Sub(before) > time.Second:
		return true
	case err != nil && mayRecover(err) && ls.catalog.now().Before(before):
		ls.log.Warn("renew a lease", "error", err)
		return false
	}
	l.last = true // the next get creates another secret, and this one remains for the gates that have it
	return true
}

// mayRecover reports whether a server may answer otherwise later.
func mayRecover(err error) bool {
	return fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout)
}

// forget forgets a lease that has ended.
func (ls *leases) forget(ctx context.Context, h *held, l *lease) {
	h.turn.Lock()
	defer h.turn.Unlock()
	for i, o := range h.all {
		if o == l {
			h.all = append(h.all[:i], h.all[i+1:]...)
			break
		}
	}
	l.value.Close()
	ls.strike(ctx, l.name)
}

// strike removes what is written about a lease.
func (ls *leases) strike(ctx context.Context, name string) {
	ls.own(name, false)
	if err := ls.catalog.own.Delete(ctx, store.Ref{Name: name}); err != nil {
		ls.log.Warn("forget a lease", "error", err)
	}
}

// end revokes what a grant holds, which gets no value afterward. What cannot be revoked stays written down.
func (ls *leases) end(ctx context.Context, g *granted) {
	h := &g.held
	h.turn.Lock()
	defer h.turn.Unlock()
	h.ended = true
	for _, l := range h.all {
		l.stop()
		lease := written{l.value.Lease(), l.at}
		l.value.Close()
		ls.revoke(ctx, l.name, lease)
		ls.own(l.name, false) // a sweep tries again
	}
	h.all = nil
}

// revoke revokes a lease and strikes it, unless the server cannot be reached.
func (ls *leases) revoke(ctx context.Context, name string, w written) {
	ctx, cancel := context.WithTimeout(ctx, releasePatience)
	defer cancel()
	v, err := ls.catalog.vault(&w.At)
	if err == nil {
		err = v.Revoke(ctx, w.Lease)
	}
	if err != nil {
		ls.log.Warn("revoke a lease", "error", err)
		if mayRecover(err) || fault.Is(err, fault.Denied) { // also where the token must be renewed by its owner
			return
		}
	}
	ls.strike(ctx, name)
}

// sweep revokes the leases that are written down and not those of a registered grant.
func (ls *leases) sweep(ctx context.Context) {
	names, err := ls.catalog.own.Names()
	if err != nil {
		ls.log.Warn("list leases", "error", err)
		return
	}
	for _, name := range names {
		if ctx.Err() != nil || !strings.HasPrefix(name, keepLease) || ls.isOwn(name) {
			continue
		}
		v, err := ls.catalog.own.Get(ctx, store.Ref{Name: name})
		if fault.Is(err, fault.NotFound) { // struck meanwhile
			continue
		}
		var w written
		if err == nil {
			err = json.Unmarshal(v.Bytes(), &w)
			v.Close()
		}
		if err != nil {
			ls.log.Warn("read a lease", "error", err)
			continue
		}
		ls.revoke(ctx, name, w)
	}
}

// sleep waits, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
