//go:build linux

package engine

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What processes have in memory is kept with a snapshot where that is asked for: while they
// stand still for the capture, the kernel of the sandbox writes an image, so files and memory
// are of one moment. It is hashed and stored when they run on, and the snapshot is recorded
// only when it is stored.

const (
	// leastMemory is how often memory can be kept by itself.
	leastMemory = time.Second
	// memoryLabel is the label of a snapshot that nobody named, for which no file has changed.
	memoryLabel = "memory"
)

// keepsMemory refuses a sandbox of which the memory cannot be kept.
func (e *Engine) keepsMemory(rec *meta.Sandbox) error {
	if !e.Images.Keeps(rec.Tier) {
		return fault.New(fault.Unsupported, "the memory of a sandbox of tier %s cannot be kept", rec.Tier).
			WithHint("make a sandbox that can: coppice create --tier gvisor")
	}
	return nil
}

// notLive refuses what needs processes.
func notLive(rec *meta.Sandbox, why string) *fault.Error {
	return fault.New(fault.Conflict, "sandbox %s is not live: %s", rec.Name, why).
		WithHint("start something in it: coppice run --in %s --detach -- CMD", rec.Name)
}

// captureMemory is capture with what processes have in memory.
func (e *Engine) captureMemory(ctx context.Context, s *held, rec *meta.Sandbox, n note) (taken, error) {
	if err := e.keepsMemory(rec); err != nil {
		return taken{id: rec.Head}, err
	}
	if e.liveBox(s) == nil {
		return taken{id: rec.Head}, notLive(rec, "there is no process whose memory could be kept")
	}
	if q := rec.Quarantine; q != nil {
		return taken{id: rec.Head}, fault.New(fault.Conflict, "sandbox %s is quarantined: %s", rec.Name, q.Reason).
			WithHint("first try again what failed: coppice resume %s", rec.Name)
	}
	n.memory = true
	return e.capture(ctx, s, rec, n)
}

// keepMemory keeps the memory of a box every so often, until it has ended.
func (e *Engine) keepMemory(sbx *entry, b Box, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-e.bgCtx.Done():
			return
		case <-b.Gone():
			return
		case <-tick.C:
		}
		s, err := e.lock(e.bgCtx, sbx, "keeping its memory")
		if err != nil {
			return
		}
		rec, err := e.DB.Sandbox(e.bgCtx, string(s.ID))
		switch {
		case s.box != b || err != nil:
			s.unlock(e)
			return
		case s.run != nil && rec.Quarantine == nil:
			if _, err = e.captureMemory(e.bgCtx, s, &rec, note{cause: timeline.CauseAuto}); err != nil && e.bgCtx.Err() == nil {
				e.Logger.Error("its memory is not in the history yet", "sandbox", rec.Name, "err", err)
			}
		}
		s.unlock(e)
	}
}

// imageOf names the image of a memory, if there is one.
func imageOf(m *timeline.Memory) string {
	if m == nil {
		return ""
	}
	return m.Image
}
