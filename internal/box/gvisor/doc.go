// Package gvisor is the conductor of tier gvisor: one process for each sandbox that runs
// gVisor's user-space kernel (https://gvisor.dev), which is linked into this program, and
// stands between it and the keeper. To the keeper it is the sandbox's init, in the same
// namespaces and with the same maps of ids; it passes the keeper's messages on to PID 1
// inside the kernel (relay.Inner) through a relay.
//
// It is PID 1 of a pid namespace, in which gVisor's own processes are: when it ends, or is
// killed, nothing of them is left. It lives in a root of its own, where besides the
// sandbox's files there is the program of init alone.
//
// gVisor starts this program again, as its kernel ("runsc-sandbox") and as the process that opens
// files for it ("runsc-gofer"). In the kernel's process a sink of ours (sink.go) is told of the
// programs that are started, of which the conductor tells the keeper. What gVisor can do and what
// it costs is measured in docs/benchmarks.md.
//
// The program coppice-sentry is all of it. It imports relay, initlink, mounts, procs, execs,
// refusals, plan and fault.
package gvisor
