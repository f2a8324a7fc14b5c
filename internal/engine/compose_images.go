//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// maxRehash is how many bytes of a snapshot's own files are hashed again before processes resume over
// them. `coppice system verify` hashes all of them.
const maxRehash = 64 << 20

// imagesConfig returns the configuration of the Images of an engine.
func imagesConfig(e *Engine) images.Config {
	return images.Config{
		Store: e.Memory, Records: e.DB, Home: e.Home, Log: e.Logger, Intact: imagesCore{e}.intact,
		Capture: imagesCore{e}.capture,
		Host: images.Host{
			MemoryFacts: e.MemoryFacts, BuildFacts: e.BuildFacts, Understands: e.Understands,
			Print: func() string { return e.HostPrint() },
		},
		Go: inBackground(e),
	}
}

// imagesCore adapts the engine to the needs of package images.
type imagesCore struct{ e *Engine }

// intact returns an error if files that processes would resume over are damaged, which their kernel would not
// notice. It hashes maxRehash bytes at most, and checks of the other layers only that they exist.
func (c imagesCore) intact(ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID) error {
	c.e.shape.RLock()
	defer c.e.shape.RUnlock()
	ids, err := c.e.stacks.Below(ctx, id)
	if err != nil {
		return err
	}
	left := int64(maxRehash)
	for _, l := range ids {
		known, err := c.e.DB.Layer(ctx, l)
		if err == nil && !c.e.Layers.Has(l) {
			err = fault.New(fault.Corrupt, "layer %s is missing", l)
		}
		if err == nil && known.Finalized && known.Digest != "" && known.Size <= left {
			left -= known.Size
			err = c.e.Layers.VerifyDigest(ctx, l, known.Digest)
		}
		if err != nil {
			return fault.New(fault.Corrupt,
				"cannot resume the processes of snapshot %s: its files are not those that were saved with their memory",
				id).Because(err).
				WithHint("see what is damaged: coppice system verify %s; restore the files alone: coppice rewind --files-only %s "+
					"%s",
					rec.Name, rec.Name, id)
		}
	}
	return nil
}

// capture takes a snapshot with memory of a sandbox with a running supervised command.
func (c imagesCore) capture(ctx context.Context, id timeline.SandboxID, b images.Live) bool {
	sbx := knownEntry(c.e, id)
	if sbx == nil {
		return false // the sandbox was removed
	}
	s, err := c.e.lock(ctx, sbx, "saving its memory")
	if err != nil {
		return false
	}
	defer s.unlock(c.e)
	rec, err := c.e.DB.Sandbox(ctx, string(s.ID))
	if s.box != b || err != nil {
		return false
	}
	if run, _ := c.e.Commands.Supervised(s.Held); run != nil && rec.Quarantine == nil {
		_, err = c.e.capture(ctx, s, &rec, note{cause: timeline.CauseAuto, memory: true})
		if err != nil && ctx.Err() == nil {
			c.e.Logger.Error("could not capture the memory of a sandbox", "sandbox", rec.Name, "err", err)
		}
	}
	return true
}
