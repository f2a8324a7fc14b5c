//go:build linux && (amd64 || arm64)

package keeper

import (
	"os"
	"sync"
)

// maxInput is how much input is held for a command that does not read it. After that the following frames wait,
// including signals (see Box.Signal).
const maxInput = 256 << 10

// input carries bytes to a command, so that the frames that follow need not wait for the command.
type input struct {
	f   *os.File
	tty bool

	mu      sync.Mutex
	changed *sync.Cond
	buf     []byte
	ended   bool // no input follows buf
	broken  bool // the reading end is closed
}

func newInput(f *os.File, tty bool) *input {
	in := &input{f: f, tty: tty}
	in.changed = sync.NewCond(&in.mu)
	go in.run() // until close, or until eof and the last byte
	return in
}

func (in *input) write(p []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.buf) >= maxInput && !in.broken {
		in.changed.Wait()
	}
	if in.broken || in.ended {
		return
	}
	in.buf = append(in.buf, p...)
	in.changed.Broadcast()
}

// eof closes the command's input after the bytes that were written. On a terminal it types the end-of-file character.
func (in *input) eof() {
	if in.tty {
		in.write([]byte{4})
		return
	}
	in.mu.Lock()
	in.ended = true
	in.mu.Unlock()
	in.changed.Broadcast()
}

// close discards the rest: the command has exited.
func (in *input) close() {
	in.mu.Lock()
	in.broken = true
	in.mu.Unlock()
	in.changed.Broadcast()
	if !in.tty {
		in.f.Close()
	}
}

func (in *input) run() {
	for {
		in.mu.Lock()
		for len(in.buf) == 0 && !in.ended && !in.broken {
			in.changed.Wait()
		}
		p := in.buf
		in.buf = nil
		stop := in.broken || in.ended && len(p) == 0
		in.mu.Unlock()
		in.changed.Broadcast()
		if stop {
			break
		}
		if _, err := in.f.Write(p); err != nil {
			in.mu.Lock()
			in.broken = true
			in.mu.Unlock()
			in.changed.Broadcast()
			break
		}
	}
	if !in.tty {
		in.f.Close()
	}
}
