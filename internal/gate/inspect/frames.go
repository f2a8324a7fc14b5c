package inspect

import (
	"encoding/binary"
	"fmt"

	"github.com/coppice-dev/coppice/internal/limit"
)

// The frames of HTTP/2 that are inspected, and their flags (RFC 9113, 6).
const (
	frameData         = 0
	frameHeaders      = 1
	frameReset        = 3
	frameGoAway       = 7
	frameContinuation = 9

	endStream   = 1
	endHeaders  = 4
	padded      = 8
	prioritized = 32
)

// The error codes of HTTP/2 that are inspected (RFC 9113, 7).
const (
	codeNone     = 0
	codeInternal = 2
	codeClosed   = 5
)

// codeName returns the name of an error code in the specification.
func codeName(code uint32) string {
	names := [...]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
		"STREAM_CLOSED", "FRAME_SIZE_ERROR",
		"REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY",
		"HTTP_1_1_REQUIRED"}
	if code < uint32(len(names)) {
		return names[code]
	}
	return fmt.Sprintf("error %d", code)
}

// frame2 is a frame of HTTP/2 (RFC 9113, 4.1).
type frame2 struct {
	kind, flags byte
	stream      uint32
	size        int    // of its payload
	payload     []byte // the inspected part; valid until the next frame
}

func (f frame2) has(flag byte) bool { return f.flags&flag != 0 }

// looked returns how many bytes of the frame's payload are inspected.
func (f frame2) looked() int {
	switch f.kind {
	case frameHeaders, frameContinuation:
		return f.size
	case frameData, frameReset, frameGoAway: // the length of the padding, an error code, a stream and an error code
		return min(f.size, 8)
	}
	return 0
}

// fragment returns the compressed part of a HEADERS or CONTINUATION frame, and whether the frame is well formed.
func (f frame2) fragment() (b []byte, ok bool) {
	b = f.payload
	if f.kind == frameContinuation {
		return b, true
	}
	var before, after int
	if f.has(padded) {
		if len(b) == 0 {
			return nil, false
		}
		before, after = 1, int(b[0])
	}
	if f.has(prioritized) {
		before += 5
	}
	if before+after > len(b) {
		return nil, false
	}
	return b[before : len(b)-after], true
}

// data returns the number of bytes of the body in a DATA frame.
func (f frame2) data() int64 {
	if f.has(padded) && len(f.payload) > 0 {
		return int64(max(f.size-1-int(f.payload[0]), 0))
	}
	return int64(f.size)
}

// code returns the error code at an offset in a frame.
func (f frame2) code(at int) uint32 {
	if len(f.payload) < at+4 {
		return codeNone
	}
	return binary.BigEndian.Uint32(f.payload[at:])
}

// frames splits one direction of a connection into frames. The input may be split anywhere.
type frames struct {
	head [9]byte
	have int // bytes of head
	left int // bytes of the payload still to come, once head is complete
	now  frame2
}

// feed adds the next bytes, and calls take for each complete frame.
func (s *frames) feed(b []byte, take func(frame2) error) error {
	for len(b) > 0 {
		if s.have < len(s.head) {
			n := copy(s.head[s.have:], b)
			s.have, b = s.have+n, b[n:]
			if s.have < len(s.head) {
				return nil
			}
			s.left = int(s.head[0])<<16 | int(s.head[1])<<8 | int(s.head[2])
			if s.left > limit.FrameBytes {
				return errFrames
			}
			s.now = frame2{
				kind: s.head[3], flags: s.head[4], stream: binary.BigEndian.Uint32(s.head[5:]) & (1<<31 - 1), size: s.left,
				payload: s.now.payload[:0],
			}
		}
		n := min(s.left, len(b))
		if room := s.now.looked() - len(s.now.payload); room > 0 {
			s.now.payload = append(s.now.payload, b[:min(n, room)]...)
		}
		s.left, b = s.left-n, b[n:]
		if s.left == 0 {
			s.have = 0
			if err := take(s.now); err != nil {
				return err
			}
		}
	}
	return nil
}
