//go:build linux && (amd64 || arm64)

package box

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/guest"
	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// lingering is how long a command's end waits, once all that it wrote has
	// been read, while others hold its pipes open.
	lingering = 50 * time.Millisecond
	// termGrace is what a command that ran out of time has between SIGTERM and
	// SIGKILL.
	termGrace = 2 * time.Second
)

// execution is one command.
type execution struct {
	k       *keeper
	id      string
	cmd     []string
	started time.Time
	born    chan guest.Spawned
	pid     int      // set before Started is sent
	master  *os.File // with a terminal, else nil
	out     *output
	ready   chan struct{} // closed when pipes is complete
	pipes   []*pipe
	pumps   sync.WaitGroup
	gone    chan struct{} // closed when the command has ended
	drained chan struct{} // closed when all output has been read
	hungUp  atomic.Bool   // the master is closed, or will be at once

	mu       sync.Mutex
	timer    *time.Timer
	timedOut bool
	conn     net.Conn // who is attached
	in       *input   // nil without stdin; set before anybody attends
	exit     *wire.Exit
	at       time.Time  // of the exit
	result   *wire.Exit // what exit will be, once the output is complete
	alone    bool       // no process was left when the command was reaped
}

func (k *keeper) newID() string {
	var b [5]byte
	_, _ = rand.Read(b[:])
	return "x" + hex.EncodeToString(b[:])
}

// exec carries an exec stream. A nil error means that the stream has had its last
// frame, or its reader is gone.
func (k *keeper) exec(conn *net.UnixConn, req wire.ExecRequest) error {
	if req.Attach != "" {
		k.mu.Lock()
		e := k.execs[req.Attach]
		k.mu.Unlock()
		if e == nil {
			return fault.New(fault.NotFound, "exec %s has ended and its result was collected", req.Attach)
		}
		return e.attend(conn, req.Offset)
	}
	e, err := k.start(req)
	if err != nil {
		return err
	}
	return e.attend(conn, 0)
}

// start runs the command; a command that cannot be run is an execution that has
// ended.
func (k *keeper) start(req wire.ExecRequest) (*execution, error) {
	e := &execution{
		k: k, id: k.newID(), cmd: req.Cmd, started: time.Now(),
		born: make(chan guest.Spawned, 1), out: newOutput(), gone: make(chan struct{}), ready: make(chan struct{}), drained: make(chan struct{}),
	}
	spawn := guest.Spawn{Cmd: req.Cmd, Env: req.Env, Dir: req.Dir, TTY: req.TTY, Size: req.Size}
	var theirs, ours []int
	defer func() {
		for _, fd := range theirs {
			unix.Close(fd)
		}
	}()
	if !req.TTY {
		ends := 2
		if req.Stdin {
			ends = 3
		}
		for i := range ends {
			p := make([]int, 2)
			if err := unix.Pipe2(p, unix.O_CLOEXEC); err != nil {
				for _, fd := range ours {
					unix.Close(fd)
				}
				return nil, fault.Wrap(err, "make the command's pipes")
			}
			if i == 2 {
				p[0], p[1] = p[1], p[0]
			}
			ours, theirs = append(ours, p[0]), append(theirs, p[1])
			_ = unix.SetNonblock(p[0], true)
		}
	}
	k.spawning.Lock()
	k.mu.Lock()
	if k.ending {
		k.mu.Unlock()
		k.spawning.Unlock()
		for _, fd := range ours {
			unix.Close(fd)
		}
		return nil, fault.New(fault.Unavailable, "the sandbox is being stopped")
	}
	k.order = append(k.order, e)
	k.execs[e.id] = e
	k.mu.Unlock()
	err := k.link.Send(guest.MsgSpawn, spawn, theirs...)
	k.spawning.Unlock()

	var files []*os.File
	for i, fd := range ours {
		files = append(files, os.NewFile(uintptr(fd), [...]string{"stdout", "stderr", "stdin"}[i]))
	}
	if err != nil {
		k.quit() // init is gone: end answers for it
	}
	s := <-e.born
	if s.PID == 0 {
		for _, f := range files {
			f.Close()
		}
		if s.Err != nil {
			k.drop(e)
			return nil, (*failure)(s.Err).fault()
		}
		close(e.drained)
		e.finish(wire.Exit{Code: s.Code, Message: s.Message})
		return e, nil
	}
	var in *input
	if e.master != nil {
		in = newInput(e.master, true)
		e.pump(e.master, wire.FrameStdout)
	} else {
		if req.Stdin {
			in = newInput(files[2], false)
		}
		e.pump(files[0], wire.FrameStdout)
		e.pump(files[1], wire.FrameStderr)
	}
	close(e.ready)
	go func() { e.pumps.Wait(); close(e.drained) }()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.in = in
	switch {
	case e.exit != nil: // already
		if in != nil {
			in.close()
		}
	case req.TimeoutMS > 0:
		e.timer = time.AfterFunc(time.Duration(req.TimeoutMS)*time.Millisecond, e.expire)
	}
	return e, nil
}

// spawned pairs init's answer with the oldest request. It runs in the goroutine
// that also hands out exits, so a command is known before it ends.
func (k *keeper) spawned(s guest.Spawned, fds []int) {
	k.mu.Lock()
	if len(k.order) == 0 {
		k.mu.Unlock()
		guest.Message{FDs: fds}.Close()
		return
	}
	e := k.order[0]
	k.order = k.order[1:]
	if s.PID != 0 {
		e.pid = s.PID
		k.byPID[s.PID] = e
	}
	k.mu.Unlock()
	if len(fds) == 1 {
		_ = unix.SetNonblock(fds[0], true)
		e.master = os.NewFile(uintptr(fds[0]), "terminal")
	}
	e.born <- s
}

func (k *keeper) drop(e *execution) {
	k.mu.Lock()
	delete(k.execs, e.id)
	k.mu.Unlock()
}

// pipe is one stream of a command's output, at our end.
type pipe struct {
	f *os.File
	t wire.FrameType

	mu   sync.Mutex // held while bytes leave the kernel
	read int64      // how many did
}

// outstanding gives the offset in the stream of the last byte that has been
// written to it so far.
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

// pump reads f to its end. After the exit has been told, what still comes is read
// and thrown away, so that background processes that hold the pipe live on.
func (e *execution) pump(f *os.File, t wire.FrameType) {
	p := &pipe{f: f, t: t}
	e.pipes = append(e.pipes, p)
	e.pumps.Go(func() {
		defer f.Close()
		raw, err := f.SyscallConn()
		if err != nil {
			return
		}
		buf := pumpBuffers.Get().(*[pumpSize]byte)
		defer pumpBuffers.Put(buf)
		for {
			n, err := p.take(raw, buf[:])
			if n > 0 {
				e.out.add(t, buf[:n])
			}
			if err == nil {
				continue
			}
			// EIO says that nobody holds the terminal open at the moment. While
			// the command lives it can be opened again; closing our end would
			// hang it up.
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

// over reports whether the command has ended.
func (e *execution) over() bool {
	select {
	case <-e.gone:
		return true
	case <-e.k.stop:
		return true
	default:
		return false
	}
}

const pumpSize = 32 << 10

var pumpBuffers = sync.Pool{New: func() any { return new([pumpSize]byte) }}

// exited takes the command's wait status.
func (e *execution) exited(ws unix.WaitStatus, alone bool) {
	x := wire.Exit{Code: ws.ExitStatus()}
	if ws.Signaled() {
		x.Code = 128 + int(ws.Signal())
		x.Signal = strings.TrimPrefix(unix.SignalName(ws.Signal()), "SIG")
	}
	e.mu.Lock()
	if e.timer != nil {
		e.timer.Stop()
	}
	if e.timedOut {
		x.Code, x.TimedOut = 124, true
	}
	e.result, e.alone = &x, alone
	e.mu.Unlock()
	close(e.gone)
	select {
	case <-e.drained:
		e.finish(x)
		return
	default:
	}
	// Somebody must wait, and init's other messages cannot.
	e.k.own.Go(func() {
		// What the command wrote is told, however slowly it is read; for what
		// others may still write there is a moment.
		select {
		case <-e.ready:
			for _, p := range e.pipes {
				e.out.wait(p.t, p.outstanding())
			}
		case <-e.k.stop:
		}
		select {
		case <-e.drained:
		case <-time.After(lingering):
		case <-e.k.stop:
		}
		e.finish(x)
	})
}

// finish sets the result, once.
func (e *execution) finish(x wire.Exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit != nil {
		return
	}
	if e.result != nil { // whoever calls
		x = *e.result
	}
	e.exit, e.at = &x, time.Now()
	if e.timer != nil {
		e.timer.Stop()
	}
	e.out.finish()
	if e.in != nil {
		e.in.close()
	}
}

func (e *execution) ended() (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.exit != nil
}

func (e *execution) status() ExecStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return ExecStatus{ID: e.id, PID: e.pid, Cmd: e.cmd, Started: e.started, Attached: e.conn != nil, Exit: e.exit}
}

// expire ends a command whose time is up: its group is asked, and when it is over
// or does not heed, its whole tree is killed.
func (e *execution) expire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit != nil {
		return
	}
	e.timedOut = true
	_ = e.k.link.Send(guest.MsgKill, guest.Kill{PID: e.pid, Signal: int(unix.SIGTERM), Whom: guest.KillGroup, Doom: true})
	_ = e.k.link.Send(guest.MsgKill, guest.Kill{PID: e.pid, Signal: int(unix.SIGCONT), Whom: guest.KillGroup})
	e.timer = time.AfterFunc(termGrace, func() {
		_ = e.k.link.Send(guest.MsgKill, guest.Kill{PID: e.pid, Signal: int(unix.SIGKILL), Whom: guest.KillTree})
	})
}

// attend serves whoever is attached, from offset on, until the exec's end or the
// reader's.
func (e *execution) attend(conn *net.UnixConn, offset int64) error {
	e.mu.Lock()
	if before := e.conn; before != nil {
		before.Close() // it is taken away
	}
	e.conn = conn
	e.mu.Unlock()
	r := e.out.attach(offset)
	var input sync.WaitGroup
	defer func() {
		conn.Close()
		r.detach()
		e.mu.Lock()
		if e.conn == conn {
			e.conn = nil
		}
		e.mu.Unlock()
		input.Wait()
	}()
	if e.pid != 0 {
		if err := wire.WriteJSON(conn, wire.FrameStarted, wire.Started{Exec: e.id, PID: e.pid}); err != nil {
			return nil
		}
	}
	input.Go(func() {
		e.listen(conn)
		r.detach()
	})
	for {
		t, p, lost, ok := r.next()
		if lost > 0 {
			if err := wire.WriteJSON(conn, wire.FrameDropped, wire.Dropped{Bytes: lost}); err != nil {
				return nil
			}
		}
		if !ok {
			break
		}
		if err := wire.WriteFrame(conn, t, p); err != nil {
			return nil
		}
	}
	if !r.complete() {
		return nil // detached
	}
	e.mu.Lock()
	x := Exit{Exit: *e.exit, Alone: e.alone}
	e.mu.Unlock()
	if err := wire.WriteJSON(conn, wire.FrameExit, x); err == nil {
		e.k.drop(e)
	}
	return nil
}

// listen takes the frames of whoever is attached.
func (e *execution) listen(conn net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		t, p, err := wire.ReadFrame(conn, buf)
		if err != nil {
			return
		}
		switch t {
		case wire.FrameStdin:
			if e.in != nil {
				e.in.write(p)
			}
		case wire.FrameStdinEOF:
			if e.in != nil {
				e.in.eof()
			}
		case wire.FrameHangup:
			e.hangUp()
		case wire.FrameResize:
			var s wire.Size
			if e.master != nil && json.Unmarshal(p, &s) == nil {
				e.resize(s)
			}
		case wire.FrameSignal:
			var s wire.Signal
			if json.Unmarshal(p, &s) == nil {
				_ = e.signal(s.Name)
			}
		}
	}
}

// hangUp tells the command that nobody is there any more, as ssh and docker do:
// its input ends, or its terminal is hung up, by which the kernel sends SIGHUP to
// the session's leader and to the group in the foreground. It may be called
// twice.
func (e *execution) hangUp() {
	switch {
	case e.master != nil:
		e.hungUp.Store(true)
		e.master.Close()
	case e.in != nil:
		e.in.eof()
	}
}

func (e *execution) resize(s wire.Size) {
	_ = e.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
	})
}

func (e *execution) control(f func(fd int) error) (err error) {
	raw, err := e.master.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

// signal reaches the command's process group; with a terminal, INT, QUIT and TSTP
// reach the group in the foreground, as typing them would.
func (e *execution) signal(name string) error {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if sig == 0 {
		return fault.New(fault.Invalid, "there is no signal %q", name).WithHint("use a name such as TERM or INT")
	}
	if e.master != nil && (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTSTP) {
		const tiocsig = 0x40045436
		if e.control(func(fd int) error { return unix.IoctlSetInt(fd, tiocsig, int(sig)) }) == nil {
			return nil
		}
	}
	return e.k.link.Send(guest.MsgKill, guest.Kill{PID: e.pid, Signal: int(sig), Whom: guest.KillGroup})
}

func (k *keeper) signal(exec, name string) error {
	k.mu.Lock()
	e := k.execs[exec]
	k.mu.Unlock()
	if e == nil || e.pid == 0 {
		return fault.New(fault.NotFound, "no exec %s runs", exec)
	}
	return e.signal(name)
}
