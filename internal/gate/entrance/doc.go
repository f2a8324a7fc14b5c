// Package entrance is the network stack of a sandbox that has none: a locked workspace, whose commands share the host's
// network and so may not hold Internet sockets. Each of their connections is a Unix socket, which init connects to a
// listener of the entrance, with a header that names the destination (package ask). The entrance has the sandbox's
// addresses, at one end of a link.Pair with the gate at the other, and connects to that destination. So a connection of
// a locked workspace is to the gate exactly what a connection of a sandbox with a network stack is: the gate decides,
// and the entrance knows no policy.
//
// The path of a connection:
//
//	listener   a stream for TCP, messages for UDP; further connections than the bounds are closed
//	header     the destination and the descriptors, in one message that must arrive within a second
//	dial       a handshake with the gate, which answers when it has reached the host outside; its error is the status
//	splice     bytes in both directions, with the end of each, or datagrams
//
// The datagrams of UDP are not messages of that connection, but of the far end of a pair, which outlives it: when init
// ends the connection, the datagrams that are queued are sent on, and the far end can be used for another destination.
//
// Port 53 of every address is the gate's own DNS server. What is read from the sandbox is hostile, but it can only harm
// the connection that it is read from. A datagram that the gate refuses is lost, as on a network that filters. A Unix
// socket cannot be reset: a connection that the gate resets ends.
//
// Package process imports it; it imports entrance/ask, gate/link and gate/pipe.
package entrance
