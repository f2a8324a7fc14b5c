//go:build linux

// Package bases imports the bases of sandboxes: directories, archives, and a copy of the host, which is refreshed for
// each sandbox that asks for it. A base is a layer with a snapshot, and is shared by all sandboxes that start from
// the same source.
//
// The package owns the directory bases of COPPICE_HOME, which holds the index of the copy of the host, and one lock,
// importing: one caller at a time imports bases with a key. The records of bases are in package meta, and their
// layers in package layer.
//
// The package needs from the engine names for layers that are being made, and the directories of the layers below a
// snapshot (Stacks). The engine imports it; it never imports the engine.
package bases
