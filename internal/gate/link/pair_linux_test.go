//go:build linux && (amd64 || arm64)

package link

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/limit"
)

func pair(t *testing.T) (box, gate *os.File) {
	t.Helper()
	box, gate, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		box.Close()
		gate.Close()
	})
	return box, gate
}

// TestPair_CarriesPackets checks that packets of all sizes keep their boundaries, and that no child process inherits an
// end.
func TestPair_CarriesPackets(t *testing.T) {
	t.Parallel()
	box, gate := pair(t)
	buf := make([]byte, 1<<17)
	for _, ends := range [][2]*os.File{{box, gate}, {gate, box}} {
		if flags, err := unix.FcntlInt(ends[0].Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s is inherited: %v", ends[0].Name(), err)
		}
		if yes, err := IsPair(ends[0]); !yes || err != nil {
			t.Errorf("%s: %v, %v", ends[0].Name(), yes, err)
		}
		for _, n := range []int{1, MinMTU, PairMTU} {
			if _, err := ends[0].Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{1, MinMTU, PairMTU} {
			if got, err := ends[1].Read(buf); got != n || err != nil {
				t.Errorf("%d bytes of %d, %v", got, n, err)
			}
		}
	}
}

// TestPair_QueuesUpToLimit checks that packets are queued up to the system's limit, and that a non-blocking sender then
// gets an error.
func TestPair_QueuesUpToLimit(t *testing.T) {
	t.Parallel()
	box, gate := pair(t)
	size, err := unix.GetsockoptInt(int(box.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := os.ReadFile("/proc/sys/net/core/wmem_max")
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * min(limit.LinkQueue, number(allowed)); size < want { // the kernel doubles it, for its metadata
		t.Errorf("the queue limit is %d bytes, want at least %d", size, want)
	}
	packet, n := bytes.Repeat([]byte{4 << 4}, PairMTU), 0
	for ; err == nil; n++ {
		err = unix.Sendmsg(int(box.Fd()), packet, nil, nil, unix.MSG_DONTWAIT)
	}
	if n--; !errors.Is(err, unix.EAGAIN) || n*(PairMTU+10000) < size/2 {
		t.Errorf("%d packets are queued in %d bytes, %v", n, size, err)
	}
	if _, err := gate.Read(make([]byte, PairMTU)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(int(box.Fd()), packet[:MinMTU], nil, nil, unix.MSG_DONTWAIT); err != nil {
		t.Error(err)
	}
}

func number(text []byte) (n int) {
	for _, c := range bytes.TrimSpace(text) {
		n = 10*n + int(c-'0')
	}
	return n
}

// TestBoxInterface_MatchesGate checks that the sandbox's addresses and gateways are those that the gate expects.
func TestBoxInterface_MatchesGate(t *testing.T) {
	t.Parallel()
	i := BoxInterface()
	if i.Name != "eth0" || i.MTU != PairMTU || i.MTU < MinMTU || i.MTU > MaxMTU || len(i.Addrs) != len(i.Gateways) {
		t.Errorf("%+v", i)
	}
	for n, p := range i.Addrs {
		if gw := i.Gateways[n]; !p.Contains(gw) || p.Addr() == gw {
			t.Errorf("%v, gateway %v", p, gw)
		}
		if p.Addr() != Box4() && p.Addr() != Box6() {
			t.Errorf("%v is not an address of the sandbox", p)
		}
	}
	i.Addrs[0] = netip.Prefix{}
	if BoxInterface().Addrs[0] == i.Addrs[0] {
		t.Error("the callers of BoxInterface share its slices")
	}
}

func TestIsPair_RefusesOtherDescriptors(t *testing.T) {
	t.Parallel()
	l, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	udp, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	for _, f := range []*os.File{udp, r} {
		if yes, err := IsPair(f); yes || err == nil {
			t.Errorf("%s is reported as a link", f.Name())
		}
	}
}
