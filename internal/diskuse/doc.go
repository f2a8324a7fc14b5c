//go:build linux

// Package diskuse measures what a home takes on the disk, by what it is for.
//
// It counts the blocks of each file and directory (st_blocks of 512 bytes), and shares those of a file among its
// names: so the files that merged layers share with others by hard links count once in all. What a file system
// shares below files, as reflinks, counts in each file. What a stack of layers shows of a lower layer is in that
// layer alone.
//
// Everything in the home may be written by a sandbox, so a walk never leaves the directory that it began in, and
// what it holds has a bound. No lock is held while files are looked at: what changes meanwhile counts as it is
// found, and what goes away does not count.
//
// It owns no state. The engine's parts never import it.
package diskuse
