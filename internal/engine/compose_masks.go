//go:build linux

package engine

import "github.com/coppice-dev/coppice/internal/masks"

// masksConfig is what the Masks of an engine, which has its Policies and stacks, are made of.
func masksConfig(e *Engine) masks.Config {
	return masks.Config{
		Policies: e.Policies, Stacks: e.stacks, Home: e.Home, FS: e.FS, Discard: e.discard, Log: e.Logger,
	}
}
