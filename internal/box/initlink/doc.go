// Package initlink is the stream between the keeper of a sandbox and init: the messages that
// travel over it, and the link that carries them with their descriptors.
//
// One end is the keeper (package keeper). The other is init (package guest) or, in tier gvisor, the conductor (package
// gvisor), which passes messages on to init through package relay. Init is part of a memory image, so it may be from
// another build than keeper and conductor. A receiver therefore refuses messages and fields that it does not know
// (Message.Obey, MsgUnknown), and plan.Protocol is raised when a message changes.
//
// It is imported by guest, keeper, relay and gvisor, by procs, execs and refusals, which make
// messages, and by box and protocol, which pass parts of them on to the daemon. It imports plan,
// client/wire, rootspec and fault.
package initlink
