// Package layer keeps layers on disk: it captures what a live root changed, imports or builds bases, stacks,
// merges, compares, materialises, finalizes (Finalize), verifies and removes. A layer is a directory `<id>` of
// the store that holds `fs`, a tree in overlay form, and once it is finalized `manifest`; docs/FORMAT.md says
// what each byte means. Layers are immutable: after the rename that makes one visible only Finalize (which adds
// the manifest) and Remove touch it.
//
// Trees in overlay form were shaped by untrusted programs. This package walks them by directory descriptors,
// never follows a symbolic link, and opens only regular files and directories.
//
// The process must be uid 0, of the machine or of a user namespace, so that modes never deny it access. The engine,
// the drivers' tests and the daemon import this package; it imports archive, dirfd, fault, layer/format, limit,
// quota, removal, rootspec, timeline, undo and vfs.
package layer
