//go:build linux && (amd64 || arm64)

package keeper

import (
	"io"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
)

// recordContext is how many bytes before the recorded end of a stream are recorded too: a secret that the cut would
// split can be redacted only together with the bytes before it.
const recordContext = 128 << 10

// recording keeps the beginning and the end of a command's output, for the audit log. It is only in memory, because
// output is redacted before it is written to a disk. The end of a stream is in the newest output, which is kept in any
// case; bytes that the newest output drops are copied only while the recording has too little of the stream. It is
// guarded by output.mu.
type recording struct {
	keep    int64 // bytes of each stream
	streams []*streamRecording
}

// streamRecording is the recording of one stream.
type streamRecording struct {
	t     wire.FrameType
	total int64
	head  []byte
	left  int    // bytes of the stream in the newest output
	ring  []byte // the bytes before those, as many as are needed, starting at at
	at    int
}

// tail returns how many bytes of the end of a stream are recorded.
func (r *recording) tail() int {
	if r.keep <= 0 {
		return 0
	}
	return int(r.keep-r.keep/2) + recordContext
}

// of returns the recording of a stream.
func (r *recording) of(t wire.FrameType) *streamRecording {
	i := slices.IndexFunc(r.streams, func(s *streamRecording) bool { return s.t == t })
	if i < 0 {
		i = len(r.streams)
		r.streams = append(r.streams, &streamRecording{t: t})
	}
	return r.streams[i]
}

// add records p, which the newest output now contains.
func (r *recording) add(t wire.FrameType, p []byte) {
	s := r.of(t)
	s.total += int64(len(p))
	s.left += len(p)
	n := max(0, min(int(r.keep/2)-len(s.head), len(p)))
	s.head = append(s.head, p[:n]...)
}

// drop records the bytes that the newest output is about to drop, if they are needed.
func (r *recording) drop(t wire.FrameType, p []byte) {
	s := r.of(t)
	if s.left -= len(p); s.left >= r.tail() {
		s.ring, s.at = s.ring[:0], 0
		return
	}
	s.turn(p, r.tail())
}

// turn puts p into the ring, which holds at most most bytes.
func (s *streamRecording) turn(p []byte, most int) {
	if len(p) > most {
		p = p[len(p)-most:]
	}
	if n := min(most-len(s.ring), len(p)); n > 0 {
		s.ring, p = append(s.ring, p[:n]...), p[n:]
	}
	for len(p) > 0 {
		n := copy(s.ring[s.at:], p)
		p, s.at = p[n:], (s.at+n)%most
	}
}

// recorded returns the recording of each stream that has one.
func (o *output) recorded() []wire.Recorded {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []wire.Recorded
	for _, s := range o.record.streams {
		tail := slices.Concat(s.ring[s.at:], s.ring[:s.at])
		for _, c := range o.chunks {
			if c.t == s.t {
				tail = append(tail, c.data...)
			}
		}
		most := min(int64(o.record.tail()), s.total-int64(len(s.head)))
		tail = tail[max(0, len(tail)-int(most)):]
		out = append(out, wire.Recorded{Stream: s.t, Total: s.total, Head: s.head, Tail: tail})
	}
	return out
}

// sendRecorded sends the recording of a command's output, before its exit is reported.
func (e *execution) sendRecorded(to io.Writer) error {
	for _, r := range e.out.recorded() {
		for _, p := range r.Payloads() {
			if err := wire.WriteFrame(to, wire.FrameRecorded, p); err != nil {
				return err
			}
		}
	}
	return nil
}
