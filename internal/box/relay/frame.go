//go:build linux && (amd64 || arm64)

package relay

import (
	"encoding/binary"
	"fmt"
	"io"
)

// frameType is the first byte of a frame. The head is the type, three bytes of zero, the number of a stream and the
// length of the body; number and length are four bytes each, big endian.
type frameType byte

const (
	frameHello   frameType = 'h' // the other end was replaced: the inside was resumed
	frameMessage frameType = 'm' // a message of package initlink; see encode
	frameData    frameType = 'd' // data of a stream
	frameEnd     frameType = 'e' // the sender has no more data
	frameCancel  frameType = 'c' // the sender accepts no more data
	frameWindow  frameType = 'w' // the receiver may send that many more bytes
)

const (
	headLen = 12
	// maxFrame bounds a frame; a message of package initlink fits.
	maxFrame = 16<<20 + 4096
	// maxData is how many bytes of a stream one frame carries.
	maxData = 32 << 10
	// window is how many bytes of a stream may be in transit.
	window = 256 << 10
	// maxStreams bounds the streams that the outside holds for an inside, which is hostile: each takes a window and two
	// goroutines. A command has at most three.
	maxStreams = 4096
)

type frame struct {
	kind   frameType
	stream uint32
	body   []byte
}

// append writes a frame to b.
func (f frame) append(b []byte) []byte {
	b = append(b, byte(f.kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, f.stream)
	b = binary.BigEndian.AppendUint32(b, uint32(len(f.body)))
	return append(b, f.body...)
}

// readFrame reads a frame. The body is valid until the next call with the same buffer.
func readFrame(r io.Reader, buf *[]byte) (f frame, err error) {
	var head [headLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	n := binary.BigEndian.Uint32(head[8:])
	if n > maxFrame || head[1]|head[2]|head[3] != 0 {
		return f, fmt.Errorf("malformed frame %q of %d bytes", head[0], n)
	}
	if int(n) > cap(*buf) {
		*buf = make([]byte, n)
	}
	f = frame{kind: frameType(head[0]), stream: binary.BigEndian.Uint32(head[4:]), body: (*buf)[:n]}
	if _, err := io.ReadFull(r, f.body); err != nil {
		return f, io.ErrUnexpectedEOF
	}
	return f, nil
}

// flow is the direction of a stream, seen from the sender of its descriptor.
type flow byte

const (
	flowOut  flow = 'o' // bytes read from the descriptor are sent
	flowIn   flow = 'i' // received bytes are written to it
	flowBoth flow = 'b' // a socket
	flowTTY  flow = 't' // a terminal's master; the end of the stream hangs it up
)

// travelling is a descriptor in a message.
type travelling struct {
	stream uint32
	flow   flow
}

// encode returns the body of a message: its kind, the number of descriptors, the descriptors, and the
// payload.
func encode(kind byte, fds []travelling, payload []byte) []byte {
	b := append(make([]byte, 0, 2+5*len(fds)+len(payload)), kind, byte(len(fds)))
	for _, d := range fds {
		b = binary.BigEndian.AppendUint32(b, d.stream)
		b = append(b, byte(d.flow))
	}
	return append(b, payload...)
}

// decode is the inverse of encode. Its results refer to b.
func decode(b []byte) (kind byte, fds []travelling, payload []byte, err error) {
	if len(b) < 2 || len(b) < 2+5*int(b[1]) {
		return 0, nil, nil, fmt.Errorf("truncated message of %d bytes", len(b))
	}
	kind = b[0]
	for i := range int(b[1]) {
		at := b[2+5*i:]
		d := travelling{binary.BigEndian.Uint32(at), flow(at[4])}
		switch d.flow {
		case flowOut, flowIn, flowBoth, flowTTY:
		default:
			return 0, nil, nil, fmt.Errorf("message %q has a descriptor of unknown kind %q", kind, at[4])
		}
		fds = append(fds, d)
	}
	return kind, fds, b[2+5*len(fds):], nil
}
