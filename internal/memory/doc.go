// Package memory stores images of memory on disk, by page of 4 KiB: what gVisor writes when it checkpoints a
// sandbox, and restores one from. A page that an earlier image has, or the same image elsewhere, is stored
// once; a page of zeros is not stored at all. docs/FORMAT.md says what each byte means.
//
// An image is a manifest: runs of pages in packs, and two small files. A pack is a file of pages with an
// index of their digests. The id of a pack is the digest of its index, that of an image the digest of its
// manifest, so the id of an image authenticates every byte of it. The disk is never trusted: manifests are
// decoded strictly, and pages are hashed unless they were since the machine was started and their file is
// still the one that was hashed.
//
// The program that is PID 1 in an image, whose code is not in the image, is stored beside: once for all
// images that have the same.
//
// The files that gVisor wrote become the pack, or the cached copy of the image, by rename. The cache holds
// images as gVisor reads them, within a limit; it can be deleted at any time.
//
// Only one process may have a store open, which the lock of the home ensures. The engine and the daemon
// import this package; it imports vfs, fault, undo.
package memory
