package link

import "net/netip"

// PairMTU is the maximum size of an IP packet on a Pair, in bytes. Most of the cost is per packet, so it is large.
// The kernel stores 16,064 bytes of a packet in one piece, with its metadata, and the rest in pages: 65,216 bytes
// take up 64 KiB of the queue limit, and one byte more takes another page. The spare 200 are for kernels with larger
// metadata.
const PairMTU = 65000

// boxDev is the name of the sandbox's interface.
const boxDev = "eth0"

// Interface configures the only network interface of a sandbox whose network stack is a program, at its end of a
// Pair.
//
// It has no hardware address and no neighbours: each packet goes to the gate, whatever the next hop. Packets have no
// link or virtio header, so segments are no longer than MTU allows.
type Interface struct {
	Name string
	MTU  int // of an IP packet, in bytes
	// Addrs are the sandbox's own addresses, each with its network.
	Addrs []netip.Prefix
	// Gateways are the next hops of the default routes, one for each IP version.
	Gateways []netip.Addr
	// NoChecksums means that both ends send TCP and UDP without checksums and do not check them, because the link is
	// memory. IP headers have checksums.
	NoChecksums bool
}

// BoxInterface returns the interface of a sandbox at a Pair. It is the same for all sandboxes, since no two share a
// link. The inside resolves names with Resolvers.
func BoxInterface() Interface {
	return Interface{
		Name:        boxDev,
		MTU:         PairMTU,
		Addrs:       []netip.Prefix{netip.PrefixFrom(Box4(), Bits4), netip.PrefixFrom(Box6(), Bits6)},
		Gateways:    []netip.Addr{Gate4(), Gate6()},
		NoChecksums: true,
	}
}
