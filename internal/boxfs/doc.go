// Package boxfs works on files beneath a root directory that a hostile process writes to at the same time:
// read, write, list, make, remove, move, watch, pack and unpack. It is given a descriptor of the root and the
// user to act as, and does not depend on sandboxes.
//
// Every path is resolved beneath the root by openat2(2) with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS, so
// that ".." and links never lead out of it. The result is opened with O_PATH first, which has no effect on
// it, and is checked; only directories and regular files are ever opened otherwise, and then by their
// descriptor and not by their name. File systems of the kernel (/proc, /sys, /dev) are refused, by the opened
// file and not by its name. All of this is done with the ids and the capabilities of the user, so that it
// permits nothing that the user's commands could not do.
//
// Paths may contain any bytes but NUL, and have any length; a leading slash makes no difference. In a path
// that is longer than a system call accepts, links are followed only in its first 4,094 bytes.
//
// It may be imported by engine; it imports fault and client/wire.
package boxfs
