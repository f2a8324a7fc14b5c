// Package mounts creates the mounts of a sandbox with the system calls that work on descriptors (fsopen, open_tree,
// move_mount).
//
// A mount is created detached and then attached to an open mount point. The root belongs to the sandbox, which may have
// replaced names in it by links, so a mount point is opened below a directory without following links. The parts of the
// host that a sandbox gets are cloned (Host) before the root is entered, and attached after the host's root is
// detached.
//
// It is imported by guest (init), for the root of the sandbox, and by gvisor, for the root of the
// conductor. It imports dirfd and fault.
package mounts
