//go:build linux

// Package images stores the memory of the processes of sandboxes, as images that belong to snapshots: it stores
// what a frozen box writes, decides whether the processes of a snapshot can resume on this host, prepares an
// image for that, and verifies and removes images.
//
// It owns the images that no snapshot has yet: the directories that boxes write them into, and images that are in the
// store before their snapshot is recorded. The lock imaging is held for reading during that time, and for writing
// while unreferenced images are dropped. Package memory has the content of the store, and package meta which snapshot
// has which image. It also owns the set of boxes whose memory is saved periodically (Images.KeepEvery); mu guards it,
// and is a leaf.
//
// It needs of the engine whether the files of a snapshot are intact (Config.Intact), a snapshot of a live sandbox
// (Config.Capture), and which properties of the host an image depends on. The engine imports it; it never imports the
// engine.
package images
