// Package relay carries the messages of package initlink, with their descriptors, over two pipes.
//
// In tier gvisor a sandbox has its own kernel, to which the host's kernel cannot pass a descriptor. So each descriptor
// of a message becomes a stream: bytes that can be read from the descriptor at one end are written to its counterpart
// at the other, in both directions. On the outside the conductor relays between the keeper and the pipes, on the inside
// PID 1 relays between the pipes and init. Keeper and init communicate as in the other tiers.
//
// While the sandbox is frozen for a capture nothing is in transit: from the message Freeze on the outside sends
// nothing, from Frozen on the inside sends nothing, and no frame is half written. So a memory image that is taken then
// can be resumed with other pipes: the outside sends a hello, and the inside drops its state about the old outside and
// reports the running commands, each with its streams, in Adopt messages.
//
// The package may be imported by cmd/coppice-init and box/gvisor; it imports box/initlink, and box/guest for init.
package relay
