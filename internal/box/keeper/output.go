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
	// keepSent is how many of the bytes that were sent to a reader are kept: they may have been lost in transit.
	keepSent = 1 << 20
	// window is how far a command may run ahead of an attached reader.
	window = 512 << 10
	// frameFull is the size up to which small writes are joined.
	frameFull = 32 << 10
)

// buffers are of size pumpSize and reused. Allocating one for each read would dominate the work of the garbage
// collector.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() []byte {
	if p, ok := b.pool.Get().(*[pumpSize]byte); ok {
		return p[:]
	}
	return make([]byte, pumpSize)
}

// put takes back an unused buffer, or the beginning of one.
func (b *buffers) put(p []byte) { b.pool.Put((*[pumpSize]byte)(p[:pumpSize])) }

// output is the output of a command, from the first byte that is still kept to the last. Writers wait for attached
// readers. Without a reader they never wait, and the oldest bytes are dropped. Writers do not wait for readers that
// only watch; these lose what they do not read in time.
type output struct {
	shared  bool  // several readers may attach; set before the first one does
	limit   int64 // of all bytes; 0 for none; set before the first byte is added
	buffers *buffers

	mu       sync.Mutex
	changed  *sync.Cond
	chunks   []*chunk
	start    int64 // offset of the first kept byte
	end      int64
	readers  map[*reader]bool         // attached readers
	finished bool                     // later output is discarded
	over     bool                     // more than limit was written
	record   recording                // recording of the added bytes
	dropped  bool                     // awaitReaders no longer waits
	taken    map[wire.FrameType]int64 // bytes added, by stream; and those that skip counts
}

// chunk is bytes of one stream. It is guarded by output.mu, except for the bytes in data, which change only while no
// reader has the chunk.
type chunk struct {
	t       wire.FrameType
	data    []byte
	readers int  // number of readers that have data and may be sending it
	dropped bool // removed from the output
}

func newOutput(b *buffers) *output {
	o := &output{buffers: b, taken: map[wire.FrameType]int64{}, readers: map[*reader]bool{}}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// reuse takes back the buffer of a dropped chunk once no reader has the chunk. o.mu is held.
func (o *output) reuse(c *chunk) {
	if !c.dropped || c.readers > 0 {
		return
	}
	if cap(c.data) == pumpSize {
		o.buffers.put(c.data)
	}
	c.data = nil
}

// add appends a copy of p, or p itself if p is the beginning of one of the buffers and as large as a full frame; kept
// is then true. It discards the bytes beyond the limit; over is then true.
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

// exceeded reports whether output was discarded because of the limit.
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

// caughtUp reports whether a reader has received everything. o.mu is held.
func (o *output) caughtUp() bool {
	for r := range o.readers {
		if r.pos == o.end {
			return true
		}
	}
	return false
}

// awaitReaders returns when no attached reader delays writers, or drop was called: the output has then reached the
// readers.
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

// wait returns when stream t has been added up to offset, or the output is finished.
func (o *output) wait(t wire.FrameType, offset int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.taken[t] < offset && !o.finished {
		o.changed.Wait()
	}
}

// skip counts n bytes of stream t as added: they were written to it, and will never be read from it.
func (o *output) skip(t wire.FrameType, n int64) {
	o.mu.Lock()
	o.taken[t] += n
	o.mu.Unlock()
	o.changed.Broadcast()
}

// finish discards all later output.
func (o *output) finish() {
	o.mu.Lock()
	o.finished = true
	o.mu.Unlock()
	o.changed.Broadcast()
}

// reader is one attached reader.
type reader struct {
	o       *output
	watches bool   // writers do not wait for this reader
	pos     int64  // guarded by o.mu: the next byte to send
	has     *chunk // guarded by o.mu: the chunk that next returned; nil for none
}

// attach adds a reader that starts at offset. A negative offset counts from the end, and starts after the end of a line
// if possible. Unless the output is shared, the reader replaces any other.
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

// tail returns the offset after the first end of a line at or after from. o.mu is held.
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

// detach removes the reader if it is still attached. next then returns nothing.
func (r *reader) detach() {
	r.o.mu.Lock()
	delete(r.o.readers, r)
	r.o.mu.Unlock()
	r.o.changed.Broadcast()
}

// next waits for output. The caller may read p until it calls next or close again. lost is how many bytes before p were
// dropped. ok is false if the reader was detached, or the output has ended. Only one goroutine may call it.
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

// from returns the offset of the next byte that next returns.
func (r *reader) from() int64 {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	return r.pos
}

// complete reports whether the reader has received everything.
func (r *reader) complete() bool {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	return r.o.readers[r] && r.o.finished && r.pos >= r.o.end
}
