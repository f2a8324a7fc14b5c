//go:build linux && (amd64 || arm64)

package box

import (
	"io"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
)

// recordContext is how many bytes before the end of a stream are recorded besides: what
// begins in the middle can be redacted only by who knows what came before.
const recordContext = 128 << 10

// recording keeps the beginning and the end of what a command writes, for the ledger, in
// memory alone: whatever is kept of it on a disk is redacted first. It is not for use by
// several at a time.
type recording struct {
	keep    int64 // of each stream, in bytes
	streams []*strand
}

// strand is what is recorded of one stream.
type strand struct {
	t     wire.FrameType
	total int64
	head  []byte
	ring  []byte // the newest of what does not fit into head, the oldest of it at at
	at    int
}

// add records what was written.
func (r *recording) add(t wire.FrameType, p []byte) {
	i := slices.IndexFunc(r.streams, func(s *strand) bool { return s.t == t })
	if i < 0 {
		i = len(r.streams)
		r.streams = append(r.streams, &strand{t: t})
	}
	s := r.streams[i]
	s.total += int64(len(p))
	if r.keep <= 0 {
		return
	}
	half := int(r.keep / 2)
	n := min(half-len(s.head), len(p))
	s.head, p = append(s.head, p[:n]...), p[n:]
	s.turn(p, int(r.keep)-half+recordContext)
}

// turn puts p into the ring, which holds most bytes.
func (s *strand) turn(p []byte, most int) {
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

// recorded gives what was recorded of each stream that something was written to.
func (r *recording) recorded() []wire.Recorded {
	var out []wire.Recorded
	for _, s := range r.streams {
		out = append(out, wire.Recorded{Stream: s.t, Total: s.total, Head: s.head, Tail: slices.Concat(s.ring[s.at:], s.ring[:s.at])})
	}
	return out
}

// sendRecorded sends what was recorded of a command's output, before its end is told.
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

// recorded gives what was recorded so far.
func (o *output) recorded() []wire.Recorded {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.record.recorded()
}
