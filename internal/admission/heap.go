package admission

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// Heap compares the size of the heap with a maximum.
type Heap struct {
	most    int64
	live    func() int64
	collect func()

	mu   sync.Mutex // held while collecting
	last time.Time  // end of the last collection by full; guarded by mu
}

// NewHeap returns a Heap for this process, with a maximum in bytes.
func NewHeap(most int64) *Heap { return &Heap{most: most, live: Live, collect: runtime.GC} }

// Live returns the bytes that the heap held after the last collection.
func Live() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// collectEvery is the minimum time between two collections by full.
const collectEvery = time.Second

// full reports whether the heap exceeds its maximum. The measured size is that of the last collection, and while
// requests are refused there may be none for minutes. So full collects before it returns true, at most once a second. A
// nil Heap is never full.
func (h *Heap) full() bool {
	if h == nil || h.live() <= h.most {
		return false
	}
	if !h.mu.TryLock() {
		return true // another goroutine is collecting
	}
	defer h.mu.Unlock()
	if time.Since(h.last) < collectEvery {
		return true
	}
	h.collect()
	h.last = time.Now()
	return h.live() > h.most
}
