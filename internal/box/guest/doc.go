// Package guest implements init, the program that runs inside a box as PID 1 of the sandbox's namespaces (in tier
// workspace as a child of the keeper, without namespaces). Init sets up the root, serves system call notifications,
// starts commands and reaps processes.
//
// Commands are started from one thread of init, the launcher, which has dropped everything that a command must not
// have: capabilities, ids, the right to gain privileges, and every call that the filters refuse. Credentials, filters
// and Landlock domains belong to threads, and a child inherits those of the thread that forks it. So no code that could
// be manipulated runs between fork and exec, no second process has to be kept running, and all commands share one
// Landlock domain. Init itself cannot be traced or read from inside, since it is not dumpable, and PID 1 receives a
// signal from its own namespace only if it has a handler for it.
//
// In tier workspace, init is not PID 1, and Landlock takes the launcher for one of the commands, so that a signal to it
// by the number of its thread would reach init. The filter refuses the calls that send one (seccomp.Options.Guard). The
// launcher must be in the domain of the commands: only a fork passes a domain on, and commands in different domains
// could not signal each other. As a separate process it could be ended by them.
//
// Independent parts of init are packages: initlink (the messages between keeper and init), mounts (the primitives of
// the root), procs (reading information about processes), execs (the record of programs) and refusals (the summary of
// refused calls).
//
// It is imported by cmd/coppice-init and, for tier gvisor, by relay. It imports these packages, plan, seccomp, notify,
// landlock, rootspec, dirfd, thread, client/wire and fault.
package guest
