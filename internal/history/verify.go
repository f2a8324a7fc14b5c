//go:build linux

package history

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Verify hashes every finalized layer of a sandbox or, if name is "", of the whole store, and compares it with the
// digest that was recorded when the layer was finalized. It also verifies the audit log and memory images. Damage is
// reported in the result, not as an error. Layers that cannot be finalized for lack of space are counted as not
// finalized.
func (h *Histories) Verify(
	ctx context.Context, name string, progress func(wire.Progress),
) (wire.VerifyResult, error) {
	var res wire.VerifyResult
	if err := h.config.VerifyRecords(ctx, name, progress, &res); err != nil {
		return res, err
	}
	if err := h.config.Finalize(ctx); err != nil && !fault.Is(err, fault.NoSpace) {
		return res, err
	}
	h.config.Shape.RLock()
	defer h.config.Shape.RUnlock()
	if err := h.verifyLayers(ctx, name, progress, &res); err != nil {
		return res, err
	}
	return res, h.config.VerifyImages(ctx, name, progress, &res)
}

// verifyLayers implements Verifier for layers. The caller holds Shape.
func (h *Histories) verifyLayers(
	ctx context.Context, name string, progress func(wire.Progress), res *wire.VerifyResult,
) error {
	layers, err := h.layersOf(ctx, name)
	if err != nil {
		return err
	}
	for i, l := range layers {
		progress(wire.Progress{Phase: "verify", Unit: "layers", Done: int64(i), Total: int64(len(layers))})
		if !l.Finalized || l.Digest == "" {
			res.Unfinalized++
			if l.Finalized {
				res.Unverifiable++
			}
			continue
		}
		err := h.config.Layers.VerifyDigest(ctx, l.ID, l.Digest)
		switch {
		case err == nil:
		case fault.Is(err, fault.Corrupt), fault.Is(err, fault.NotFound):
			res.Damage = append(res.Damage, h.damage(ctx, l.ID, err))
		default:
			return fault.Wrap(err, "verify layer %s", l.ID)
		}
		res.Layers++
		res.Bytes += l.Size
	}
	return nil
}

// damage returns the damage of a layer, with the snapshot and the sandbox that it belongs to.
func (h *Histories) damage(ctx context.Context, id timeline.LayerID, err error) wire.Damage {
	d := wire.Damage{Layer: string(id), Message: err.Error()}
	snap, serr := h.config.DB.SnapshotOfLayer(ctx, id)
	if serr != nil {
		return d // a merged layer of a removed snapshot belongs to none
	}
	d.Snapshot = string(snap.ID)
	if rec, serr := h.config.DB.Sandbox(ctx, string(snap.Sandbox)); serr == nil {
		d.Sandbox = rec.Name
	}
	return d
}

// layersOf returns the layers of a sandbox's history or, if name is "", all layers.
func (h *Histories) layersOf(ctx context.Context, name string) ([]meta.Layer, error) {
	all, err := h.config.DB.Layers(ctx)
	if err != nil || name == "" {
		return all, err
	}
	_, t, err := h.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	wanted := map[timeline.LayerID]bool{}
	for _, leaf := range t.Leaves() {
		line, err := h.config.DB.Lineage(ctx, leaf)
		if err != nil {
			return nil, err
		}
		for _, rs := range line.Routes {
			for _, r := range rs {
				wanted[r.Layer] = true
			}
		}
	}
	var out []meta.Layer
	for _, l := range all {
		if wanted[l.ID] {
			out = append(out, l)
		}
	}
	return out, nil
}
