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
}

// base finds or makes what a request's sandbox stands on. What is imported once
// is shared by all sandboxes that are made from the same thing.
func (e *Engine) base(ctx context.Context, req wire.CreateRequest, progress func(wire.Progress)) (base, error) {
	switch req.From.Kind {
	case "", wire.SourceHost:
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

// hostCopy finds or makes the copy of the host's system directories. When they
// changed since, it is refreshed: only the difference is copied.
func (e *Engine) hostCopy(ctx context.Context, progress func(wire.Progress)) (base, error) {
	const key = "host-copy"
	e.importing.Lock()
	defer e.importing.Unlock()
	print := e.HostPrint()
	b, err := e.DB.Base(ctx, key)
	if err == nil && b.Print == print {
		return base{Base: b}, nil
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return base{}, err
	}
	opts, oerr := e.HostImport()
	if oerr != nil {
		return base{}, oerr
	}
	opts.Progress = relay(progress)
	fresh := meta.Base{Key: key, Label: key, Print: print}
	return e.importBase(ctx, fresh, func(id timeline.LayerID) (layer.Report, error) {
		return e.Layers.ImportDir(ctx, id, "/", opts)
	})
}

// importBase makes a layer by run and records it as a base.
func (e *Engine) importBase(ctx context.Context, b meta.Base, run func(timeline.LayerID) (layer.Report, error)) (base, error) {
	id, made, err := e.newLayer()
	if err != nil {
		return base{}, err
	}
	defer made()
	rep, err := run(id)
	if err != nil {
		return base{}, fault.Wrap(err, "import %s", b.Label)
	}
	snap, err := timeline.NewSnapshotID(e.Rand)
	if err != nil {
		return base{}, err
	}
	b.ID, b.Top, b.Created = string(snap), snap, e.Now().UTC().Truncate(time.Microsecond)
	s := timeline.Snapshot{
		ID: snap, Parent: b.Parent, Cause: timeline.CauseImport, Message: "import " + b.Label, Created: b.Created,
		Stats: timeline.Stats{Paths: int(rep.Entries), Bytes: rep.Bytes},
	}
	if err := e.DB.AddBase(ctx, b, s, timeline.Route{Top: snap, Below: b.Parent, Layer: id}); err != nil {
		return base{}, errors.Join(err, e.Layers.Remove(ctx, id))
	}
	e.wake()
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
