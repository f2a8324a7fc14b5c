// Package execs records the programs that the processes of a sandbox execute, in the tiers in which
// the host's kernel notifies init of each execve(2), and makes labels for snapshots from them.
//
// A Recorder is the part of init (package guest) that receives these calls from package notify. It sends the programs
// to the keeper over the link (package initlink), and learns the exits of their processes from pidfds. A process does
// not execute the program that it asks for until the kernel has loaded it, so the file, arguments and directory of a
// program are read from /proc after that.
//
// Package gvisor, which has its own recorder, uses Labels and the bounds. Package execs
// imports notify, initlink, procs and client/wire.
package execs
