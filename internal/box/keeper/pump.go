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
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

const (
	// pumpSize is how many bytes of a command's output are read at once, and pipeSize how many the command may write
	// before they are read. Each read wakes four processes in turn.
	pumpSize = 128 << 10
	pipeSize = 256 << 10

	// writtenTick is how often awaitWritten asks what is still possible, and stalledTicks how often relayed is asked
	// before it gives up: 30 seconds, which a loaded host does not need to carry what fits into a pipe.
	writtenTick  = 100 * time.Millisecond
	stalledTicks = 300
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

// giveTo makes the user of the command the owner of the pipes. Opening /dev/stdout opens the pipe again, which the
// kernel grants or refuses like the opening of a file. A pipe is accessible to its owner only, and an owner that is not
// mapped in the sandbox is nobody there, to its root too.
func (p *pipeEnds) giveTo(u protocol.InsideUser) error {
	uid, ok1 := plan.Outside(u.UIDs, u.UID)
	gid, ok2 := plan.Outside(u.GIDs, u.GID)
	switch {
	case !ok1 || !ok2:
		return fault.New(fault.Internal, "user %d:%d has no ids outside the sandbox", u.UID, u.GID)
	case int(uid) == os.Geteuid() && int(gid) == os.Getegid():
		return nil // the pipes are theirs already
	}
	for _, fd := range p.theirs {
		if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
			return fault.Wrap(err, "change the owner of the command's pipes")
		}
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
	offset, _ := p.position()
	return offset
}

// position returns the result of outstanding, and whether some of it has not been read.
func (p *pipe) position() (offset int64, unread bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	if raw, err := p.f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return p.read + int64(n), n > 0
}

// awaitWritten returns when the output has what was written to p up to offset, except what will never come: other
// processes of the command's user can open a pipe again and read from it, or discard the output of a terminal
// (tcflush(3)). possible returns the offset that the stream can still reach.
func (e *execution) awaitWritten(p *pipe, offset int64, possible func() int64) {
	reached := make(chan struct{})
	e.k.own.Go(func() {
		defer close(reached)
		e.out.wait(p.t, offset)
	})
	tick := time.NewTicker(writtenTick)
	defer tick.Stop()
	for missing := int64(0); ; {
		select {
		case <-reached:
			return
		case <-e.drained: // at the end of all streams nothing more comes
			e.out.skip(p.t, offset)
			return
		case <-tick.C:
			if n := offset - possible(); n > missing {
				e.out.skip(p.t, n-missing)
				missing = n
			}
		}
	}
}

// relayed returns the function possible of awaitWritten for a stream that a relay carries from the sandbox's own kernel
// up to offset. The keeper cannot see what is left in the pipe at the other end. So it gives up when, in as many calls
// as stalledTicks, it had read everything that had come although the sandbox ran. What comes between does not matter:
// otherwise a process that takes the output could write a byte now and then.
func (e *execution) relayed(p *pipe, offset int64) func() int64 {
	waited := 0
	return func() int64 {
		n, unread := p.position()
		if unread || len(e.k.freezing) > 0 || e.k.isPaused() != nil {
			return offset
		}
		if waited++; waited < stalledTicks {
			return offset
		}
		return n
	}
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
