//go:build linux

package engine

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The memory of processes is stored with a snapshot on request: while they are paused for the capture,
// the kernel of the sandbox writes an image, so files and memory are of the same moment. It is hashed
// and stored once they have resumed, and the snapshot is recorded only when it is stored.

// memoryLabel is the label of a snapshot with memory that has no message and for which no file changed.
const memoryLabel = "memory"

// mayKeepMemory refuses a capture with memory for a sandbox whose memory cannot be stored.
func (c *capturing) mayKeepMemory() error {
	if err := c.Images.MayKeep(c.rec); err != nil {
		return err
	}
	if c.liveBox(c.s) == nil {
		return noMemory(c.rec)
	}
	if q := c.rec.Quarantine; q != nil {
		return fault.New(fault.Conflict, "sandbox %s is quarantined: %s", c.rec.Name, q.Reason).
			WithHint("retry the failed steps first: coppice process resume %s", c.rec.Name)
	}
	return nil
}

func noMemory(rec *meta.Sandbox) error {
	return sandbox.NotLive(rec.Name, "it has no process whose memory can be saved")
}

// imageOf returns the name of the image of a memory; "" if m is nil.
func imageOf(m *timeline.Memory) string {
	if m == nil {
		return ""
	}
	return m.Image
}

func wireQuarantine(q *meta.Quarantine) *wire.Quarantine {
	if q == nil {
		return nil
	}
	return &wire.Quarantine{Since: q.Since, Step: q.Step, Reason: q.Reason}
}
