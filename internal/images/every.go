//go:build linux

package images

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// LeastEvery is how often memory can be kept by KeepEvery.
const LeastEvery = time.Second

// Live is a box, as far as KeepEvery needs it. Boxes are compared by ==.
type Live interface {
	// Gone is closed when the keeper has ended.
	Gone() <-chan struct{}
}

// KeepEvery has the memory of a box of a sandbox kept every so often (Config.Capture), until the box has
// ended, and returns at once. It does nothing if that is so already.
func (m *Images) KeepEvery(id timeline.SandboxID, b Live, every time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keeping[id] == b {
		return
	}
	m.keeping[id] = b
	m.config.Go(func(ctx context.Context) {
		m.keepEvery(ctx, id, b, every)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.keeping[id] == b { // else the sandbox has another box
			delete(m.keeping, id)
		}
	})
}

// keepEvery is KeepEvery until ctx ends or the sandbox has another box.
func (m *Images) keepEvery(ctx context.Context, id timeline.SandboxID, b Live, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.Gone():
			return
		case <-tick.C:
		}
		if !m.config.Capture(ctx, id, b) {
			return
		}
	}
}
