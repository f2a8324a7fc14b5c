//go:build linux && (amd64 || arm64)

package gate

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/coppice-dev/coppice/internal/limit"
)

const (
	// shareable is the size from which a packet keeps the buffer it was read into: then
	// at most half of what a sandbox makes the stack keep is unused.
	shareable = 32 << 10
)

// pipe is the gate's end of a link.Pair, for the stack: each read and each write is one IP
// packet. Who is at the other end may stop to read, which makes nobody wait here; may
// write what is no packet, which is lost; and may go, which over is told once.
//
// It is not fdbased, as on other links, since that can take the end of such a socket for
// packets without bytes, of which it reads on without resting, and cannot be stopped.
type pipe struct {
	file *os.File // known to the runtime's poller; Attach(nil) sets its deadline
	conn syscall.RawConn
	fd   int // of file
	mtu  uint32
	lost func()      // a packet was
	over func(error) // the other end is gone, with an error or none
	own  sync.WaitGroup

	mu       sync.Mutex
	to       stack.NetworkDispatcher // guarded by mu; nil while nobody reads
	waiting  []*stack.PacketBuffer   // guarded by mu; what found no room, the oldest first
	weight   int                     // of waiting, in bytes; guarded by mu
	draining bool                    // somebody writes what waits; guarded by mu
}

// newPipe takes file over, for which the poller is asked, and gives back what to close.
func newPipe(file *os.File, mtu int, lost func(), over func(error)) (*pipe, *os.File, error) {
	file, err := pollable(file)
	if err != nil {
		return nil, file, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, file, err
	}
	p := &pipe{file: file, conn: conn, mtu: uint32(mtu), lost: lost, over: over}
	// Not by file.Fd, which would make it block.
	return p, file, conn.Control(func(fd uintptr) { p.fd = int(fd) })
}

// pollable makes of a file one that the runtime's poller knows, and closes it; or gives
// it back.
func pollable(file *os.File) (*os.File, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return file, err
	}
	var fd int
	var failed error
	err = raw.Control(func(old uintptr) {
		if fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0); failed == nil {
			failed = unix.SetNonblock(fd, true)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return file, err
	}
	return os.NewFile(uintptr(fd), "gate"), file.Close()
}

// Attach begins to read, or ends it: then nobody reads or writes when it returns.
func (p *pipe) Attach(to stack.NetworkDispatcher) {
	p.mu.Lock()
	begin := to != nil && p.to == nil
	p.to = to
	if begin {
		p.own.Go(func() { p.readAll(to) })
	}
	p.mu.Unlock()
	if to != nil {
		return
	}
	_ = p.file.SetDeadline(time.Unix(1, 0)) // it fails when the file is closed, which ends all as well
	p.own.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pkt := range p.waiting {
		pkt.DecRef()
	}
	p.waiting, p.weight = nil, 0
}

// readAll hands over what is read, until the other end is gone or Attach ends it.
func (p *pipe) readAll(to stack.NetworkDispatcher) {
	var v *buffer.View
	defer func() {
		if v != nil {
			v.Release()
		}
	}()
	for {
		if v == nil {
			v = buffer.NewViewSize(int(p.mtu))
		}
		n, err := p.read(v.AsSlice())
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, errNoPacket):
			p.lost()
			continue
		case err != nil, n == 0:
			p.over(err)
			return
		}
		var data buffer.Buffer
		if n < shareable {
			data = buffer.MakeWithData(v.AsSlice()[:n])
		} else {
			v.CapLength(n)
			data, v = buffer.MakeWithView(v), nil
		}
		p.deliver(to, data)
	}
}

var errNoPacket = errors.New("no packet")

// read reads one packet. Without an error and without bytes, there is no more;
// errNoPacket is one that has none, or more than there is room for. What is behind one
// without bytes, of who has gone meanwhile, is not read. Descriptors that are sent with a
// packet the kernel closes, since nobody asks for them.
func (p *pipe) read(b []byte) (n int, err error) {
	var flags int
	var gone bool
	waited := p.conn.Read(func(fd uintptr) bool {
		n, _, flags, _, err = unix.Recvmsg(int(fd), b, nil, unix.MSG_DONTWAIT)
		gone = err == nil && n == 0 && hungUp(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case waited != nil:
		return 0, waited
	case err != nil || gone:
		return 0, err
	case n == 0 || flags&unix.MSG_TRUNC != 0:
		return 0, errNoPacket
	}
	return n, nil
}

// hungUp reports whether nothing comes out of a socket any more: reading says the same of
// a packet without bytes.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// deliver hands a packet over to who is attached.
func (p *pipe) deliver(to stack.NetworkDispatcher, data buffer.Buffer) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: data})
	defer pkt.DecRef()
	first, _ := pkt.Data().PullUp(1)
	switch header.IPVersion(first) {
	case header.IPv4Version:
		pkt.NetworkProtocolNumber = header.IPv4ProtocolNumber
	case header.IPv6Version:
		pkt.NetworkProtocolNumber = header.IPv6ProtocolNumber
	default:
		p.lost()
		return
	}
	to.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
}

// WritePackets writes packets, or lets them wait. It does not wait itself: it is called by
// who reads, too.
func (p *pipe) WritePackets(pkts stack.PacketBufferList) (n int, _ tcpip.Error) {
	for _, pkt := range pkts.AsSlice() {
		if terr := p.writePacket(pkt); terr != nil {
			return n, terr
		}
		n++
	}
	return n, nil
}

func (p *pipe) writePacket(pkt *stack.PacketBuffer) tcpip.Error {
	p.mu.Lock()
	behind := p.draining
	p.mu.Unlock()
	if !behind {
		var err error
		if closed := p.conn.Control(func(fd uintptr) { err = send(fd, pkt) }); closed != nil {
			return &tcpip.ErrClosedForSend{}
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EAGAIN): // nobody is there any more, or there is no memory
			p.lost()
			return &tcpip.ErrNoBufferSpace{}
		}
	}
	return p.queue(pkt)
}

// queue lets a packet wait, if there is room.
func (p *pipe) queue(pkt *stack.PacketBuffer) tcpip.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.to == nil || p.weight+pkt.MemSize() > limit.LinkWaiting {
		p.lost()
		return &tcpip.ErrNoBufferSpace{}
	}
	p.waiting = append(p.waiting, pkt.IncRef())
	p.weight += pkt.MemSize()
	if !p.draining {
		p.draining = true
		p.own.Go(p.drain)
	}
	return nil
}

// drain writes what waits, until nothing does or Attach ends it.
func (p *pipe) drain() {
	for {
		p.mu.Lock()
		if len(p.waiting) == 0 || p.to == nil {
			p.draining = false
			p.mu.Unlock()
			return
		}
		pkt := p.waiting[0]
		p.mu.Unlock()
		var err error
		waited := p.conn.Write(func(fd uintptr) bool {
			err = send(fd, pkt)
			return !errors.Is(err, unix.EAGAIN)
		})
		if waited != nil || err != nil {
			p.lost()
		}
		p.mu.Lock()
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		p.weight -= pkt.MemSize()
		p.mu.Unlock()
		pkt.DecRef()
	}
}

// send writes one packet, and does not wait for room.
func send(fd uintptr, pkt *stack.PacketBuffer) error {
	_, err := unix.SendmsgBuffers(int(fd), pkt.AsSlices(), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

// MTU is the longest packet, each way.
func (p *pipe) MTU() uint32 { return p.mtu }

// SetMTU is not needed: nobody changes it.
func (p *pipe) SetMTU(uint32) {}

// MaxHeaderLength is that of no header.
func (p *pipe) MaxHeaderLength() uint16 { return 0 }

// LinkAddress is none.
func (p *pipe) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress is not needed: there is none.
func (p *pipe) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities are those of memory: what went in comes out, so that neither end needs
// checksums (link.Interface.NoChecksums).
func (p *pipe) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// IsAttached reports whether somebody is.
func (p *pipe) IsAttached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to != nil
}

// Wait waits until nobody reads or writes.
func (p *pipe) Wait() { p.own.Wait() }

// ARPHardwareType is that of a link without hardware addresses.
func (p *pipe) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader adds none.
func (p *pipe) AddHeader(*stack.PacketBuffer) {}

// ParseHeader finds none.
func (p *pipe) ParseHeader(*stack.PacketBuffer) bool { return true }

// Close is not needed: Attach ends everything, and the file is the gate's.
func (p *pipe) Close() {}

// SetOnCloseAction is not needed: nothing has to be done.
func (p *pipe) SetOnCloseAction(func()) {}
