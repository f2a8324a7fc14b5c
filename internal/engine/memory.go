//go:build linux

package engine

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// On request, the memory of processes is stored with a snapshot. While the processes are paused for the capture, the
// kernel of the sandbox writes an image, so files and memory are of the same moment. The image is hashed and stored
// after they have resumed, and the snapshot is recorded only when the image is stored.

// memoryMessage is the message of a snapshot with memory that has no other message and changes no file.
const memoryMessage = "memory"

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

// imageOf returns the name of a memory image; "" if m is nil.
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
