//go:build linux && (amd64 || arm64)

// Package pipe is one end of a link.Pair as a link endpoint of gVisor's network stack, and what the stacks at both
// ends have in common. The gate is at one end. At the other is either a sentry, or the entrance of a sandbox
// without a network stack. Package gate and package entrance import it; it imports fault and limit.
package pipe

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
	// shareable is the size from which a packet keeps its read buffer: at most half of the memory that a sandbox
	// makes the stack hold is then unused.
	shareable = 32 << 10
)

// Pipe is an end of a link.Pair as a link endpoint of a stack: each read and each write is one IP packet. It does not
// block when the other end does not read. It drops anything that is not a packet.
//
// The endpoint of other links, fdbased, cannot be used: it can mistake the end of such a socket for empty packets,
// which it reads in a busy loop that cannot be stopped.
type Pipe struct {
	file *os.File // known to the runtime's poller; Attach(nil) sets its deadline
	conn syscall.RawConn
	fd   int // of file
	mtu  uint32
	lost func()      // called for each lost packet
	over func(error) // called when the other end has closed, with an error or nil
	own  sync.WaitGroup

	mu       sync.Mutex
	to       stack.NetworkDispatcher // guarded by mu; nil while detached
	waiting  []*stack.PacketBuffer   // guarded by mu; packets that found no room, oldest first
	weight   int                     // size of waiting, in bytes; guarded by mu
	draining bool                    // a goroutine runs drain; guarded by mu
}

// New takes ownership of file, an end of a link.Pair, which it makes pollable, and returns the file that the caller
// closes after Attach(nil), also if it fails. mtu is the maximum size of a packet, in bytes. The pipe calls lost for
// each lost packet, and over once when the other end has closed, with an error or nil.
func New(file *os.File, mtu int, lost func(), over func(error)) (*Pipe, *os.File, error) {
	file, err := pollable(file)
	if err != nil {
		return nil, file, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, file, err
	}
	p := &Pipe{file: file, conn: conn, mtu: uint32(mtu), lost: lost, over: over}
	// Not by file.Fd, which would make it block.
	return p, file, conn.Control(func(fd uintptr) { p.fd = int(fd) })
}

// pollable returns a file for the same descriptor that the runtime's poller knows, and closes file; or it returns
// file itself.
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
	return os.NewFile(uintptr(fd), file.Name()), file.Close()
}

// FD returns the descriptor of the socket, for use until the file that New returned is closed.
func (p *Pipe) FD() int { return p.fd }

// Attach starts reading, or with nil stops it; no read or write is in progress when Attach(nil) returns.
func (p *Pipe) Attach(to stack.NetworkDispatcher) {
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
	_ = p.file.SetDeadline(time.Unix(1, 0)) // fails only on a closed file, which stops reads as well
	p.own.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pkt := range p.waiting {
		pkt.DecRef()
	}
	p.waiting, p.weight = nil, 0
}

// readAll delivers packets until the other end closes or Attach(nil) is called.
func (p *Pipe) readAll(to stack.NetworkDispatcher) {
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

// read reads one packet. It returns 0 and nil if there are none left, and errNoPacket for an empty or oversized one.
// An empty packet from a peer that has closed hides what follows it. The kernel closes descriptors that are sent with
// a packet, because no control buffer is given.
func (p *Pipe) read(b []byte) (n int, err error) {
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

// hungUp reports whether a socket is at its end: a read alone cannot tell that from an empty packet.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// deliver passes a packet to the dispatcher.
func (p *Pipe) deliver(to stack.NetworkDispatcher, data buffer.Buffer) {
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

// WritePackets writes packets, or queues them. It must not block, because readers call it too.
func (p *Pipe) WritePackets(pkts stack.PacketBufferList) (n int, _ tcpip.Error) {
	for _, pkt := range pkts.AsSlice() {
		if terr := p.writePacket(pkt); terr != nil {
			return n, terr
		}
		n++
	}
	return n, nil
}

func (p *Pipe) writePacket(pkt *stack.PacketBuffer) tcpip.Error {
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
		case !errors.Is(err, unix.EAGAIN): // the other end has closed, or there is no memory
			p.lost()
			return &tcpip.ErrNoBufferSpace{}
		}
	}
	return p.queue(pkt)
}

// queue queues a packet, if there is room.
func (p *Pipe) queue(pkt *stack.PacketBuffer) tcpip.Error {
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

// drain writes queued packets until none are left, or Attach(nil) is called.
func (p *Pipe) drain() {
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

// send writes one packet without blocking.
func send(fd uintptr, pkt *stack.PacketBuffer) error {
	_, err := unix.SendmsgBuffers(int(fd), pkt.AsSlices(), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

// MTU returns the maximum packet size, in both directions.
func (p *Pipe) MTU() uint32 { return p.mtu }

// SetMTU does nothing: the MTU is fixed.
func (p *Pipe) SetMTU(uint32) {}

// MaxHeaderLength returns 0: there is no link header.
func (p *Pipe) MaxHeaderLength() uint16 { return 0 }

// LinkAddress returns "": the link has no addresses.
func (p *Pipe) LinkAddress() tcpip.LinkAddress { return "" }

// SetLinkAddress does nothing: the link has no addresses.
func (p *Pipe) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities reports checksum offload: the link is memory, so neither end needs checksums
// (link.Interface.NoChecksums).
func (p *Pipe) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// IsAttached reports whether a dispatcher is attached.
func (p *Pipe) IsAttached() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to != nil
}

// Wait waits until no read or write is in progress.
func (p *Pipe) Wait() { p.own.Wait() }

// ARPHardwareType reports a link without hardware addresses.
func (p *Pipe) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }

// AddHeader does nothing: there is no link header.
func (p *Pipe) AddHeader(*stack.PacketBuffer) {}

// ParseHeader does nothing: there is no link header.
func (p *Pipe) ParseHeader(*stack.PacketBuffer) bool { return true }

// Close does nothing: Attach(nil) stops the pipe, and the caller of New owns the file.
func (p *Pipe) Close() {}

// SetOnCloseAction does nothing: no action is needed.
func (p *Pipe) SetOnCloseAction(func()) {}
