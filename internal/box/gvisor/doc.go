// Package gvisor is the conductor of tier gvisor: the process, one for each sandbox, that runs gVisor's user-space
// kernel (https://gvisor.dev), which is linked into this program, and mediates between it and the keeper. To the keeper
// it is the sandbox's init, in the same namespaces and with the same id maps. It passes the keeper's messages on to PID
// 1 inside the kernel (relay.Inner) through a relay.
//
// The conductor is PID 1 of a pid namespace that includes gVisor's own processes: when it exits or is killed, they are
// all killed. It has its own root, which contains only the sandbox's files and the program of init.
//
// gVisor starts this program again, as its kernel ("runsc-sandbox") and as the process that opens files for it
// ("runsc-gofer"). In the kernel's process a sink (sink.go) receives the programs that start, and the conductor reports
// them to the keeper. docs/benchmarks.md lists what gVisor supports and what it costs.
//
// The program coppice-sentry consists of this package. It imports relay, initlink, mounts, procs, execs,
// refusals, plan and fault.
package gvisor
