//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// base is what a sandbox begins on.
type base struct {
	meta.Base
	Warnings []string
	Notes    []string // what was done, for people
}

// base finds or makes what a request's sandbox stands on. What is imported once
// is shared by all sandboxes that are made from the same thing.
func (e *Engine) base(
	ctx context.Context, req wire.CreateRequest, rec *meta.Sandbox, progress func(wire.Progress),
) (base, error) {
	switch req.From.Kind {
	case "", wire.SourceHost:
		if req.Repo != nil && rec.Tier == tierWorkspace {
			return base{}, nil // the repository is all that there is
		}
		return base{Base: meta.Base{Host: true, Label: "host"}}, nil
	case wire.SourceHostCopy:
		return e.hostCopy(ctx, progress)
	case wire.SourceDir:
		return e.importBase(ctx, meta.Base{Label: req.From.Path}, func(id timeline.LayerID) (layer.Report, error) {
			return e.Layers.ImportDir(ctx, id, req.From.Path, layer.ImportOptions{Progress: relay(progress)})
		})
	case wire.SourceTar:
		if req.Tar == nil {
			return base{}, fault.New(fault.Invalid, "the archive is missing from the request")
		}
		return e.importBase(ctx, meta.Base{Label: req.From.Path}, func(id timeline.LayerID) (layer.Report, error) {
			return e.Layers.ImportTar(ctx, id, req.Tar, layer.TarOptions{Progress: relay(progress)})
		})
	}
	return base{}, fault.New(fault.Invalid, "there is no source %q", req.From.Kind).
		WithHint("use host, host-copy, a directory, an archive, or SANDBOX[@REF]")
}

func relay(progress func(wire.Progress)) func(layer.Progress) {
	return func(p layer.Progress) {
		progress(wire.Progress{Phase: "import", Unit: "bytes", Done: p.Bytes, Total: p.Total})
	}
}

// importBase makes a layer by run and records it as a base.
func (e *Engine) importBase(
	ctx context.Context, b meta.Base, run func(timeline.LayerID) (layer.Report, error),
) (base, error) {
	id, made, err := e.newLayer()
	if err != nil {
		return base{}, err
	}
	defer made()
	rep, err := run(id)
	if err != nil {
		return base{}, fault.Wrap(err, "import %s", b.Label)
	}
	return e.addBase(ctx, b, id, rep)
}

// addBase records a layer as a base; b.Parent is what it stands on. When that
// fails, the layer is gone. The index of a base that will be found again is there
// before its record is, and means nothing without it.
func (e *Engine) addBase(ctx context.Context, b meta.Base, id timeline.LayerID, rep layer.Report) (base, error) {
	snap, err := timeline.NewSnapshotID(e.Rand)
	if err == nil && b.Key != "" && rep.Index != nil {
		err = e.writeBaseIndex(snap, rep.Index)
	}
	if err != nil {
		return base{}, errors.Join(err, e.Layers.Remove(ctx, id))
	}
	b.ID, b.Top, b.Created = string(snap), snap, e.Now().UTC().Truncate(time.Microsecond)
	s := timeline.Snapshot{
		ID: snap, Parent: b.Parent, Cause: timeline.CauseImport, Created: b.Created,
		Message: "import " + e.cleaners.Formats().Redact(b.Label),
		Stats:   timeline.Stats{Paths: int(rep.Entries), Bytes: rep.Bytes},
	}
	if err := e.DB.AddBase(ctx, b, s, timeline.Route{Top: snap, Below: b.Parent, Layer: id}); err != nil {
		return base{}, errors.Join(err, e.Layers.Remove(ctx, id))
	}
	e.Upkeep.MayBeDeep(snap) // a copy of the host that has been refreshed often
	return base{Base: b, Warnings: warnings(rep)}, nil
}

// maxListed is how many paths a warning names one by one.
const maxListed = 20

func warnings(rep layer.Report) []string {
	var out []string
	list := func(what string, paths []string) {
		for i, p := range paths {
			if i == maxListed {
				out = append(out, fmt.Sprintf("%s: %d more", what, len(paths)-i))
				return
			}
			out = append(out, what+": "+p)
		}
	}
	list("could not be read", rep.Unreadable)
	list("changed", rep.Changed)
	return out
}
