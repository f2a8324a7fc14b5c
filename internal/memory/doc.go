// Package memory stores memory images on disk, by page of 4 KiB: the files that gVisor writes when it checkpoints a
// sandbox, and from which it restores one. A page that an earlier image has, or the same image elsewhere, is stored
// once; a page of zeros is not stored at all. docs/FORMAT.md defines the format.
//
// An image is a manifest, which lists runs of pages in packs, and two small files. A pack is a file of pages with an
// index of their digests. The id of a pack is the digest of its index, and that of an image the digest of its
// manifest, so the id of an image authenticates every byte of it. The disk is never trusted: manifests are decoded
// strictly, and pages are hashed, unless they were hashed since the machine was started and their file is still the
// same.
//
// The program that is PID 1 in an image, whose code is not in the image, is stored separately, once for all images
// that have the same one.
//
// The files that gVisor wrote become the pack, or the cached copy of the image, by rename. The cache holds images as
// gVisor reads them, within a limit. It can be deleted at any time.
//
// Only one process may have a store open, which the lock of the home ensures. The engine and the daemon import this
// package; it imports vfs, fault, undo.
package memory
