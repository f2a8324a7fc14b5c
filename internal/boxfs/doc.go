// Package boxfs accesses files in a root directory to which a hostile process writes at the same time: read, write,
// list, create, remove, move, watch, pack and unpack. It gets a descriptor of the root and the user to act as, and
// does not depend on sandboxes.
//
// Every path is resolved in the root by openat2(2) with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, so that ".." and
// links never lead out of it. The result is first opened with O_PATH, which has no effect on it, and checked. Only
// directories and regular files are opened otherwise, and then by their descriptor and not by their name. Files on
// file systems of the kernel (/proc, /sys, /dev) are refused, based on the opened file and not on its name. All of
// this is done with the IDs and the capabilities of the user, so that it permits nothing that the user's commands
// could not do.
//
// Paths may contain any bytes except NUL, and have any length; a leading slash makes no difference. In a path that is
// longer than a system call accepts, links are followed only in its first 4,094 bytes.
//
// The engine and the packages of its parts import it; it imports archive, dirfd, fault, limit and client/wire.
package boxfs
