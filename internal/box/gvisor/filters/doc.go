// Package filters gives gVisor the programs of its own seccomp filters ready made. Its
// kernel compiles that of itself anew in each process, which takes as long as a command
// does; where gVisor is built with Bazel the programs are made at build time and put into
// two maps that its packages look into first (runsc/boot/filter, filter_precompiled.go).
// The module that Go programs use has the maps and leaves them empty. Here they are filled.
//
// The programs are gVisor's own, made by its compiler of its rules; a test makes them again
// and compares, so that another version of gVisor cannot meet those of an older one. They
// hold the number of the process, 1, which both of gVisor's processes have.
//
// Package gvisor imports it; it imports nothing of ours.
package filters
