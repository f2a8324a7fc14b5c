// Package process runs the gate of one sandbox, in the program coppice-gate. It switches from one policy to the next
// when one expires, writes the gate's events to the sandbox's journal, and denies everything while it cannot. Package
// control starts the program. It imports gate, gate/control, journal, policy, plan, client/wire and fault.
package process
