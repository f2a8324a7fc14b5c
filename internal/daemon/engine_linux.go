package daemon

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/engine"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/undo"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// engineConfig is what newEngine gets.
type engineConfig struct {
	Home             string // absolute, 0700, locked
	RealUID, RealGID int    // outside the daemon's user namespace; -1 when it has none
	Log              *slog.Logger
}

// whole is an engine with what it stands on, so that one Close ends all.
type whole struct {
	*engine.Engine
	db     *meta.DB
	layers *layer.Store
}

// Close ends the engine and closes what it stands on. Keepers run on.
func (w *whole) Close() error {
	return errors.Join(w.Engine.Close(), w.layers.Close(), w.db.Close())
}

// newEngine wires the rooms below into an engine.
func newEngine(ctx context.Context, c engineConfig) (_ backend, err error) {
	var undone undo.Stack
	defer func() { undone.Run(&err) }()
	db, err := meta.Open(ctx, filepath.Join(c.Home, "coppice.db"))
	if err != nil {
		return nil, err
	}
	undone.Push(db.Close)
	layers, err := layer.Open(ctx, vfs.OS(), filepath.Join(c.Home, "layers"))
	if err != nil {
		return nil, err
	}
	undone.Push(layers.Close)
	host, err := newHostFacts(c)
	if err != nil {
		return nil, err
	}
	drivers, err := newDrivers(c.Home, host.root, layers)
	if err != nil {
		return nil, err
	}
	e, err := engine.Open(ctx, engine.Config{
		Home: c.Home, DB: db, Layers: layers, Drivers: drivers, Boxes: boxes{caller: host.caller}, Logger: c.Log,
		BootID: host.bootID, ProbeHost: host.probe, HostPrint: host.print, HostImport: host.importOptions,
	})
	if err != nil {
		return nil, err
	}
	undone.Release()
	return &whole{Engine: e, db: db, layers: layers}, nil
}

// newDrivers makes the drivers that the home's file system has; the probe tells
// people about the others.
func newDrivers(home string, root bool, layers *layer.Store) (map[string]rootfs.Driver, error) {
	deps := rootfs.Deps{Home: home, Root: root, Materialise: func(ctx context.Context, st rootspec.Stack, dst string) error {
		return layers.Materialise(ctx, layers.View(st), dst)
	}}
	out := map[string]rootfs.Driver{}
	for _, name := range []string{"overlay", "copy", "btrfs"} {
		d, err := rootfs.New(name, deps)
		switch {
		case fault.Is(err, fault.Unsupported):
			continue
		case err != nil:
			return nil, err
		}
		out[name] = d
	}
	return out, nil
}
