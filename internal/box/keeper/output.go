//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"sync"

	"github.com/coppice-dev/coppice/client/wire"
)

const (
	// keepOutput is how much of an exec's newest output is kept while nobody
	// reads it.
	keepOutput = 1 << 20
	// keepSent is how much is kept of what a reader has been sent: it may have
	// been lost on its way.
	keepSent = 1 << 20
	// window is how far a command may run ahead of an attached reader.
	window = 512 << 10
	// frameFull is what small writes are joined up to.
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

// put takes back a buffer, or the beginning of one, that nobody has any more.
func (b *buffers) put(p []byte) { b.pool.Put((*[pumpSize]byte)(p[:pumpSize])) }

// output is what a command wrote, from its first byte that is still kept to its
// last. While a reader is attached the writers wait for it; while none is, they
// never wait and the oldest bytes are dropped. Readers that only watch are waited
// for by nobody: what they do not read in time is dropped for them.
type output struct {
	shared  bool  // several readers may be attached; set before the first is
	limit   int64 // of all bytes; 0 is none. Set before the first is added
	buffers *buffers

	mu       sync.Mutex
	changed  *sync.Cond
	chunks   []*chunk
	start    int64 // offset of the first kept byte
	end      int64
	readers  map[*reader]bool         // who is attached
	finished bool                     // what comes now is thrown away
	over     bool                     // there was more than limit
	record   recording                // of what was added
	dropped  bool                     // nobody's reading is waited for any more
	taken    map[wire.FrameType]int64 // bytes added, by stream
}

// chunk is bytes of one stream. It is guarded by output.mu, but for what data holds:
// that changes only when nobody reads it any more.
type chunk struct {
	t       wire.FrameType
	data    []byte
	readers int  // who has data, and may be sending it
	dropped bool // it is not in the output any more
}

func newOutput(b *buffers) *output {
	o := &output{buffers: b, taken: map[wire.FrameType]int64{}, readers: map[*reader]bool{}}
	o.changed = sync.NewCond(&o.mu)
	return o
}

// reuse takes back the buffer of a chunk that nobody can get any more, once nobody
// has it either. o.mu is held.
func (o *output) reuse(c *chunk) {
	if !c.dropped || c.readers > 0 {
		return
	}
	if cap(c.data) == pumpSize {
		o.buffers.put(c.data)
	}
	c.data = nil
}

// add appends p, of which it keeps a copy; or p itself, the beginning of one of the
// buffers, when it is as large as frames are to be, and then says so. What goes beyond the
// limit is thrown away, and over is true.
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

// slowest is where the slowest of those readers is that writers wait for; the end
// when there is none. o.mu is held.
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

// unheld returns when nobody is attached any more whom writers wait for, or the
// box is given up: what was written has reached them.
func (o *output) unheld() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.held() && !o.dropped {
		o.changed.Wait()
	}
}

// held reports whether writers wait for somebody. o.mu is held.
func (o *output) held() bool {
	for r := range o.readers {
		if !r.watches {
			return true
		}
	}
	return false
}

// drop lets go of whoever waits in unheld.
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
	watches bool   // nobody waits for it
	pos     int64  // guarded by o.mu: the next byte to send
	has     *chunk // guarded by o.mu: what next gave; nil: nothing
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

// tail gives the offset after the first end of a line at or after from. o.mu is
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

// close takes the reader off, and lets go of what next gave. Nobody may be in next.
func (r *reader) close() {
	r.detach()
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	r.release()
}

// release lets go of what next gave. o.mu is held.
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
