// Package boxfs works on files beneath a root directory that a hostile process writes to at the
// same time: read, write, list, make, remove, move, watch, pack and unpack. It is given a
// descriptor of the root and the user to act as, and knows nothing of sandboxes.
//
// Every path is resolved beneath the root by openat2(2) with RESOLVE_IN_ROOT and
// RESOLVE_NO_MAGICLINKS, so that ".." and links, whatever they say, lead nowhere
// but inside. What is found is opened with O_PATH first, which does nothing to it,
// and is looked at; nothing but a directory or a regular file is ever opened
// otherwise, and then by its descriptor and not by its name. File systems of the
// kernel's (/proc, /sys, /dev) are refused, by what was opened and not by how it
// is called. All of it is done with the ids and the capabilities of the user, so
// that nothing can be done here that a command of his could not do.
//
// Paths are of any bytes but NUL, and of any length; a leading slash does not
// matter. In one that is longer than a system call takes, links are followed in
// its first 4,094 bytes alone.
//
// It may be imported by engine; it imports fault and client/wire.
package boxfs
