//go:build linux && (amd64 || arm64)

package gate

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// wire returns a gate on one end of a socket, and the other end. The test takes the place of the sandbox's kernel or
// sentry: it needs no namespace and controls every byte.
func wire(t testing.TB, k kind) (*Gate, int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := &book{
		decide: func(r Request) Decision {
			return Decision{Verdict: Allow, TLS: r.Port&1 == 1, Limits: []Limit{{MaxBytes: 1 << 20}}}
		},
		names: map[string][]netip.Addr{"a.example": {netip.MustParseAddr("93.184.216.34")}},
		ttl:   time.Minute,
	}
	g, err := newGate(t.Context(),
		Options{FD: os.NewFile(uintptr(pair[0]), "gate"), Policy: b, Lookup: b.lookup,
			Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
				here, there := net.Pipe()
				there.Close()
				return here, nil
			}}, k == veth)
	if err != nil {
		t.Fatal(err)
	}
	return g, pair[1]
}

// segment encodes a TCP segment with flags, options and a body.
func segment(port uint16, seq, ack uint32, flags byte, options, body []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, 40000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, ack)
	for len(options)%4 != 0 {
		options = append(options, 0)
	}
	options = options[:min(len(options), 40)]
	b = append(b, byte(5+len(options)/4)<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	return append(append(b, options...), body...)
}

// FuzzPackets sends arbitrary packets to a complete gate, and checks after each that the gate still answers DNS.
func FuzzPackets(f *testing.F) {
	f.Add(byte(0), byte(2), uint16(80), []byte{2, 4, 0xff, 0x98}, []byte{})
	f.Add(byte(0), byte(0x12), uint16(443), []byte{}, []byte("x"))
	f.Add(byte(1), byte(0), uint16(53), []byte{}, ask("a.example", dnsmessage.TypeA, true))
	f.Add(byte(2), byte(2), uint16(53), []byte{1, 3, 3, 14}, []byte("early"))
	f.Add(byte(3), byte(0), uint16(443), []byte{}, []byte("quic"))
	f.Add(byte(4), byte(8), uint16(0), []byte{}, []byte("raw"))
	fds, buf := map[kind]int{}, make([]byte, 1<<17)
	for _, k := range []kind{veth, socket} {
		g, fd := wire(f, k)
		f.Cleanup(func() {
			g.Close()
			unix.Close(fd)
		})
		fds[k] = fd
	}
	f.Fuzz(func(t *testing.T, kind, flags byte, port uint16, options, body []byte) {
		if len(body) > 60000 {
			return
		}
		to, to6 := "93.184.216.34", "2606::1"
		if port == 53 {
			to, to6 = g4, g6
		}
		datagram := append(
			binary.BigEndian.AppendUint16(
				binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{0x9c, 0x40}, port), uint16(8+len(body))),
				0), body...)
		var frame []byte
		switch kind % 5 {
		case 0:
			frame = packet4(6, b4, to, segment(port, 1000, 0, flags, options, body)...)
		case 1:
			frame = packet4(17, b4, to, datagram...)
		case 2:
			frame = packet6(6, b6, to6, segment(port, 1000, 0, flags, options, body)...)
		case 3:
			frame = packet6(17, b6, to6, datagram...)
		case 4:
			frame = packet4(flags, b4, to, body...)
		}
		if frame[0]>>4 == 4 {
			binary.BigEndian.PutUint16(frame[10:], sum(frame[:20], 0))
		}
		for k, fd := range fds {
			survives(t, k, fd, frame, buf)
		}
	})
}

// survives sends a packet to the gate at the other end of fd, and then sends queries until one is answered.
func survives(t *testing.T, k kind, fd int, packet, buf []byte) {
	kinds, head := map[byte]string{4: "\x08\x00", 6: "\x86\xdd"}, 0
	if k == veth {
		head = 14
	}
	send := func(packet []byte) {
		header := []byte(link.GateMAC + link.BoxMAC + kinds[packet[0]>>4])
		unix.Write(fd, append(header[:head:head], packet...)) // dropped if the socket is full, as on any link
	}
	send(packet)
	q := ask("a.example", dnsmessage.TypeA, false)
	alive := packet4(17, b4, g4, append([]byte{0x9c, 0x41, 0, 53, 0, byte(8 + len(q)), 0, 0}, q...)...)
	binary.BigEndian.PutUint16(alive[10:], sum(alive[:20], 0))
	for range 100 {
		send(alive)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 1000); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		for {
			n, err := unix.Read(fd, buf)
			if err != nil {
				break
			}
			if b := buf[head:]; n > head+28 && b[0]>>4 == 4 && b[9] == 17 && b[22] == 0x9c && b[23] == 0x41 {
				return
			}
		}
	}
	t.Fatalf("the gate no longer answers over a %s", k)
}
