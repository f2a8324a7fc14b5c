package link

import "net/netip"

// PairMTU is the longest IP packet of a Pair, in bytes. Most of the cost is that of the
// packet, so it is long. The kernel keeps 16,064 bytes of one in one piece, with what it
// notes of it, and the rest in pages: 65,216 bytes take up 64 KiB of what may be queued,
// and one byte more takes a page more. The odd 200 are for kernels that note more.
const PairMTU = 65000

// boxDev is the name of the sandbox's interface, in it.
const boxDev = "eth0"

// Interface is the one network interface of a sandbox whose network stack is a program,
// at its end of a Pair: what that stack is to be told.
//
// It has no hardware address and no neighbours: each packet goes to the gate, whatever
// the next hop, and nobody is asked for. Packets are IP alone, without a header of the
// link or of virtio, so segments are no longer than MTU allows.
type Interface struct {
	Name string
	MTU  int // of an IP packet, in bytes
	// Addrs are the sandbox's own, each with the network that it is in.
	Addrs []netip.Prefix
	// Gateways are the next hops of the default routes, one of each kind.
	Gateways []netip.Addr
	// NoChecksums says that TCP and UDP are sent without checksums and taken without
	// looking at them, by both ends: the wire is memory. IP headers have theirs.
	NoChecksums bool
}

// BoxInterface gives the interface of a sandbox at a Pair. It is the same for all: no two
// share a wire. The inside resolves names with Resolvers.
func BoxInterface() Interface {
	return Interface{
		Name:        boxDev,
		MTU:         PairMTU,
		Addrs:       []netip.Prefix{netip.PrefixFrom(Box4(), Bits4), netip.PrefixFrom(Box6(), Bits6)},
		Gateways:    []netip.Addr{Gate4(), Gate6()},
		NoChecksums: true,
	}
}
