//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
)

const (
	// keepOutput is how many bytes of an exec's newest output are kept while no reader is attached.
	keepOutput = 1 << 20
	// keepSent is how many bytes are kept of what a reader was sent: they may have been lost on the way.
	keepSent = 1 << 20
	// window is how far a command may run ahead of an attached reader.
	window = 512 << 10
	// frameFull is the size up to which small writes are joined.
	frameFull = 32 << 10
)

// buffers are of pumpSize, and are filled again and again: to make one for each read
// keeps the garbage collector busier than all else.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() []byte {
	if p, ok := b.pool.Get().(*[pumpSize]byte); ok {
		return p[:]
	}
	return make([]byte, pumpSize)
}

// put takes back a buffer, or the beginning of one, that has no user.
func (b *buffers) put(p []byte) { b.pool.Put((*[pumpSize]byte)(p[:pumpSize])) }

// output is what a command wrote, from the first byte that is still kept to the last. Writers wait for
// attached readers; without one they never wait, and the oldest bytes are dropped. Writers do not wait for
// readers that only watch, which lose what they do not read in time.
type output struct {
	shared  bool  // several readers may be attached; set before the first is
	limit   int64 // of all bytes; 0: unlimited. Set before the first is added
	buffers *buffers

	mu       sync.Mutex
	changed  *sync.Cond
	chunks   []*chunk
	start    int64 // offset of the first kept byte
	end      int64
	readers  map[*reader]bool         // attached
	finished bool                     // later output is discarded
	over     bool                     // there was more than limit
	record   recording                // of the added bytes
	dropped  bool                     // awaitReaders no longer waits
	taken    map[wire.FrameType]int64 // bytes added, by stream
}

// chunk is bytes of one stream. It is guarded by output.mu, except for the bytes in data: those change only
// when no reader has the chunk.
type chunk struct {
	t       wire.FrameType
	data    []byte
	readers int  // readers that have data and may be sending it
	dropped bool // it is not in the output any more
}

func newOutput(b *buffers) *output {
	o := &output{buffers: b, taken: map[wire.FrameType]int64{}, readers: map[*reader]bool{}}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// reuse takes back the buffer of a dropped chunk, once no reader has it either. o.mu is held.
func (o *output) reuse(c *chunk) {
	if !c.dropped || c.readers > 0 {
		return
	}
	if cap(c.data) == pumpSize {
		o.buffers.put(c.data)
	}
	c.data = nil
}

// add appends a copy of p, or p itself if it is the beginning of one of the buffers and as large as a full
// frame; kept then is true. It discards what exceeds the limit, and over is true.
func (o *output) add(t wire.FrameType, p []byte) (kept, over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.finished && !o.over && o.end-o.slowest() >= window {
		o.changed.Wait()
	}
	defer o.changed.Broadcast()
	o.taken[t] += int64(len(p))
	if o.finished {
		return false, false
	}
	if left := o.limit - o.end; o.limit > 0 && int64(len(p)) > left {
		o.over = true
		if p = p[:left]; len(p) == 0 {
			return false, true
		}
	}
	o.record.add(t, p)
	if n := len(o.chunks); n > 0 && o.chunks[n-1].t == t && len(o.chunks[n-1].data)+len(p) <= frameFull && !o.caughtUp() {
		o.chunks[n-1].data = append(o.chunks[n-1].data, p...)
	} else {
		if kept = len(p) >= frameFull; !kept {
			p = append(make([]byte, 0, len(p)), p...)
		}
		o.chunks = append(o.chunks, &chunk{t: t, data: p})
	}
	o.end += int64(len(p))
	keep := int64(keepOutput)
	if len(o.readers) > 0 && !o.shared {
		keep = keepSent
	}
	for len(o.chunks) > 0 && o.end-o.start-int64(len(o.chunks[0].data)) >= keep {
		c := o.chunks[0]
		o.record.drop(c.t, c.data)
		o.start += int64(len(c.data))
		o.chunks[0] = nil
		o.chunks = o.chunks[1:]
		c.dropped = true
		o.reuse(c)
	}
	return kept, o.over
}

// exceeded reports whether something was thrown away for the limit.
func (o *output) exceeded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// slowest returns the position of the slowest reader that writers wait for, or the end of the output if there
// is none. o.mu is held.
func (o *output) slowest() int64 {
	pos := o.end
	for r := range o.readers {
		if !r.watches {
			pos = min(pos, r.pos)
		}
	}
	return pos
}

// caughtUp reports whether a reader has had everything. o.mu is held.
func (o *output) caughtUp() bool {
	for r := range o.readers {
		if r.pos == o.end {
			return true
		}
	}
	return false
}

// awaitReaders returns when no attached reader holds writers up, or the box is given up: what was written has
// reached the readers.
func (o *output) awaitReaders() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.blocked() && !o.dropped {
		o.changed.Wait()
	}
}

// blocked reports whether writers wait for a reader. o.mu is held.
func (o *output) blocked() bool {
	for r := range o.readers {
		if !r.watches {
			return true
		}
	}
	return false
}

// drop releases callers of awaitReaders.
func (o *output) drop() {
	o.mu.Lock()
	o.dropped = true
	o.mu.Unlock()
	o.changed.Broadcast()
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
	o       *output
	watches bool   // writers do not wait for it
	pos     int64  // guarded by o.mu: the next byte to send
	has     *chunk // guarded by o.mu: what next returned; nil: nothing
}

// attach makes a reader that starts at offset; a negative one counts from the
// end, and begins after a line's end where it can. Unless the output is shared,
// the reader takes the place of any other.
func (o *output) attach(offset int64, watches bool) *reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset < 0 {
		offset = o.tail(o.end + offset)
	}
	r := &reader{o: o, watches: watches, pos: min(offset, o.end)}
	if !o.shared {
		clear(o.readers)
	}
	o.readers[r] = true
	o.changed.Broadcast()
	return r
}

// tail returns the offset after the first end of a line at or after from. o.mu is
// held.
func (o *output) tail(from int64) int64 {
	if from <= o.start {
		return o.start
	}
	at := o.start
	for _, c := range o.chunks {
		next := at + int64(len(c.data))
		if next > from {
			if i := bytes.IndexByte(c.data[max(from-at, 0):], '\n'); i >= 0 {
				return max(from, at) + int64(i) + 1
			}
		}
		at = next
	}
	return from
}

// close removes the reader and releases its chunk. It must not be called during next.
func (r *reader) close() {
	r.detach()
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	r.release()
}

// release releases the chunk that next returned. o.mu is held.
func (r *reader) release() {
	if c := r.has; c != nil {
		r.has = nil
		c.readers--
		r.o.reuse(c)
	}
}

// detach takes the reader off, if it still is attached. next then gives nothing.
func (r *reader) detach() {
	r.o.mu.Lock()
	delete(r.o.readers, r)
	r.o.mu.Unlock()
	r.o.changed.Broadcast()
}

// next waits for output, which is the caller's to read until the following next, or
// close. lost is how many bytes before it were dropped. ok is false when the reader
// was detached, or the output has ended. One goroutine calls it.
func (r *reader) next() (t wire.FrameType, p []byte, lost int64, ok bool) {
	o := r.o
	o.mu.Lock()
	defer o.mu.Unlock()
	r.release()
	for o.readers[r] && r.pos >= o.end && !o.finished {
		o.changed.Wait()
	}
	if !o.readers[r] {
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
			r.pos, r.has = next, c
			c.readers++
			o.changed.Broadcast()
			return c.t, p, lost, true
		}
		at = next
	}
	return 0, nil, lost, false
}

// from is the offset of the next byte that next will give.
func (r *reader) from() int64 {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	return r.pos
}

// complete reports whether the reader has had everything.
func (r *reader) complete() bool {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	return r.o.readers[r] && r.o.finished && r.pos >= r.o.end
}
