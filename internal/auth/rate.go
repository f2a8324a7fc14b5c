package auth

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// buckets limits how often something may happen for each of many keys. The table has a maximum size: when it is
// full of keys in use, further keys share a bucket.
type buckets struct {
	rate  rate.Limit
	burst int
	most  int // keys

	mu     sync.Mutex
	of     map[string]*rate.Limiter // guarded by mu
	others *rate.Limiter            // guarded by mu
	swept  time.Time                // guarded by mu
}

func newBuckets(r Rate, most int) *buckets {
	b := &buckets{rate: rate.Limit(r.PerSecond), burst: r.Burst, most: most, of: map[string]*rate.Limiter{}}
	b.others = rate.NewLimiter(b.rate, b.burst)
	return b
}

// take removes a token from a key's bucket. If the bucket is empty, it returns the time until it is not.
func (b *buckets) take(key string, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.bucket(key, now)
	if l.AllowN(now, 1) {
		return 0
	}
	return b.until(l, now)
}

// spent returns the time until a key's bucket has a token; 0 if it has one.
func (b *buckets) spent(key string, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of[key]
	if l == nil {
		if len(b.of) < b.most {
			return 0
		}
		l = b.others
	}
	if l.TokensAt(now) >= 1 {
		return 0
	}
	return b.until(l, now)
}

func (b *buckets) until(l *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - l.TokensAt(now)
	return max(time.Millisecond, time.Duration(missing/float64(b.rate)*float64(time.Second)))
}

// bucket finds or creates a key's bucket. b.mu is held.
func (b *buckets) bucket(key string, now time.Time) *rate.Limiter {
	if l := b.of[key]; l != nil {
		return l
	}
	if len(b.of) >= b.most && now.Sub(b.swept) > time.Second {
		b.swept = now
		for k, l := range b.of {
			if l.TokensAt(now) >= float64(b.burst) { // full again, like a new one
				delete(b.of, k)
			}
		}
	}
	if len(b.of) >= b.most {
		return b.others
	}
	l := rate.NewLimiter(b.rate, b.burst)
	b.of[key] = l
	return l
}

// recent remembers the hashes of recently valid secrets, so that guessing from an address does not lock out valid
// users there. It is bounded; the oldest is forgotten first.
type recent struct {
	most int

	mu   sync.Mutex
	when map[Hash]uint64 // by turn of the last use; guarded by mu
	turn uint64          // guarded by mu
}

func newRecent(most int) *recent { return &recent{most: most, when: map[Hash]uint64{}} }

func (r *recent) has(h Hash) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.when[h]
	return ok
}

func (r *recent) add(h Hash) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn++
	r.when[h] = r.turn
	if len(r.when) <= r.most {
		return
	}
	var oldest Hash
	first := r.turn
	for k, turn := range r.when {
		if turn < first {
			oldest, first = k, turn
		}
	}
	delete(r.when, oldest)
}
