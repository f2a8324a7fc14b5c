package admission

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// Heap compares what the heap holds with what it may.
type Heap struct {
	most    int64
	live    func() int64
	collect func()

	mu   sync.Mutex // held while collecting
	last time.Time  // the end of the last collection here; guarded by mu
}

// NewHeap watches the heap of this process, which may hold so many bytes.
func NewHeap(most int64) *Heap { return &Heap{most: most, live: Live, collect: runtime.GC} }

// Live is what the heap held after the last collection, in bytes.
func Live() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// collectEvery is the time between two collections that full makes.
const collectEvery = time.Second

// full reports whether the heap holds more than it may. The figure is of the last
// collection, and while requests are refused there may be none for minutes: so one is
// made before the answer is yes, once a second at most. A nil Heap is never full.
func (h *Heap) full() bool {
	if h == nil || h.live() <= h.most {
		return false
	}
	if !h.mu.TryLock() {
		return true // another one collects
	}
	defer h.mu.Unlock()
	if time.Since(h.last) < collectEvery {
		return true
	}
	h.collect()
	h.last = time.Now()
	return h.live() > h.most
}
