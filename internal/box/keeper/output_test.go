//go:build linux && (amd64 || arm64)

package keeper

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// patterned fills p with the bytes of the tests' output at an offset.
func patterned(p []byte, offset int64) {
	for i := range p {
		at := offset + int64(i)
		p[i] = byte(at ^ at>>8 ^ at>>16)
	}
}

// printer adds to an output like pump.
type printer struct {
	o   *output
	buf []byte
	end int64
}

func (w *printer) print(n int) {
	if w.buf == nil {
		w.buf = w.o.buffers.get()
	}
	patterned(w.buf[:n], w.end)
	w.end += int64(n)
	if kept, _ := w.o.add(wire.FrameStdout, w.buf[:n]); kept {
		w.buf = nil
	}
}

// TestOutput_ReusesNoBufferInUse checks that a buffer is reused only when no reader sends from it any more, even when
// its content is too old to be kept.
func TestOutput_ReusesNoBufferInUse(t *testing.T) {
	t.Parallel()
	o := newOutput(new(buffers))
	o.shared = true
	w := &printer{o: o}
	r := o.attach(0, true)
	defer r.close()
	w.print(pumpSize)
	_, p, _, ok := r.next()
	if !ok {
		t.Fatal("next returned nothing")
	}
	was := bytes.Clone(p)
	for w.end < 3*keepOutput {
		w.print(pumpSize)
	}
	if !bytes.Equal(p, was) {
		t.Error("a buffer changed while its reader had it")
	}
	_, p, lost, _ := r.next()
	want := make([]byte, len(p))
	patterned(want, int64(len(was))+lost)
	if lost == 0 || !bytes.Equal(p, want) {
		t.Errorf("the chunk after %d lost bytes is wrong", lost)
	}
}

// TestOutput_ServesManyReaders attaches and detaches readers, some of which are slow and some of which writers do not
// wait for. Each gets the bytes that follow its position; those for which writers wait get all bytes.
func TestOutput_ServesManyReaders(t *testing.T) {
	t.Parallel()
	o := newOutput(new(buffers))
	o.shared = true
	const whole = 24 << 20
	var all sync.WaitGroup
	for i := range 6 {
		watches := i%2 == 1
		r := o.attach(0, watches)
		dice := rand.New(rand.NewPCG(uint64(i), 1))
		all.Go(func() {
			defer func() { r.close() }()
			pos := int64(0)
			for {
				_, p, lost, ok := r.next()
				pos += lost
				if lost > 0 && !watches {
					t.Errorf("reader %d lost %d bytes", i, lost)
				}
				if !ok {
					break
				}
				for range dice.IntN(20) {
					runtime.Gosched()
				}
				want := make([]byte, len(p))
				patterned(want, pos)
				if !bytes.Equal(p, want) {
					t.Errorf("reader %d has wrong bytes at %d", i, pos)
					return
				}
				pos += int64(len(p))
				if dice.IntN(50) == 0 { // the reader is replaced by one at the same position
					next := o.attach(pos, watches)
					r.close()
					r = next
				}
			}
			if pos != whole {
				t.Errorf("reader %d ends at %d", i, pos)
			}
		})
	}
	w := &printer{o: o}
	dice := rand.New(rand.NewPCG(9, 9))
	for w.end < whole {
		n := 1 + dice.IntN(pumpSize)
		if dice.IntN(3) == 0 {
			n = 1 + dice.IntN(1<<10)
		}
		w.print(int(min(int64(n), whole-w.end)))
	}
	o.finish()
	all.Wait()
}
