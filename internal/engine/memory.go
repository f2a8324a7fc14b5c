//go:build linux

package engine

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What processes have in memory is kept with a snapshot where that is asked for: while they
// stand still for the capture, the kernel of the sandbox writes an image, so files and memory
// are of one moment. It is hashed and stored when they run on, and the snapshot is recorded
// only when it is stored.

// memoryMessage is the message of a snapshot that nobody named, for which no file has changed.
const memoryMessage = "memory"

// mayKeepMemory refuses a capture with memory where there is none to be kept.
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

// imageOf names the image of a memory, if there is one.
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
