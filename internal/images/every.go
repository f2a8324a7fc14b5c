//go:build linux

package images

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// LeastEvery is the minimum interval of KeepEvery.
const LeastEvery = time.Second

// Live is a live box. Boxes are compared by ==.
type Live interface {
	// Gone is closed when the monitor has exited.
	Gone() <-chan struct{}
}

// KeepEvery saves the memory of a sandbox's box at an interval (Config.Capture), until the box has exited. It
// returns at once. It does nothing if the memory of the box is already saved in this way.
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
		if m.keeping[id] == b { // otherwise the sandbox has another box
			delete(m.keeping, id)
		}
	})
}

// keepEvery saves memory until ctx ends or the sandbox has another box.
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
