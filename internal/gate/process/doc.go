// Package process is the process that runs the gate of one sandbox: it steps from one policy to the
// next when their times come, tells the sandbox's journal what happens, and denies everything while
// it cannot. The program coppice-gate is all of it; package control starts that. It imports gate,
// gate/control, journal, policy, plan, client/wire and fault.
package process
