//go:build linux && (amd64 || arm64)

package relay

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// Relay is one end of the pipes. Its methods are safe for concurrent use.
type Relay struct {
	link   *initlink.Link
	in     io.Reader
	out    io.Writer
	hooks  Hooks
	inside bool

	// writing is held while a frame is written, which takes until the other end reads it. The reader of frames does not
	// need it, so that both ends cannot wait for each other. It is locked before mu.
	writing sync.Mutex
	buf     []byte // guarded by writing

	mu      sync.Mutex
	moved   *sync.Cond // of mu: signals changes of quiet or failed
	quiet   bool       // nothing is written: the sandbox is frozen, or about to be; set with writing held
	failed  error      // error of a write; nothing is written after it
	waiting []pending  // messages that arrived while quiet
	last    uint32     // last number that was assigned to a stream
	streams map[uint32]*stream
	all     map[*stream]bool

	pumps    sync.WaitGroup
	commands commands // on the inside
	owner    owner    // on the inside, of the pipes of commands; used by the reader of frames only
}

// Hooks let the conductor intercept messages on the outside. Each may be nil.
type Hooks struct {
	// ToSandbox is called before a message of the keeper is sent in. If it returns taken, the message is not sent: the
	// conductor has handled it.
	ToSandbox func(m initlink.Message) (taken bool, err error)
	// ToKeeper is called before a message from the inside is sent to the keeper, and may change it.
	ToKeeper func(m *initlink.Message) error
	// AfterKeeper is called after a message was sent to the keeper. Its descriptors are closed.
	AfterKeeper func(m initlink.Message) error
	// Resumed is called when the inside has answered a Hello, and reported all running commands.
	Resumed func() error
}

// Outside returns the conductor's end: link leads to the keeper, and in and out to the sandbox.
func Outside(link *initlink.Link, in io.Reader, out io.Writer, h Hooks) *Relay {
	r := newRelay(link, in, out)
	r.hooks, r.last = h, 1
	return r
}

// Inside returns the end of PID 1. Init has the other end of link.
func Inside(link *initlink.Link, in io.Reader, out io.Writer) *Relay {
	r := newRelay(link, in, out)
	r.inside, r.last = true, 2
	return r
}

func newRelay(link *initlink.Link, in io.Reader, out io.Writer) *Relay {
	r := &Relay{link: link, in: in, out: out, streams: map[uint32]*stream{}, all: map[*stream]bool{}}
	r.moved = sync.NewCond(&r.mu)
	return r
}

// Run relays until one side ends, and then ends the other. Invalid data from a side is an error.
func (r *Relay) Run() error {
	ends := make(chan error, 2)
	go func() { ends <- r.sendMessages() }()
	go func() { ends <- r.readFrames() }()
	err := <-ends
	r.fail(io.ErrClosedPipe)
	r.link.Shutdown()
	r.mu.Lock()
	all := make([]*stream, 0, len(r.all))
	for s := range r.all {
		all = append(all, s)
	}
	r.mu.Unlock()
	for _, s := range all {
		s.abandon()
	}
	r.pumps.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Hello sends a hello to a resumed inside. It must be sent before anything else.
func (r *Relay) Hello() { r.write(frameHello, nil, nil) }

// Send sends a message of the conductor to the inside.
func (r *Relay) Send(k initlink.Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("message %q: %w", k, err)
	}
	r.send(initlink.Message{Kind: k, Payload: b})
	return nil
}

// write writes one frame, unless r is quiet. Errors end Run.
func (r *Relay) write(kind frameType, s *stream, body []byte) {
	for {
		r.writing.Lock()
		r.mu.Lock()
		if !r.quiet || r.failed != nil {
			break
		}
		r.writing.Unlock()
		r.moved.Wait()
		r.mu.Unlock()
	}
	defer r.writing.Unlock()
	f := frame{kind: kind, body: body}
	if s != nil {
		f.stream = s.id
	}
	r.mu.Unlock()
	if s == nil || f.stream != 0 {
		r.put(f)
	}
	if kind == frameData {
		s.wrote(len(body))
	}
}

// put writes a frame. r.writing is held.
func (r *Relay) put(f frame) {
	r.mu.Lock()
	failed := r.failed
	r.mu.Unlock()
	if failed != nil {
		return
	}
	r.buf = f.append(r.buf[:0])
	if _, err := r.out.Write(r.buf); err != nil {
		r.fail(err)
		r.link.Shutdown() // makes Run return
	}
}

// fail makes every write return without writing.
func (r *Relay) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	r.moved.Broadcast()
}

// sendMessages receives messages from this end's link and sends them, with their descriptors as streams.
func (r *Relay) sendMessages() error {
	for {
		m, err := r.link.Recv()
		if err != nil {
			return err
		}
		if r.hooks.ToSandbox != nil {
			taken, err := r.hooks.ToSandbox(m)
			if err != nil {
				m.Close()
				return err
			}
			if taken {
				m.Close()
				continue
			}
		}
		if r.inside && r.commands.forNobody(m.Kind) {
			m.Close()
			continue
		}
		r.send(m)
	}
}

// pending is a message with its streams.
type pending struct {
	initlink.Message
	streams []*stream
}

// send sends one message. After Freeze (on the outside) or Frozen (on the inside) it queues messages until Thaw.
func (r *Relay) send(m initlink.Message) {
	p := pending{Message: m}
	for _, fd := range m.FDs {
		p.streams = append(p.streams, r.newStream(0, fd, flowOf(fd)))
	}
	if r.inside {
		p.Payload = r.commands.sent(m, p.streams)
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	if r.quiet && m.Kind != initlink.MsgThaw {
		r.waiting = append(r.waiting, p)
		r.mu.Unlock()
		return
	}
	r.mu.Unlock()
	r.putMessage(p)
	switch {
	case m.Kind == initlink.MsgThaw:
		r.move()
	case m.Kind == initlink.MsgFreeze, r.inside && m.Kind == initlink.MsgFrozen && isFrozen(m):
		r.mu.Lock()
		r.quiet = true
		r.mu.Unlock()
	}
}

// isFrozen reports whether a Frozen message says that the sandbox is frozen.
func isFrozen(m initlink.Message) bool {
	var f initlink.Frozen
	return m.Decode(&f) == nil && f.Err == nil
}

// putMessage writes a message and starts its streams. r.writing is held.
func (r *Relay) putMessage(p pending) {
	var fds []travelling
	r.mu.Lock()
	for _, s := range p.streams {
		r.know(s)
		fds = append(fds, travelling{s.id, s.flow})
	}
	r.mu.Unlock()
	r.put(frame{kind: frameMessage, body: encode(byte(p.Kind), fds, p.Payload)})
	for _, s := range p.streams {
		s.start()
	}
}

// move allows frames to be written again, after the queued messages. r.writing is held.
func (r *Relay) move() {
	for {
		r.mu.Lock()
		waiting := r.waiting
		r.waiting = nil
		if len(waiting) == 0 {
			r.quiet = false
			r.moved.Broadcast()
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for _, p := range waiting {
			r.putMessage(p)
		}
	}
}

// know assigns a number to a local stream. r.mu is held.
func (r *Relay) know(s *stream) {
	r.last += 2
	s.id = r.last
	r.streams[s.id], r.all[s] = s, true
}

// forget drops a stream that has ended in both directions.
func (r *Relay) forget(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, s.id)
	delete(r.all, s)
	r.commands.drop(s)
}

// flowOf returns the direction of a descriptor.
func flowOf(fd int) flow {
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		return flowTTY
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	switch {
	case err == nil && flags&unix.O_ACCMODE == unix.O_WRONLY:
		return flowIn
	case err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY:
		return flowOut
	}
	return flowBoth
}

// readFrames handles the frames of the other end.
func (r *Relay) readFrames() error {
	in := bufio.NewReaderSize(r.in, headLen+maxData)
	var buf []byte
	for {
		f, err := readFrame(in, &buf)
		if err != nil {
			return err
		}
		if err := r.carry(f); err != nil {
			return err
		}
	}
}

func (r *Relay) carry(f frame) error {
	switch f.kind {
	case frameMessage:
		return r.deliver(f.body)
	case frameHello:
		if r.inside {
			return r.resumed()
		}
		if r.hooks.Resumed != nil {
			return r.hooks.Resumed()
		}
		return nil
	}
	if !slices.Contains([]frameType{frameData, frameEnd, frameCancel, frameWindow}, f.kind) {
		return fmt.Errorf("unknown frame type %q", byte(f.kind))
	}
	r.mu.Lock()
	s := r.streams[f.stream]
	r.mu.Unlock()
	if s == nil {
		return nil // the stream has ended
	}
	switch f.kind {
	case frameData:
		return s.take(f.body)
	case frameEnd:
		s.end()
	case frameCancel:
		s.cancel()
	case frameWindow:
		if len(f.body) != 4 {
			return fmt.Errorf("malformed window of %d bytes", len(f.body))
		}
		s.allow(binary.BigEndian.Uint32(f.body))
	}
	return nil
}

// deliver passes a message to this end's link, with a descriptor for each of its streams.
func (r *Relay) deliver(body []byte) error {
	kind, fds, payload, err := decode(body)
	if err != nil {
		return err
	}
	m := initlink.Message{Kind: initlink.Kind(kind), Payload: payload}
	var fresh []*stream
	defer func() { m.Close() }() // descriptors that were not passed on
	if r.inside && m.Kind == initlink.MsgSetup {
		if r.owner, err = ownerOf(m); err != nil {
			return err
		}
	}
	receive := func() error {
		for _, d := range fds {
			ours, theirs, f, err := counterpart(d.flow)
			if err != nil {
				return fmt.Errorf("receive a descriptor of message %q: %w", kind, err)
			}
			m.FDs = append(m.FDs, theirs)
			fresh = append(fresh, r.newStream(d.stream, ours, f))
		}
		return nil
	}
	if m.Kind == initlink.MsgSpawn { // the command may open its pipes again, by /dev/stdout
		err = r.owner.act(receive)
	} else {
		err = receive()
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	if !r.inside && len(r.all)+len(fresh) > maxStreams {
		r.mu.Unlock()
		return fmt.Errorf("the sandbox opened more than %d streams", maxStreams)
	}
	for _, s := range fresh {
		if s.id == 0 || r.streams[s.id] != nil {
			r.mu.Unlock()
			return fmt.Errorf("message %q repeats stream %d", kind, s.id)
		}
		r.streams[s.id], r.all[s] = s, true
	}
	r.mu.Unlock()
	for _, s := range fresh {
		s.start()
	}
	switch {
	case r.inside && m.Kind == initlink.MsgThaw, !r.inside && m.Kind == initlink.MsgFrozen && !isFrozen(m):
		r.writing.Lock()
		r.move()
		r.writing.Unlock()
	case r.inside && r.commands.came(r, m, fresh):
		return nil
	}
	if r.hooks.ToKeeper != nil {
		if err := r.hooks.ToKeeper(&m); err != nil {
			return err
		}
	}
	given := m
	m.FDs = nil
	if err := r.link.Give(given); err != nil || r.hooks.AfterKeeper == nil {
		return err
	}
	return r.hooks.AfterKeeper(m)
}

// counterpart creates the counterpart of a descriptor that the other end has sent: theirs is for the recipient of the
// message, and ours is connected to it.
func counterpart(sent flow) (ours, theirs int, f flow, err error) {
	var p [2]int
	switch sent {
	case flowBoth, flowTTY:
		p, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return p[0], p[1], flowBoth, err
	case flowOut: // the recipient reads the data that arrives
		err = unix.Pipe2(p[:], unix.O_CLOEXEC)
		return p[1], p[0], flowIn, err
	default:
		err = unix.Pipe2(p[:], unix.O_CLOEXEC)
		return p[0], p[1], flowOut, err
	}
}

// resumed drops the state about the outside from before the freeze, and reports the running commands to the new one.
func (r *Relay) resumed() error {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	clear(r.streams)
	var dead []*stream
	adopted := r.commands.adopt(func(s *stream) travelling {
		r.know(s)
		s.begin()
		return travelling{s.id, s.flow}
	})
	for s := range r.all {
		if r.streams[s.id] == s {
			continue
		}
		s.id = 0
		if s.flow == flowOut {
			s.mute()
		} else {
			dead = append(dead, s)
		}
	}
	late := r.waiting // for an outside that no longer exists
	r.waiting = nil
	r.mu.Unlock()
	for _, a := range adopted {
		r.put(frame{kind: frameMessage, body: encode(byte(initlink.MsgAdopt), a.fds, a.payload)})
	}
	r.put(frame{kind: frameHello})
	r.move()
	for _, p := range late {
		for _, s := range p.streams {
			s.abandon()
		}
	}
	for _, s := range dead {
		s.abandon()
	}
	// Init is frozen too, and no caller expects its answer to the thaw.
	r.commands.swallow(initlink.MsgThawed)
	return r.link.Send(initlink.MsgThaw, nil)
}
