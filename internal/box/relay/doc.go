// Package relay carries the messages of package initlink, with their descriptors, over two pipes.
//
// In tier gvisor a sandbox has its own kernel, to which the host's cannot pass a descriptor. So each
// descriptor of a message is a stream here: bytes that can be read from the descriptor at one end are written
// to its counterpart at the other, in both directions. On the outside the conductor relays between the keeper
// and the pipes, on the inside PID 1 between the pipes and init; keeper and init communicate as in the other
// tiers.
//
// While the sandbox is frozen for a capture nothing is in transit: from the message Freeze on the outside
// sends nothing, from Frozen on the inside does not, and no frame is half written. So a memory image that is
// taken then can be resumed with other pipes: the outside sends a hello; the inside then drops its state
// about the old outside, and reports the running commands, each with its streams, in messages Adopt.
//
// Both ends may be imported by box/inner and box/gvisor; it imports box/initlink, and box/guest for init.
package relay
