// Package mounts makes the mounts of a sandbox, by the system calls that work with descriptors
// (fsopen, open_tree, move_mount).
//
// A mount is made detached and then attached to an open mount point. The root belongs to the
// sandbox, which may have replaced names in it by links, so a mount point is opened beneath a
// directory without following any. The parts of the host that a sandbox gets are cloned (Host)
// before the root is entered, and attached after the host's root is detached.
//
// It is imported by guest (init), for the root of the sandbox, and by gvisor, for the root of the
// conductor. It imports dirfd and fault.
package mounts
