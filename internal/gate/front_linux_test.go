//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// counter is a stack that counts the packets that it receives.
type counter struct{ packets int }

func (c *counter) DeliverNetworkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) { c.packets++ }
func (c *counter) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer)    {}

// workbench is a front without a link. Its test reads what the front sends and counts what it passes.
type workbench struct {
	*front
	passed counter
	sent   int
	told   []Event
	end    func()
}

func newWorkbench(t testing.TB, k kind, p Policy) *workbench {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &workbench{sent: pair[1]}
	g := &Gate{now: func() time.Time { return noon }, pins: newPins()}
	g.policy.Store(&p)
	var wait func()
	g.journal, wait = newJournal(g.now, func(e Event) { w.told = append(w.told, e) })
	w.front = &front{gate: g, fd: pair[0], ethernet: k == veth}
	w.Init(deaf{}, w.front)
	w.Attach(&w.passed)
	w.open()
	w.end = func() {
		g.journal.close()
		wait()
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
	return w
}

// deaf is a link endpoint whose Attach does nothing.
type deaf struct{ stack.LinkEndpoint }

func (deaf) Attach(stack.NetworkDispatcher) {}

// frame passes a packet to the front and returns the reply.
func (w *workbench) frame(proto tcpip.NetworkProtocolNumber, b []byte) []byte {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(bytes.Clone(b))})
	defer pkt.DecRef()
	w.DeliverNetworkPacket(proto, pkt)
	out := make([]byte, 1<<17)
	n, err := unix.Read(w.sent, out)
	if err != nil {
		return nil
	}
	return out[:n]
}

func packet4(proto byte, src, dst string, body ...byte) []byte {
	b := make([]byte, 20, 20+len(body))
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(body)))
	copy(b[12:], netip.MustParseAddr(src).AsSlice())
	copy(b[16:], netip.MustParseAddr(dst).AsSlice())
	return append(b, body...)
}

func packet6(next byte, src, dst string, body ...byte) []byte {
	b := make([]byte, 40, 40+len(body))
	b[0], b[6], b[7] = 0x60, next, 255
	binary.BigEndian.PutUint16(b[4:], uint16(len(body)))
	copy(b[8:], netip.MustParseAddr(src).AsSlice())
	copy(b[24:], netip.MustParseAddr(dst).AsSlice())
	return append(b, body...)
}

const (
	b4, g4 = "192.0.0.2", "192.0.0.1"
	b6, g6 = "fdc0:71ce:9a7e::2", "fdc0:71ce:9a7e::1"
)

func TestFront_DropsInvalidPackets(t *testing.T) {
	overBoth(t, testFrontDropsInvalidPackets)
}

func testFrontDropsInvalidPackets(t *testing.T, k kind) {
	t.Parallel()
	w := newWorkbench(t, k, denyAll{})
	tcp := make([]byte, 20)
	edit := func(b []byte, f func([]byte)) []byte { f(b); return b }
	for what, x := range map[string]struct {
		proto tcpip.NetworkProtocolNumber
		b     []byte
		pass  bool
	}{
		"tcp":                {header.IPv4ProtocolNumber, packet4(6, b4, "1.1.1.1", tcp...), true},
		"udp":                {header.IPv4ProtocolNumber, packet4(17, b4, "1.1.1.1", tcp...), true},
		"tcp6":               {header.IPv6ProtocolNumber, packet6(6, b6, "2606::1", tcp...), true},
		"udp6":               {header.IPv6ProtocolNumber, packet6(17, b6, "2606::1", tcp...), true},
		"padding":            {header.IPv4ProtocolNumber, append(packet4(6, b4, "1.1.1.1", tcp...), 0, 0), true},
		"foreign source":     {header.IPv4ProtocolNumber, packet4(6, "10.0.0.1", "1.1.1.1", tcp...), false},
		"source of the gate": {header.IPv4ProtocolNumber, packet4(6, g4, "1.1.1.1", tcp...), false},
		"foreign source6":    {header.IPv6ProtocolNumber, packet6(6, "fe80::1", "2606::1", tcp...), false},
		"sctp":               {header.IPv4ProtocolNumber, packet4(132, b4, "1.1.1.1", tcp...), false},
		"gre":                {header.IPv4ProtocolNumber, packet4(47, b4, "1.1.1.1", tcp...), false},
		"udplite":            {header.IPv4ProtocolNumber, packet4(136, b4, "1.1.1.1", tcp...), false},
		"ip in ip": {header.IPv4ProtocolNumber, packet4(4, b4, "1.1.1.1", packet4(6, b4, "1.1.1.1", tcp...)...),
			false},
		"a fragment": {header.IPv4ProtocolNumber,
			edit(packet4(17, b4, "1.1.1.1", tcp...), func(b []byte) { b[6] = 0x20 }), false},
		"a tail": {header.IPv4ProtocolNumber, edit(packet4(17, b4, "1.1.1.1", tcp...), func(b []byte) { b[7] = 1 }),
			false},
		"options": {header.IPv4ProtocolNumber,
			edit(packet4(6, b4, "1.1.1.1", tcp...), func(b []byte) { b[0] = 0x46 }), false},
		"too long": {header.IPv4ProtocolNumber, edit(packet4(6, b4, "1.1.1.1", tcp...), func(b []byte) { b[2] = 1 }),
			false},
		"too short": {header.IPv4ProtocolNumber, edit(packet4(6, b4, "1.1.1.1", tcp...), func(b []byte) { b[3] = 19 }),
			false},
		"version":    {header.IPv4ProtocolNumber, packet6(6, b6, "2606::1", tcp...), false},
		"multicast":  {header.IPv4ProtocolNumber, packet4(17, b4, "224.0.0.251", tcp...), false},
		"broadcast":  {header.IPv4ProtocolNumber, packet4(17, b4, "255.255.255.255", tcp...), false},
		"loopback":   {header.IPv4ProtocolNumber, packet4(6, b4, "127.0.0.1", tcp...), false},
		"loopback6":  {header.IPv6ProtocolNumber, packet6(6, b6, "::1", tcp...), false},
		"mapped":     {header.IPv6ProtocolNumber, packet6(6, b6, "::ffff:1.1.1.1", tcp...), false},
		"zero":       {header.IPv4ProtocolNumber, packet4(17, b4, "0.0.0.0", tcp...), false},
		"hop by hop": {header.IPv6ProtocolNumber, packet6(0, b6, "2606::1", tcp...), false},
		"fragment6":  {header.IPv6ProtocolNumber, packet6(44, b6, "2606::1", tcp...), false},
		"routing":    {header.IPv6ProtocolNumber, packet6(43, b6, "2606::1", tcp...), false},
		"redirect": {header.IPv6ProtocolNumber,
			packet6(58, b6, "fdc0:71ce:9a7e::1", append([]byte{137, 0, 0, 0}, make([]byte, 36)...)...), false},
		"advertisement": {header.IPv6ProtocolNumber,
			packet6(58, b6, "ff02::1", append([]byte{134, 0, 0, 0}, make([]byte, 12)...)...), false},
		"unreachable": {header.IPv4ProtocolNumber,
			packet4(1, b4, g4, append([]byte{3, 4, 0, 0, 0, 0, 0, 68}, packet4(6, g4, b4, tcp...)...)...), false},
		"short":   {header.IPv4ProtocolNumber, packet4(6, b4, "1.1.1.1")[:19], false},
		"short6":  {header.IPv6ProtocolNumber, packet6(6, b6, "2606::1")[:39], false},
		"nothing": {header.IPv4ProtocolNumber, nil, false},
		"a VLAN":  {0x8100, packet4(6, b4, "1.1.1.1", tcp...), false},
		"LLDP":    {0x88cc, []byte{1, 2, 3}, false},
	} {
		before := w.passed.packets
		if r := w.frame(x.proto, x.b); r != nil {
			t.Errorf("%s is answered: % x", what, r)
		}
		if pass := w.passed.packets > before; pass != x.pass {
			t.Errorf("%s: passed %v", what, pass)
		}
	}
	w.end()
	if len(w.told) < 6 {
		t.Errorf("%+v", w.told)
	}
}

func TestFront_GateIsOnlyNeighbour(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, veth, policyFunc(func(r Request) Decision {
		if r.Proto == ICMP && r.Addr == netip.MustParseAddr("9.9.9.9") {
			return Decision{Verdict: Allow}
		}
		return Decision{}
	}))
	defer w.end()
	who := func(ip string) []byte {
		b := append([]byte("\x00\x01\x08\x00\x06\x04\x00\x01"+link.BoxMAC), netip.MustParseAddr(b4).AsSlice()...)
		return append(append(b, make([]byte, 6)...), netip.MustParseAddr(ip).AsSlice()...)
	}
	r := w.frame(header.ARPProtocolNumber, who(g4))
	if string(r[:12]) != link.BoxMAC+link.GateMAC ||
		string(r[14:32]) != "\x00\x01\x08\x00\x06\x04\x00\x02"+link.GateMAC+"\xc0\x00\x00\x01" ||
		string(r[32:42]) != link.BoxMAC+"\xc0\x00\x00\x02" {
		t.Errorf("% x", r)
	}
	if r := w.frame(header.ARPProtocolNumber, who("192.0.0.3")); r != nil {
		t.Errorf("% x", r)
	}
	ns := func(target string) []byte {
		body := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr(target).AsSlice()...)
		return packet6(58, b6, "ff02::1:ff00:1", append(body, "\x01\x01"+link.BoxMAC...)...)
	}
	if r = w.frame(header.IPv6ProtocolNumber, ns(g6)); len(r) != 14+40+32 || r[54] != 136 ||
		string(r[len(r)-6:]) != link.GateMAC {
		t.Errorf("% x", r)
	} else if sum(append(bytes.Clone(r[22:54]), r[54:]...), 32+58) != 0 {
		t.Error("the checksum of the advertisement is wrong")
	}
	if r := w.frame(header.IPv6ProtocolNumber, ns("fdc0:71ce:9a7e::3")); r != nil {
		t.Errorf("% x", r)
	}
	ping := []byte{8, 0, 0xff, 0xff, 0, 1, 0, 1, 'x'}
	for ip, ok := range map[string]bool{g4: true, "9.9.9.9": true, "8.8.8.8": false, "10.0.0.1": false} {
		r := w.frame(header.IPv4ProtocolNumber, packet4(1, b4, ip, ping...))
		if (r != nil) != ok {
			t.Errorf("%s: % x", ip, r)
		}
		if ok && (r[34] != 0 || sum(r[14:34], 0) != 0 || sum(r[34:], 0) != 0 || r[len(r)-1] != 'x') {
			t.Errorf("%s: % x", ip, r)
		}
	}
	ping[0] = 128
	if r := w.frame(header.IPv6ProtocolNumber, packet6(58, b6, g6, ping...)); len(r) != 14+40+9 || r[54] != 129 {
		t.Errorf("% x", r)
	}
	if r := w.frame(header.IPv6ProtocolNumber, packet6(58, b6, "2606::1", ping...)); r != nil {
		t.Errorf("% x", r)
	}
	ping[0] = 8
	if r := w.frame(header.IPv4ProtocolNumber, packet4(1, b4, g4, append(ping, make([]byte, maxEcho)...)...)); r != nil {
		t.Errorf("%d bytes", len(r))
	}
}

// TestFront_PairHasNoNeighbours checks that on a link without headers the gate ignores neighbour discovery, but answers
// echo requests.
func TestFront_PairHasNoNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, socket, denyAll{})
	defer w.end()
	gw := netip.MustParseAddr(g6).AsSlice()
	solicitation := packet6(58, b6, "ff02::1:ff00:1", append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, gw...)...)
	if r := w.frame(header.IPv6ProtocolNumber, solicitation); r != nil {
		t.Errorf("% x", r)
	}
	request := append([]byte("\x00\x01\x08\x00\x06\x04\x00\x01"+link.BoxMAC+"\xc0\x00\x00\x02\x00\x00\x00\x00\x00\x00"),
		netip.MustParseAddr(g4).AsSlice()...)
	ping := []byte{8, 0, 0xff, 0xff, 0, 1, 0, 1, 'x'}
	if r := w.frame(header.IPv4ProtocolNumber, packet4(1, b4, g4, ping...)); len(r) != 29 || r[20] != 0 ||
		sum(r[:20], 0) != 0 || sum(r[20:], 0) != 0 {
		t.Errorf("% x", r)
	}
	ping[0] = 128
	if r := w.frame(header.IPv6ProtocolNumber, packet6(58, b6, g6, ping...)); len(r) != 49 || r[40] != 129 {
		t.Errorf("% x", r)
	}
	if before := w.gate.counts.frames.Load(); w.frame(header.IPv6ProtocolNumber, request) != nil ||
		w.gate.counts.frames.Load() != before+1 {
		t.Error("ARP is not dropped")
	}
}

// TestFront_RecordsOptionsBeforeICMP checks that hop-by-hop options hide nothing: only the kernel's own reports about
// multicast groups are dropped without an event.
func TestFront_RecordsOptionsBeforeICMP(t *testing.T) {
	t.Parallel()
	const group = "ff02::16"
	options := func(kind byte) []byte { return []byte{58, 0, 5, 2, 0, 0, 1, 0, kind, 0, 0, 0, 0, 0, 0, 0} }
	w := newWorkbench(t, socket, denyAll{})
	for _, kind := range []byte{131, 132, 143} {
		w.frame(header.IPv6ProtocolNumber, packet6(unix.IPPROTO_HOPOPTS, b6, group, options(kind)...))
	}
	w.frame(header.IPv6ProtocolNumber, packet6(unix.IPPROTO_HOPOPTS, b6, group, options(128)...))
	w.frame(header.IPv6ProtocolNumber, packet6(unix.IPPROTO_HOPOPTS, b6, "2001:db8::1", options(143)...))
	w.end()
	if len(w.told) != 2 || w.told[0].Addr.String() != group || w.told[1].Addr.String() != "2001:db8::1" {
		t.Errorf("%+v", w.told)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(uint16(0x0800), packet4(6, b4, "1.1.1.1", make([]byte, 20)...))
	f.Add(uint16(0x0800), packet4(1, b4, g4, 8, 0, 0, 0, 0, 0, 0, 0))
	f.Add(uint16(0x86dd), packet6(58, b6, g6, 128, 0, 0, 0, 0, 0, 0, 0))
	f.Add(uint16(0x0806),
		[]byte("\x00\x01\x08\x00\x06\x04\x00\x01"+link.BoxMAC+"\xc0\x00\x00\x02\x00\x00\x00\x00\x00\x00\xc0\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, proto uint16, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		for _, k := range []kind{veth, socket} {
			fuzzFrame(t, k, proto, b)
		}
	})
}

func fuzzFrame(t *testing.T, k kind, proto uint16, b []byte) {
	w := newWorkbench(t, k, policyFunc(func(Request) Decision { return Decision{Verdict: Allow} }))
	defer w.end()
	r := w.frame(tcpip.NetworkProtocolNumber(proto), b)
	switch {
	case r == nil:
	case k == veth && (len(r) > len(b)+14+40 || string(r[:12]) != link.BoxMAC+link.GateMAC):
		t.Fatalf("% x is the reply to % x", r, b)
	case k == socket && (len(r) > len(b) || r[0]>>4 != b[0]>>4):
		t.Fatalf("% x is the reply to % x", r, b)
	}
	if r != nil && w.passed.packets > 0 {
		t.Fatal("answered and passed on")
	}
	whole4 := proto == 0x0800 && len(b) >= 20 && (b[9] == 6 || b[9] == 17) && b[0] == 0x45 &&
		string(b[12:16]) == string(link.Box4().AsSlice())
	whole6 := proto == 0x86dd && len(b) >= 40 && (b[6] == 6 || b[6] == 17) &&
		string(b[8:24]) == string(link.Box6().AsSlice())
	if w.passed.packets > 0 && !whole4 && !whole6 {
		t.Fatalf("% x passes", b)
	}
}
