//go:build linux

package engine

import "github.com/coppice-dev/coppice/internal/masks"

// masksConfig returns the configuration of the Masks of an engine that has its Policies and stacks.
func masksConfig(e *Engine) masks.Config {
	return masks.Config{
		Policies: e.Policies, Stacks: e.stacks, Home: e.Home, FS: e.FS, ByFiles: e.Layers.RemovesByFiles(),
		Discard: e.discard, Log: e.Logger,
	}
}
