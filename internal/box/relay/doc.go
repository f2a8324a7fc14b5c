// Package relay carries the messages of package initlink, and the descriptors that travel
// with them, over two pipes.
//
// In tier gvisor a sandbox has a kernel of its own, to which the host's cannot pass a
// descriptor. So each descriptor of a message is a stream here: what can be read from the
// one that was sent is written to the one that arrives, and the other way round. At the
// outside the conductor relays between the keeper and the pipes, at the inside PID 1
// between the pipes and init; keeper and init speak as in the other tiers.
//
// While the sandbox stands still for a capture nothing is on the way: from the message
// Freeze on the outside sends nothing, from Frozen on the inside does not, and no frame is
// half written. So a memory image that is taken then can be resumed with other pipes: it is
// greeted by a hello, lets go of what it knew of the other end, and tells of the commands
// that live, each with its streams, in a message Adopt.
//
// Both ends may be imported by box/inner and box/gvisor; it imports box/initlink, and box/guest
// for init.
package relay
