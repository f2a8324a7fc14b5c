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
// BUG(signals): in tier workspace, init is not PID 1, and the launcher is in the Landlock domain of the commands. So a
// command can kill or stop init by the number of the launcher's thread, and so ends its own sandbox: kill(2) takes any
// thread's, and acts on the whole process.
//
// Independent parts of init are packages: initlink (the messages between keeper and init), mounts (the primitives of
// the root), procs (reading information about processes), execs (the record of programs) and refusals (the summary of
// refused calls).
//
// It is imported by cmd/coppice-init and, for tier gvisor, by relay. It imports these packages, plan,
// seccomp, notify, rootspec, dirfd, client/wire and fault.
package guest
