// Package gate is the network of one sandbox, in user space: its packets, names, decisions
// and connections. The sandbox's network
// namespace, or its own user-space network stack, holds one interface; its packets end in
// a user-space network stack that runs outside of the sandbox. There is no route, no firewall and no
// proxy variable: what the policy does not allow does not exist.
//
// The way of a packet, and what each step refuses:
//
//	front     frames: only whole IPv4 and IPv6 packets of TCP, UDP and echo, from the
//	          sandbox's own addresses; where the link has neighbours, ARP and neighbour
//	          discovery for the gate alone
//	dns       queries to the gate's own address: one question, asked outside only
//	          when the policy allows the name; what comes back is pinned
//	pins      which names an address was resolved from, for this sandbox, until when
//	rule      a connection is decided by the names that its address was resolved from
//	desk      what the policy neither allows nor denies waits here for a person: queries and
//	          handshakes are held until there is another policy, or patience ends
//	hello     a connection that must be TLS begins with a ClientHello for such a name; one that is TLS
//	          all the same names no other
//	splice    bytes both ways, counted, with deadlines and budgets
//	inspect   or, where rules are about HTTP requests, each of these by itself: package
//	          inspect ends TLS, and has the policy decide on every one
//
// Everything that comes from the sandbox is hostile, and so is what DNS answers.
// When in doubt, and when a bound is reached, the answer is no.
//
// What the gate cannot see: inside TLS it knows the server name and nothing more, so
// that a host which serves other names on the same connection (domain fronting) is
// trusted with them where its requests are not inspected. Where several names share an
// address and the traffic is not TLS, any of them that is allowed opens the port. A
// wildcard rule lets a sandbox send bytes to who answers for the domain, as labels.
//
// Package process imports it, and nothing inside of a sandbox does.
package gate
