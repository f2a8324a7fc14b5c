//go:build linux

// Package images keeps what the processes of a sandbox have in memory, as images that belong to
// snapshots: it stores what a frozen box writes, says whether the processes of a snapshot can resume on
// this host, makes an image ready for that, and verifies and drops images.
//
// It owns the images that no snapshot has yet: the directories that boxes write them into, and the time
// from when an image is in the store until a snapshot is recorded that has it. Its lock imaging is held for
// reading during that time, and for writing while images are dropped that no snapshot has. What is in the
// store is in package memory, and which snapshot has what is in package meta. It also owns which boxes have
// their memory kept every so often (Images.KeepEvery); mu guards those, and is a leaf.
//
// Of the engine it needs to know whether the files of a snapshot are intact (Config.Intact), a snapshot of
// a live sandbox (Config.Capture), and what of the host an image depends on. The engine imports it; it never
// imports the engine.
package images
