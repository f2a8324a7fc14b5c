// Package process runs the gate of one sandbox, in the program coppice-gate. It switches from one policy to the next
// when one expires, writes the gate's events to the sandbox's journal, and denies everything while it cannot. For a
// sandbox without a network stack it also runs the entrance. Package control starts the program. It imports gate,
// gate/control, gate/entrance, gate/link, journal, policy, plan, client/wire and fault.
package process
