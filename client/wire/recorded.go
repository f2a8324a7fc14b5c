package wire

import (
	"encoding/binary"
	"fmt"
)

// FrameRecorded carries a part of what is recorded of a command's output, from a keeper to
// its daemon, before the frame that tells its end. No client is sent one.
const FrameRecorded FrameType = 12

// Recorded is what is kept of one stream of a command's output, as evidence. What is not
// kept is between Head and Tail; together they are no longer than Total.
type Recorded struct {
	Stream FrameType // FrameStdout, which is all of a terminal's, or FrameStderr
	Total  int64     // bytes that were written
	Head   []byte    // the first of them
	Tail   []byte    // the last
}

// Whole reports whether nothing is missing.
func (r Recorded) Whole() bool { return int64(len(r.Head)+len(r.Tail)) == r.Total }

const (
	recordedHead = 2 + 8 // stream, part and total
	partHead     = 0
	partTail     = 1
	// MaxRecorded is how long Head and Tail may be, each, in bytes.
	MaxRecorded = MaxFrame - recordedHead
)

// Payloads gives the payloads of the frames that carry r.
func (r Recorded) Payloads() [][]byte {
	part := func(kind byte, data []byte) []byte {
		b := make([]byte, recordedHead, recordedHead+len(data))
		b[0], b[1] = byte(r.Stream), kind
		binary.BigEndian.PutUint64(b[2:], uint64(r.Total))
		return append(b, data...)
	}
	out := [][]byte{part(partHead, r.Head)}
	if len(r.Tail) > 0 {
		out = append(out, part(partTail, r.Tail))
	}
	return out
}

// AddRecorded adds what a frame carries to what came before it. The payload is copied.
func AddRecorded(all []Recorded, payload []byte) ([]Recorded, error) {
	if len(payload) < recordedHead || payload[1] > partTail {
		return all, fmt.Errorf("malformed frame of recorded output")
	}
	stream, total := FrameType(payload[0]), int64(binary.BigEndian.Uint64(payload[2:]))
	data := append([]byte(nil), payload[recordedHead:]...)
	at := -1
	for i := range all {
		if all[i].Stream == stream {
			at = i
		}
	}
	if at < 0 {
		all, at = append(all, Recorded{Stream: stream}), len(all)
	}
	one := &all[at]
	one.Total = total
	if payload[1] == partHead {
		one.Head = data
	} else {
		one.Tail = data
	}
	if total < 0 || int64(len(one.Head)+len(one.Tail)) > total {
		return all, fmt.Errorf("recorded output of %d bytes with %d and %d of them", total, len(one.Head), len(one.Tail))
	}
	return all, nil
}

// Resources is what a command used, with those of its descendants that it waited for.
type Resources struct {
	UserMicros   int64 `json:"user_us,omitempty"`       // processor time outside of the kernel, in microseconds
	SystemMicros int64 `json:"system_us,omitempty"`     // and in it
	MaxRSSBytes  int64 `json:"max_rss_bytes,omitempty"` // most memory that one process held, in bytes
}
