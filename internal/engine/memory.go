//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What processes have in memory is kept with a snapshot where that is asked for: while they
// stand still for the capture, the kernel of the sandbox writes an image, so files and memory
// are of one moment. It is hashed and stored when they run on, and the snapshot is recorded
// only when it is stored.

// memoryLabel is the label of a snapshot that nobody named, for which no file has changed.
const memoryLabel = "memory"

// keepsMemory refuses a sandbox of which the memory cannot be kept.
func (e *Engine) keepsMemory(rec *meta.Sandbox) error {
	if !e.Images.Keeps(rec.Tier) {
		return fault.New(fault.Unsupported, "the memory of a sandbox of tier %s cannot be kept", rec.Tier).
			WithHint("make a sandbox that can: coppice create --tier gvisor")
	}
	return nil
}

// captureMemory is capture with what processes have in memory.
func (e *Engine) captureMemory(ctx context.Context, s *held, rec *meta.Sandbox, n note) (taken, error) {
	if err := e.keepsMemory(rec); err != nil {
		return taken{id: rec.Head}, err
	}
	if e.liveBox(s) == nil {
		return taken{id: rec.Head}, sandbox.NotLive(rec.Name, "there is no process whose memory could be kept")
	}
	if q := rec.Quarantine; q != nil {
		return taken{id: rec.Head}, fault.New(fault.Conflict, "sandbox %s is quarantined: %s", rec.Name, q.Reason).
			WithHint("first try again what failed: coppice resume %s", rec.Name)
	}
	n.memory = true
	return e.capture(ctx, s, rec, n)
}

// imageOf names the image of a memory, if there is one.
func imageOf(m *timeline.Memory) string {
	if m == nil {
		return ""
	}
	return m.Image
}
