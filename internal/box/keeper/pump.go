//go:build linux && (amd64 || arm64)

package keeper

import (
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// pumpSize is how many bytes of a command's output are read at once, and pipeSize how many the command may write
	// before they are read. Each read wakes four processes in turn.
	pumpSize = 128 << 10
	pipeSize = 256 << 10
)

// pipeEnds are both ends of a command's pipes: of stdout, stderr and, if there is one, stdin.
type pipeEnds struct{ ours, theirs []int }

// open creates the pipes. If one fails, p holds the earlier ones.
func (p *pipeEnds) open(stdin bool) error {
	ends := 2
	if stdin {
		ends = 3
	}
	for i := range ends {
		fds := make([]int, 2)
		if err := unix.Pipe2(fds, unix.O_CLOEXEC); err != nil {
			return fault.Wrap(err, "create the command's pipes")
		}
		if i == 2 {
			fds[0], fds[1] = fds[1], fds[0]
		} else {
			// If the user has exhausted their pipe buffers (pipe-user-pages-soft), the pipe stays smaller.
			_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
		}
		p.ours, p.theirs = append(p.ours, fds[0]), append(p.theirs, fds[1])
		_ = unix.SetNonblock(fds[0], true)
	}
	return nil
}

// files wraps the keeper's ends in files, which close them.
func (p *pipeEnds) files() (files []*os.File) {
	for i, fd := range p.ours {
		files = append(files, os.NewFile(uintptr(fd), [...]string{"stdout", "stderr", "stdin"}[i]))
	}
	return files
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// connect starts to read the output of a running command, from its terminal or its pipes. It returns the command's
// input, or nil without stdin.
func (e *execution) connect(files []*os.File) (in *input) {
	if e.master != nil {
		in = newInput(e.master, true)
		e.pump(e.master, wire.FrameStdout)
	} else {
		if len(files) == 3 {
			in = newInput(files[2], false)
		}
		e.pump(files[0], wire.FrameStdout)
		e.pump(files[1], wire.FrameStderr)
	}
	close(e.ready)
	go func() { e.pumps.Wait(); close(e.drained) }()
	return in
}

// pipe is the keeper's end of one stream of a command's output.
type pipe struct {
	f *os.File
	t wire.FrameType

	mu   sync.Mutex // held while bytes are read from the kernel
	read int64      // number of bytes that were read
}

// outstanding returns the offset in the stream of the last byte that was written to it so far.
func (p *pipe) outstanding() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	if raw, err := p.f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return p.read + int64(n)
}

// take reads into buf.
func (p *pipe) take(raw syscall.RawConn, buf []byte) (n int, err error) {
	e := raw.Read(func(fd uintptr) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for {
			if n, err = unix.Read(int(fd), buf); err != unix.EINTR {
				break
			}
		}
		if n > 0 {
			p.read += int64(n)
		}
		return err != unix.EAGAIN
	})
	if e != nil {
		return 0, e
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}

// pump reads f to its end. After the exit has been reported it discards what it reads, so that background processes
// that hold the pipe are not killed by SIGPIPE.
func (e *execution) pump(f *os.File, t wire.FrameType) {
	p := &pipe{f: f, t: t}
	e.pipes = append(e.pipes, p)
	e.pumps.Go(func() {
		defer f.Close()
		raw, err := f.SyscallConn()
		if err != nil {
			return
		}
		buf := e.k.buffers.get()
		defer func() { e.k.buffers.put(buf) }()
		for {
			n, err := p.take(raw, buf)
			if n > 0 {
				e.k.stirred.stir()
				kept, over := e.out.add(t, buf[:n])
				if kept {
					buf = e.k.buffers.get()
				}
				if over {
					e.end(wire.LimitOutput)
				}
			}
			if err == nil {
				continue
			}
			// EIO means that no process has the terminal open at the moment. While the command runs it can be opened
			// again; closing this end would hang it up.
			if f != e.master || e.hungUp.Load() || e.over() {
				return
			}
			select {
			case <-e.gone:
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}
