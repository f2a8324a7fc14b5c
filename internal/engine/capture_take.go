//go:build linux

package engine

import (
	"context"
	"errors"

	"github.com/coppice-dev/coppice/internal/fault"
)

// takeTries is how often a capture begins again because processes ran that were stopped for it.
const takeTries = 3

// take makes a layer of the changes, unless there are so many that the upper is adopted. No process has run while it
// was made: a snapshot shows one moment.
func (c *capturing) take(ctx, hold context.Context) error {
	for range takeTries {
		if err := c.takeOnce(ctx, hold); err != nil || c.frozen == nil {
			return err
		}
		held, err := c.frozen.Held(hold)
		if err == nil && held {
			return nil
		}
		if err = errors.Join(err, c.unmade(ctx, c.layer)); err != nil {
			return fault.Wrap(err, "capture sandbox %s", c.rec.Name)
		}
		c.t.procs, c.suspects = c.frozen.Procs(), c.frozen.Suspects()
		c.s.mapped = c.s.mapped || c.suspects.Any()
	}
	return fault.New(fault.Conflict, "could not capture sandbox %s: its processes continue while they are stopped",
		c.rec.Name).WithHint("end them: coppice stop %s", c.rec.Name)
}

// takeOnce is one attempt of take, during which processes may run.
func (c *capturing) takeOnce(ctx, hold context.Context) error {
	in := c.input(ctx)
	var err error
	c.shape.RLock() // so that the layers to compare with are not removed
	// Clients that write files from outside are not paused with the processes.
	c.Files.HoldNames(c.s.ID, func() { c.got, err = c.Layers.Capture(hold, c.layer, in) })
	c.shape.RUnlock()
	if err != nil {
		return fault.Wrap(err, "capture sandbox %s", c.rec.Name)
	}
	if c.got.Unkept > 0 {
		c.Logger.Warn("a snapshot omits extended attributes that a layer cannot hold",
			"sandbox", c.s.ID, "entries", c.got.Unkept)
	}
	return nil
}
