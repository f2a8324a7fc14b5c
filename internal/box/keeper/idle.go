//go:build linux && (amd64 || arm64)

package keeper

import "time"

const (
	// keepResults is how long the result of an exec is kept for a caller that has not fetched it yet.
	keepResults = 10 * time.Minute
	// maxResults bounds the number of kept results.
	maxResults = 512
)

// watchIdle stops an idle box.
func (k *keeper) watchIdle() {
	after := k.config.IdleAfter
	if after < 0 {
		return
	}
	tick := time.NewTicker(max(after/4, 20*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case <-k.over:
			return
		case now := <-tick.C:
			if k.idle(now) {
				k.quit()
				return
			}
		}
	}
}

// idle reports whether the box has been idle for long enough. If so, the box accepts no further exec.
func (k *keeper) idle(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forget(now)
	if k.busy > 0 || len(k.execs) > 0 || k.paused != nil {
		k.idleFrom = now
		return false
	}
	if now.Sub(k.idleFrom) < k.config.IdleAfter {
		return false
	}
	k.mu.Unlock()
	n, err := k.count()
	k.mu.Lock()
	if err != nil || n > 0 || k.busy > 0 || len(k.execs) > 0 {
		k.idleFrom = now
		return false
	}
	k.ending = true
	return true
}

// forget drops results that were kept for long enough. k.mu is held.
func (k *keeper) forget(now time.Time) {
	for id, e := range k.execs {
		at, ok := e.ended()
		if ok && (now.Sub(at) > keepResults || len(k.execs) > maxResults && now.Sub(at) > time.Minute) {
			delete(k.execs, id)
		}
	}
}
