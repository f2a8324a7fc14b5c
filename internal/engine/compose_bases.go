//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/internal/bases"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// base is the base of a sandbox.
type base = bases.Base

// basesConfig returns the configuration of the engine's Bases.
func basesConfig(e *Engine) bases.Config {
	core := basesCore{e}
	return bases.Config{
		Records: e.DB, Layers: e.Layers, Stacks: core, Host: core, Home: e.Home, FS: e.FS, Rand: e.Rand, Log: e.Logger,
		Now:    e.Now,
		Redact: func(text string) string { return e.cleaners.Formats().Redact(text) },
	}
}

// basesCore adapts the engine to bases.Stacks and bases.Host.
type basesCore struct{ e *Engine }

// NewLayer implements bases.Host: it names a layer that is about to be made.
func (c basesCore) NewLayer() (id timeline.LayerID, made func(), err error) { return c.e.newLayer() }

// Dirs returns the directories of the layers that make up a snapshot.
func (c basesCore) Dirs(ctx context.Context, id timeline.SnapshotID) ([]string, error) {
	ids, err := c.e.stacks.Below(ctx, id)
	if err != nil {
		return nil, err
	}
	return c.e.stacks.Dirs(ids), nil
}

// MayBeDeep reports to Upkeep that the chain below a snapshot may need merging.
func (c basesCore) MayBeDeep(id timeline.SnapshotID) { c.e.Upkeep.MayBeDeep(id) }

// Root returns the directory that a host-copy imports.
func (c basesCore) Root() string { return c.e.HostRoot }

// Print returns a cheap fingerprint of the host's system directories.
func (c basesCore) Print() string { return c.e.HostPrint() }

// Import returns the options of a host-copy import.
func (c basesCore) Import() (layer.ImportOptions, error) { return c.e.HostImport() }
