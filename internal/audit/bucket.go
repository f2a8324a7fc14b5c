package audit

import (
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// bucket is a token bucket. An empty bucket fills evenly in limit.EvidenceRefill. Its state is the time at which it
// will be full: the zero time means that it is full.
type bucket struct {
	size int64 // the capacity, in bytes or in items; above 0
	full time.Time
}

// worth returns how long the bucket takes to fill by n.
func (b *bucket) worth(n int64) time.Duration {
	return time.Duration(min(n, b.size)) * (limit.EvidenceRefill / time.Duration(b.size))
}

// missing returns how long it takes until the bucket is full. If the clock was set back, the
// bucket is at most empty.
func (b *bucket) missing(now time.Time) time.Duration {
	return min(max(0, b.full.Sub(now)), b.worth(b.size))
}

// wait returns how long it takes until n are available.
func (b *bucket) wait(now time.Time, n int64) time.Duration {
	return max(0, b.missing(now)+b.worth(n)-b.worth(b.size))
}

// spend takes n, or what is left if that is less.
func (b *bucket) spend(now time.Time, n int64) {
	b.full = now.Add(min(b.missing(now)+b.worth(n), b.worth(b.size)))
}

// take takes n and returns true; if less is left, it takes nothing and returns false.
func (b *bucket) take(now time.Time, n int64) bool {
	if b.wait(now, n) > 0 {
		return false
	}
	b.spend(now, n)
	return true
}
