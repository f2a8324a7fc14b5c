//go:build linux && (amd64 || arm64)

package gvisor

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/coppice-dev/coppice/internal/box/initlink"
)

// The sandbox's kernel sends the conductor events of processes through a pipe, in batches: four bytes with
// the length, big endian, then JSON of that length.

// eventKind is the kind of an event.
type eventKind string

const (
	eventCloned eventKind = "cloned" // a process began as a copy of its parent
	eventBegan  eventKind = "began"  // a process begins to execute a program
	eventEnded  eventKind = "ended"
	eventMark   eventKind = "mark" // not about a process: all earlier events have been sent
)

// event is an action of a process.
type event struct {
	Kind   eventKind `json:"k"`
	PID    int       `json:"p,omitempty"`
	Parent int       `json:"u,omitempty"` // the process that cloned it, for eventCloned
	At     int64     `json:"t,omitempty"` // Unix time in nanoseconds
	Exe    []byte    `json:"x,omitempty"`
	Args   []byte    `json:"a,omitempty"` // each ends with NUL unless it was cut
	Cut    int64     `json:"c,omitempty"` // bytes of Args that were left out
	Dir    []byte    `json:"d,omitempty"`
	Status uint32    `json:"s,omitempty"` // the wait status, for eventEnded
}

// size returns about how many bytes of memory an event takes.
func (e event) size() int { return 160 + len(e.Exe) + len(e.Args) + len(e.Dir) }

// batch is a sequence of events, oldest first.
type batch struct {
	Events []event `json:"e"`
	// Dropped is how many starts and exits since the previous batch were dropped for lack of room.
	Dropped uint64 `json:"d,omitempty"`
	// Refused are the system calls that were refused before the last of Events.
	Refused *initlink.Refused `json:"r,omitempty"`
}

const (
	// maxBatch is how many bytes of events a batch may have before its last one.
	maxBatch = 256 << 10
	// maxFrame bounds a batch as JSON, from any sender.
	maxFrame = 4 << 20
)

func writeBatch(w io.Writer, b batch) error {
	p, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("malformed batch of events: %w", err)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(p)), uint32(len(p))), p...))
	return err
}

func readBatch(r io.Reader) (b batch, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return b, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return b, fmt.Errorf("batch of %d bytes is too large", n)
	}
	p := make([]byte, n)
	if _, err := io.ReadFull(r, p); err != nil {
		return b, io.ErrUnexpectedEOF
	}
	if err := json.Unmarshal(p, &b); err != nil {
		return batch{}, fmt.Errorf("malformed batch of events: %w", err)
	}
	return b, nil
}
