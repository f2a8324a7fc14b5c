// Package gate is the network of one sandbox, in user space: its packets, names, decisions and connections. The
// sandbox's network namespace, or its own user-space network stack, has one interface; its packets end in a network
// stack that runs outside of the sandbox. There is no route, no firewall and no proxy variable: what the policy does
// not allow does not exist.
//
// The path of a packet, and what each step refuses:
//
//	front     frames: only whole IPv4 and IPv6 packets of TCP, UDP and echo, from the
//	          sandbox's own addresses; where the link has neighbours, ARP and neighbour
//	          discovery for the gate alone
//	dns       queries to the gate's own address: one question, forwarded only if the
//	          policy allows the name; the answer is pinned
//	pins      which names an address was resolved from, for this sandbox, until when
//	rule      a connection is decided by the names that its address was resolved from
//	desk      pending requests, which the policy neither allows nor denies: queries and
//	          handshakes are held until the policy changes, or a timeout
//	hello     a connection that must be TLS starts with a ClientHello for an allowed name; any
//	          other that is TLS names an allowed server
//	splice    bytes in both directions, counted, with deadlines and budgets
//	inspect   for rules about HTTP requests instead of splice: package inspect ends TLS,
//	          and the policy decides about each request
//
// Everything from the sandbox is hostile, and so are DNS answers. In doubt, and when a bound is reached, the gate
// denies.
//
// What the gate cannot see: inside TLS it knows only the server name, so that a host which serves other names on the
// same connection (domain fronting) is trusted with them unless its requests are inspected. If several names share an
// address and the traffic is not TLS, any allowed one of them opens the port. A wildcard rule lets a sandbox send
// data, as labels, to the DNS servers of the domain.
//
// Only package process imports it, and no code inside a sandbox does.
package gate
