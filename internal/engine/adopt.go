//go:build linux

package engine

import (
	"context"
	"errors"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// intentAdopt is the kind of the intent that is written before uppers are renamed into a layer. While the intent
// exists and the layer has no record, the layer holds data that no snapshot has. It must not be removed, and the
// uppers are renamed back: by this daemon after an error, else by the next one.
const intentAdopt = "adopt"

type adoption struct {
	Sandbox timeline.SandboxID `json:"sandbox,omitempty"` // "" before version 0.9
	Layer   timeline.LayerID   `json:"layer"`
	Parts   []rootspec.Part    `json:"parts"`
}

// adopt turns the upper itself into the layer of a new snapshot, in constant time however much changed.
// No process may be running. It stops the box, since its mount uses the upper, and the next start
// begins a new generation.
func (c *capturing) adopt(ctx context.Context) error {
	if err := c.stopBox(ctx, c.s, 0); err != nil {
		return err
	}
	id, made, err := c.newLayer()
	if err != nil {
		return err
	}
	defer made()
	snap, err := c.newSnapshot(c.rec, c.n, c.got.Stats)
	if err != nil {
		return err
	}
	a := adoption{Sandbox: c.s.ID, Layer: id, Parts: c.parts}
	intent, err := c.DB.BeginIntent(ctx, intentAdopt, a)
	if err == nil {
		err = c.DB.Flush() // otherwise a power loss could leave a layer without a record of what it is
	}
	if err != nil {
		return err
	}
	if err := c.addAdopted(ctx, snap, intent, a); err != nil {
		err = fault.Wrap(err, "capture sandbox %s", c.rec.Name)
		return errors.Join(err, c.unadopt(context.WithoutCancel(ctx), intent, a))
	}
	c.indexes.drop(c.s.ID, c.rec.Head)
	c.rec.Head, c.rec.MountTop, c.rec.Gen = snap.ID, snap.ID, c.rec.Gen+1
	c.s.index, c.s.of = nil, ""
	c.Upkeep.Retire(c.live.Dir)
	c.t = c.kept(snap)
	c.added(snap)
	return nil
}

// addAdopted renames the parts of an adoption into its layer, and adds the snapshot.
func (c *capturing) addAdopted(ctx context.Context, snap timeline.Snapshot, intent int64, a adoption) error {
	if err := c.Layers.Adopt(ctx, a.Layer, a.Parts); err != nil {
		return err
	}
	return c.Book.Do(ctx, c.snapshotDrafts(ctx, c.rec, snap, c.n, c.kept(snap)), func(ctx context.Context) error {
		route := timeline.Route{Top: snap.ID, Below: c.rec.MountTop, Layer: a.Layer}
		return c.DB.AddSnapshot(ctx, snap, &route, intent, func(r *meta.Sandbox) {
			r.Head, r.MountTop, r.Gen, r.Redo = snap.ID, snap.ID, r.Gen+1, redoAfter(r.Redo, c.n)
		})
	})
}

// unadopt closes the intent of an adoption: either the layer has its record, or the parts are moved back. If neither
// is possible, the sandbox cannot be used until the next daemon has moved the parts back, because a start would begin
// with an empty upper.
func (e *Engine) unadopt(ctx context.Context, intent int64, a adoption) error {
	_, err := e.DB.Layer(ctx, a.Layer)
	if fault.Is(err, fault.NotFound) {
		err = e.Layers.Unadopt(ctx, a.Layer, a.Parts)
	}
	e.mu.Lock()
	if err == nil {
		delete(e.torn, a.Sandbox)
	} else {
		e.torn[a.Sandbox] = err
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	return e.DB.EndIntent(ctx, intent)
}

// unadoptAll closes the adoptions that a crash or an error interrupted: those of one sandbox, or of all if id is "".
// A failure is logged, and affects only its own sandbox, which cannot be used.
func (e *Engine) unadoptAll(ctx context.Context, id timeline.SandboxID) error {
	ints, err := e.DB.Intents(ctx)
	if err != nil {
		return err
	}
	for _, in := range ints {
		if in.Kind != intentAdopt {
			continue
		}
		var a adoption
		if err := in.Decode(&a); err != nil {
			return err
		}
		if id != "" && a.Sandbox != id {
			continue
		}
		if err := e.unadopt(ctx, in.ID, a); err != nil {
			if ctx.Err() != nil || a.Sandbox == "" {
				return err
			}
			e.Logger.Error("cannot move a sandbox's changes back from a layer", "sandbox", a.Sandbox,
				"layer", a.Layer, "err", err)
		}
	}
	return nil
}

// adopting returns the layers of adoptions whose intent is open.
func (e *Engine) adopting(ctx context.Context) (map[timeline.LayerID]bool, error) {
	ints, err := e.DB.Intents(ctx)
	if err != nil {
		return nil, err
	}
	layers := map[timeline.LayerID]bool{}
	for _, in := range ints {
		if in.Kind != intentAdopt {
			continue
		}
		var a adoption
		if err := in.Decode(&a); err != nil {
			return nil, err
		}
		layers[a.Layer] = true
	}
	return layers, nil
}

// whole returns an error if an adoption of the sandbox could not be undone.
func (e *Engine) whole(id timeline.SandboxID, name string) error {
	e.mu.Lock()
	err := e.torn[id]
	e.mu.Unlock()
	if err == nil {
		return nil
	}
	return fault.New(fault.Unavailable,
		"cannot use sandbox %s: a capture failed, and its changes could not be moved back", name).Because(err).
		WithHint("fix the cause, then restart the daemon, which tries again: coppice serve --stop; its snapshots remain "+
			"available meanwhile: coppice fork %s NEW --at HEAD", name)
}
