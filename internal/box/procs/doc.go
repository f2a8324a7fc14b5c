// Package procs reads information about the processes of a sandbox from /proc, and signals them: the list of processes,
// which of them cannot run, the files that they have mapped, and the TCP ports on which they listen.
//
// Everything is read through the /proc of the caller. For init (package guest) that shows the sandbox's processes, for
// other callers those of the host. Processes are hostile: names, arguments and paths may hold any bytes, a process may
// end or fork during each read, and a read of its memory may block. The functions bound their results.
//
// For a locked workspace it also records and proves, from outside, that no process is left (ExpectEnd, ProveEnd).
//
// It is imported by guest, execs and refusals, which are init, by keeper and gvisor for captures,
// by cgroup, and by box for OwnEnd and ProveEnd. It imports initlink, mounttable, ports/sockets and fault.
package procs
