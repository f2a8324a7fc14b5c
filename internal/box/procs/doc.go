// Package procs reads about the processes of a sandbox from /proc, and signals them: the list of
// processes, which of them cannot run, the files that they have mapped, and the TCP ports at which
// they listen.
//
// Everything is read through the /proc of the caller, which for init (package guest) has the
// sandbox's processes, and for others the host's. Processes are hostile: names, arguments and
// paths may hold any bytes, a process may end or fork during each read, and a read of its memory
// may block. Functions bound what they return.
//
// It is imported by guest, execs and refusals, which are init, by keeper and gvisor for captures,
// by cgroup, and by box for OwnEnd. It imports initlink, ports/sockets and fault.
package procs
