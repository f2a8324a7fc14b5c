//go:build linux && (amd64 || arm64)

package pipe

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/limit"
)

// bed is a pipe without a gate. The packets that it delivers are sent to got; other is the hostile end.
type bed struct {
	*Pipe
	other *os.File
	got   chan []byte
	lost  chan struct{}
	over  chan error
}

func (b *bed) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	b.got <- bytes.Clone(pkt.Data().AsRange().ToSlice())
}
func (b *bed) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// fataler is implemented by *testing.T and *rapid.T.
type fataler interface {
	Helper()
	Fatal(...any)
}

// newBed returns a bed. queue is the kernel's queue limit for the pipe's packets, in bytes; 0 leaves that of Pair.
func newBed(t fataler, mtu, queue int) (b *bed, end func()) {
	t.Helper()
	box, gate, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	if queue > 0 {
		if err := unix.SetsockoptInt(int(gate.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF, queue); err != nil {
			t.Fatal(err)
		}
	}
	b = &bed{other: box, got: make(chan []byte, 64), lost: make(chan struct{}, 1<<16), over: make(chan error, 2)}
	p, file, err := New(gate, mtu, func() { b.lost <- struct{}{} }, func(err error) { b.over <- err })
	if err != nil {
		t.Fatal(err)
	}
	b.Pipe = p
	p.Attach(b)
	return b, func() {
		p.Attach(nil)
		file.Close()
		box.Close()
	}
}

// write writes a packet through the pipe.
func (b *bed) write(data []byte) tcpip.Error {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(data)})
	defer pkt.DecRef()
	var list stack.PacketBufferList
	list.PushBack(pkt)
	_, terr := b.WritePackets(list)
	return terr
}

// TestPipe_PreservesPackets checks that packets arrive unchanged and in order, whatever their sizes and whatever is
// sent between them, and that everything else is counted as lost.
func TestPipe_PreservesPackets(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	rapid.Check(t, func(t *rapid.T) {
		mtu := rapid.SampledFrom([]int{1500, shareable, link.PairMTU}).Draw(t, "mtu")
		b, end := newBed(t, mtu, 0)
		defer end()
		var want [][]byte
		lost := 0
		sizes := rapid.OneOf(rapid.IntRange(0, 100),
			rapid.SampledFrom([]int{mtu - 1, mtu, mtu + 1, shareable - 1, shareable, 70000, 200000}))
		for i, size := range rapid.SliceOfN(sizes, 1, 40).Draw(t, "sizes") {
			data := bytes.Repeat([]byte{byte(i)}, size)
			version := rapid.SampledFrom([]byte{4, 6, 4, 6, 0, 5, 15}).Draw(t, "version")
			if size > 0 {
				data[0] = version<<4 | 5
			}
			var rights []byte
			if rapid.IntRange(0, 9).Draw(t, "descriptor") == 0 && size > 0 {
				rights = unix.UnixRights(int(w.Fd()))
			}
			if err := unix.Sendmsg(int(b.other.Fd()), data, rights, nil, 0); err != nil {
				t.Fatal(err)
			}
			if size > 0 && size <= mtu && (version == 4 || version == 6) {
				want = append(want, data)
			} else {
				lost++
			}
		}
		for i, data := range want {
			if got := <-b.got; !bytes.Equal(got, data) {
				t.Fatalf("packet %d has %d bytes and begins with % x", i, len(got), got[:min(4, len(got))])
			}
		}
		for range lost {
			<-b.lost
		}
		if err := unix.Shutdown(int(b.other.Fd()), unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		if err := <-b.over; err != nil {
			t.Fatal(err)
		}
		b.Wait()
		if len(b.got)+len(b.lost) > 0 {
			t.Fatalf("%d unexpected packets, %d lost", len(b.got), len(b.lost))
		}
	})
	// No process holds a descriptor that was sent with a packet.
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a descriptor that was sent is still open")
	}
}

// TestPipe_DropsForSlowReader checks that a slow reader blocks nothing: packets are queued in order up to a limit, and
// further ones are lost.
func TestPipe_DropsForSlowReader(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, end := newBed(t, link.PairMTU, 1<<16)
		defer end()
		var sent, taken []uint32
		for round := range rapid.IntRange(1, 4).Draw(t, "rounds") {
			size := rapid.SampledFrom([]int{20, 1500, 65000}).Draw(t, "size")
			for i := range rapid.IntRange(1, 3000).Draw(t, "packets") {
				id := uint32(round<<16 | i)
				if b.write(binary.BigEndian.AppendUint32(make([]byte, 0, size), id)[:size]) == nil {
					sent = append(sent, id)
				}
				b.mu.Lock()
				weight := b.weight
				b.mu.Unlock()
				if weight > limit.LinkWaiting {
					t.Fatalf("%d bytes are queued", weight)
				}
			}
			buf := make([]byte, 1<<17)
			for range rapid.IntRange(0, 4000).Draw(t, "reads") {
				if len(taken) == len(sent) {
					break
				}
				n, err := b.other.Read(buf)
				if err != nil || n < 4 {
					t.Fatal(n, err)
				}
				taken = append(taken, binary.BigEndian.Uint32(buf))
			}
		}
		for i, id := range taken {
			if sent[i] != id {
				t.Fatalf("packet %d is %x, want %x", i, id, sent[i])
			}
		}
	})
}

// TestPipe_ReportsCloseOnce checks that the close of the other end is reported once, and that reading then stops.
func TestPipe_ReportsCloseOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act  func(*bed) error
		want []error
	}{
		"closes": {func(b *bed) error { return b.other.Close() }, []error{nil}},
		"writes no more": {func(b *bed) error { return unix.Shutdown(int(b.other.Fd()), unix.SHUT_WR) },
			[]error{nil}},
		"closes with something left": {func(b *bed) error { b.write([]byte("unread")); return b.other.Close() },
			[]error{unix.ECONNRESET}},
		"closes, and has not read for long": {func(b *bed) error {
			for b.write(make([]byte, 60000)) == nil {
			}
			return b.other.Close()
		}, []error{nil, unix.ECONNRESET}}, // the writer may notice it first
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, end := newBed(t, link.PairMTU, 0)
			if err := c.act(b); err != nil {
				t.Fatal(err)
			}
			if err := <-b.over; !slices.Contains(c.want, err) {
				t.Errorf("%v", err)
			}
			b.Wait() // the reader and the writer have returned
			if name != "writes no more" {
				if terr := b.write([]byte("late")); terr == nil {
					t.Error("a packet is written after the close")
				}
			}
			end()
			if len(b.over) > 0 {
				t.Error("the close is reported twice")
			}
		})
	}
}
