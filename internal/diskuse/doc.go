//go:build linux

// Package diskuse measures the disk use of a home, by purpose.
//
// It counts the blocks of each file and directory (st_blocks of 512 bytes), and divides those of a file among its
// hard links: so files that merged layers share count only once in total. Data that a file system shares between
// files, such as reflinks, counts in each file. A file that a stack of layers shows from a lower layer counts only in
// that layer.
//
// A sandbox may write anything in the home, so a walk never leaves the directory in which it began, and its memory is
// bounded. No lock is held during a measurement: a file that changes meanwhile counts as it is found, and one that is
// removed does not count.
//
// It has no state. The engine's parts never import it.
package diskuse
