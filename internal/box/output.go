//go:build linux && (amd64 || arm64)

package box

import (
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
)

const (
	// keepOutput is how much of an exec's newest output is kept while nobody
	// reads it.
	keepOutput = 1 << 20
	// keepSent is how much is kept of what a reader has been sent: it may have
	// been lost on its way.
	keepSent = 512 << 10
	// window is how far a command may run ahead of an attached reader.
	window = 256 << 10
	// frameFull is what small writes are joined up to.
	frameFull = 32 << 10
)

// output is what a command wrote, from its first byte that is still kept to its
// last. While a reader is attached the writers wait for it; while none is, they
// never wait and the oldest bytes are dropped.
type output struct {
	mu       sync.Mutex
	changed  *sync.Cond
	chunks   []chunk
	start    int64 // offset of the first kept byte
	end      int64
	reader   *reader                  // who is attached
	finished bool                     // what comes now is thrown away
	taken    map[wire.FrameType]int64 // bytes added, by stream
}

type chunk struct {
	t    wire.FrameType
	data []byte
}

func newOutput() *output {
	o := &output{taken: map[wire.FrameType]int64{}}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// add appends a copy of p.
func (o *output) add(t wire.FrameType, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.finished && o.reader != nil && o.end-o.reader.pos >= window {
		o.changed.Wait()
	}
	defer o.changed.Broadcast()
	o.taken[t] += int64(len(p))
	if o.finished {
		return
	}
	if n := len(o.chunks); n > 0 && o.chunks[n-1].t == t && len(o.chunks[n-1].data)+len(p) <= frameFull && (o.reader == nil || o.reader.pos != o.end) {
		o.chunks[n-1].data = append(o.chunks[n-1].data, p...)
	} else {
		o.chunks = append(o.chunks, chunk{t, append(make([]byte, 0, len(p)), p...)})
	}
	o.end += int64(len(p))
	keep := int64(keepOutput)
	if o.reader != nil {
		keep = keepSent
	}
	for len(o.chunks) > 0 && o.end-o.start-int64(len(o.chunks[0].data)) >= keep {
		o.start += int64(len(o.chunks[0].data))
		o.chunks[0].data = nil
		o.chunks = o.chunks[1:]
	}
}

// wait returns when stream t has been added up to offset, or nothing more is of
// interest.
func (o *output) wait(t wire.FrameType, offset int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.taken[t] < offset && !o.finished {
		o.changed.Wait()
	}
}

// finish says that nothing more is of interest.
func (o *output) finish() {
	o.mu.Lock()
	o.finished = true
	o.mu.Unlock()
	o.changed.Broadcast()
}

// reader is one attached reader.
type reader struct {
	o   *output
	pos int64 // guarded by o.mu: the next byte to send
}

// attach makes a reader that starts at offset, in place of any other.
func (o *output) attach(offset int64) *reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := &reader{o: o, pos: min(max(offset, 0), o.end)}
	o.reader = r
	o.changed.Broadcast()
	return r
}

// detach takes the reader off, unless another has taken its place.
func (r *reader) detach() {
	r.o.mu.Lock()
	if r.o.reader == r {
		r.o.reader = nil
	}
	r.o.mu.Unlock()
	r.o.changed.Broadcast()
}

// next waits for output. lost is how many bytes before it were dropped. ok is
// false when the reader was detached, or the output has ended.
func (r *reader) next() (t wire.FrameType, p []byte, lost int64, ok bool) {
	o := r.o
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.reader == r && r.pos >= o.end && !o.finished {
		o.changed.Wait()
	}
	if o.reader != r {
		return 0, nil, 0, false
	}
	if r.pos < o.start {
		lost, r.pos = o.start-r.pos, o.start
	}
	if r.pos >= o.end {
		return 0, nil, lost, false
	}
	at := o.start
	for _, c := range o.chunks {
		next := at + int64(len(c.data))
		if r.pos < next {
			p = c.data[r.pos-at:]
			r.pos = next
			o.changed.Broadcast()
			return c.t, p, lost, true
		}
		at = next
	}
	return 0, nil, lost, false
}

// complete reports whether the reader has had everything.
func (r *reader) complete() bool {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	return r.o.reader == r && r.o.finished && r.pos >= r.o.end
}
