package wire

import (
	"encoding/binary"
	"fmt"
)

// FrameRecorded carries a part of the captured output of a command from a keeper to its daemon, before FrameExit or
// FrameFailed. It is never sent to a client.
const FrameRecorded FrameType = 12

// Recorded is the captured part of one stream of a command's output. The part between Head and Tail is not captured;
// together they are no longer than Total.
type Recorded struct {
	Stream FrameType // FrameStdout, also for all output of a terminal, or FrameStderr
	Total  int64     // number of bytes written
	Head   []byte    // the first bytes
	Tail   []byte    // the last bytes
}

// Whole reports whether all output is captured.
func (r Recorded) Whole() bool { return int64(len(r.Head)+len(r.Tail)) == r.Total }

const (
	recordedHead = 2 + 8 // stream, part and total
	partHead     = 0
	partTail     = 1
	// MaxRecorded is the maximum length of Head and of Tail, in bytes.
	MaxRecorded = MaxFrame - recordedHead
)

// Payloads returns the payloads of the frames that carry r.
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

// AddRecorded adds the payload of a frame to those received before. It copies the payload.
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

// Resources is the usage of a command and of the descendants that it waited for.
type Resources struct {
	UserMicros   int64 `json:"user_us,omitempty"`       // user CPU time, in microseconds
	SystemMicros int64 `json:"system_us,omitempty"`     // system CPU time, in microseconds
	MaxRSSBytes  int64 `json:"max_rss_bytes,omitempty"` // maximum resident set size of one process, in bytes
}
