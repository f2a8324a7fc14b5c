//go:build linux

package bases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Records stores the records of bases.
type Records interface {
	// Base finds the newest base with a key. It returns NotFound if there is none.
	Base(ctx context.Context, key string) (meta.Base, error)
	// AddBase records a base with its snapshot and route.
	AddBase(ctx context.Context, b meta.Base, s timeline.Snapshot, r timeline.Route) error
	// SetBasePrint records that a base equals its source as it is now, with that fingerprint.
	SetBasePrint(ctx context.Context, id, print string) error
	// Grown returns the size in bytes of the import at the bottom of a base, and of all refreshes above it.
	Grown(ctx context.Context, top timeline.SnapshotID) (whole, since int64, err error)
}

// Stacks gives Bases access to layers.
type Stacks interface {
	// NewLayer names a layer that is about to be made. Until made is called, garbage collection does not remove it
	// although it has no record.
	NewLayer() (id timeline.LayerID, made func(), err error)
	// Dirs returns the directories of the layers that make up a snapshot, topmost first.
	Dirs(ctx context.Context, id timeline.SnapshotID) ([]string, error)
	// MayBeDeep reports that the chain below a snapshot may need merging.
	MayBeDeep(id timeline.SnapshotID)
}

// Host describes the host to import.
type Host interface {
	// Root returns the directory to copy.
	Root() string
	// Print returns a cheap fingerprint of the host's system directories.
	Print() string
	// Import returns the options of the import, which say what is copied.
	Import() (layer.ImportOptions, error)
}

// Config configures Bases. All fields are required.
type Config struct {
	Records Records
	Layers  *layer.Store
	Stacks  Stacks
	Host    Host
	Home    string // COPPICE_HOME
	FS      vfs.FS // the file system that Home is written through
	// Redact redacts secrets in a text that will be recorded.
	Redact func(text string) string
	Rand   io.Reader
	Now    func() time.Time
	Log    *slog.Logger
}

// Bases finds and makes bases. New makes one. All methods are safe for concurrent use.
type Bases struct {
	config Config // never changed

	importing sync.Mutex // held while a base with a key is imported; guards Home/bases
}

// New returns Bases.
func New(c Config) *Bases { return &Bases{config: c} }

// Base is the root file system that a sandbox starts from.
type Base struct {
	meta.Base
	Warnings []string
	Notes    []string // what was done, for users
}

// For finds or makes the base of a sandbox in a tier, as requested. An import is shared by all sandboxes that are
// made from the same source.
func (b *Bases) For(
	ctx context.Context, req wire.CreateRequest, tier string, progress func(wire.Progress),
) (Base, error) {
	switch req.From.Kind {
	case "", wire.SourceHost:
		if req.Repo != nil && tier == string(policy.Workspace) {
			return Base{}, nil // the sandbox contains only the repository
		}
		return Base{Base: meta.Base{Host: true, Label: "host"}}, nil
	case wire.SourceHostCopy:
		return b.hostCopy(ctx, progress)
	case wire.SourceDir:
		return b.importBase(ctx, meta.Base{Label: req.From.Path}, func(id timeline.LayerID) (layer.Report, error) {
			return b.config.Layers.ImportDir(ctx, id, req.From.Path, layer.ImportOptions{Progress: relay(progress)})
		})
	case wire.SourceTar:
		if req.Tar == nil {
			return Base{}, fault.New(fault.Invalid, "the archive is missing from the request")
		}
		return b.importBase(ctx, meta.Base{Label: req.From.Path}, func(id timeline.LayerID) (layer.Report, error) {
			return b.config.Layers.ImportTar(ctx, id, req.Tar, layer.TarOptions{Progress: relay(progress)})
		})
	}
	return Base{}, fault.New(fault.Invalid, "unknown source %q", req.From.Kind).
		WithHint("use host, host-copy, a directory, an archive, or SANDBOX[@REF]")
}

func relay(progress func(wire.Progress)) func(layer.Progress) {
	return func(p layer.Progress) {
		progress(wire.Progress{Phase: "import", Unit: "bytes", Done: p.Bytes, Total: p.Total})
	}
}

// importBase makes a layer with run and records it as a base.
func (b *Bases) importBase(
	ctx context.Context, of meta.Base, run func(timeline.LayerID) (layer.Report, error),
) (Base, error) {
	id, made, err := b.config.Stacks.NewLayer()
	if err != nil {
		return Base{}, err
	}
	defer made()
	rep, err := run(id)
	if err != nil {
		return Base{}, fault.Wrap(err, "import %s", of.Label)
	}
	return b.Add(ctx, of, id, rep)
}

// Importing waits for imports of bases with a key, and prevents others until done is called. The caller must
// not hold a lock.
func (b *Bases) Importing() (done func()) {
	b.importing.Lock()
	return b.importing.Unlock
}

// Add records a layer, which has just been made, as a base; of.Parent is the snapshot below it. If that fails, the
// layer is removed. The index of a base with a key is written before the record, and has no meaning without it. For
// such a base the caller holds Importing.
func (b *Bases) Add(ctx context.Context, of meta.Base, id timeline.LayerID, rep layer.Report) (Base, error) {
	snap, err := timeline.NewSnapshotID(b.config.Rand)
	if err == nil && of.Key != "" && rep.Index != nil {
		err = b.writeIndex(snap, rep.Index)
	}
	if err != nil {
		return Base{}, errors.Join(err, b.config.Layers.Remove(ctx, id))
	}
	of.ID, of.Top, of.Created = string(snap), snap, b.config.Now().UTC().Truncate(time.Microsecond)
	s := timeline.Snapshot{
		ID: snap, Parent: of.Parent, Cause: timeline.CauseImport, Created: of.Created,
		Message: "import " + b.config.Redact(of.Label),
		Stats:   timeline.Stats{Paths: int(rep.Entries), Bytes: rep.Bytes},
	}
	if err := b.config.Records.AddBase(ctx, of, s, timeline.Route{Top: snap, Below: of.Parent, Layer: id}); err != nil {
		return Base{}, errors.Join(err, b.config.Layers.Remove(ctx, id))
	}
	b.config.Stacks.MayBeDeep(snap) // a copy of the host may have been refreshed often
	return Base{Base: of, Warnings: warnings(rep)}, nil
}

func warnings(rep layer.Report) []string {
	var out []string
	list := func(what string, paths []string) {
		for i, p := range paths {
			if i == limit.Listed {
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
