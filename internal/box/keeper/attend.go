//go:build linux && (amd64 || arm64)

package keeper

import (
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The operations of clients that are attached to a command: they read, write, resize its terminal, signal and cancel
// it.

// cancel terminates a command whose result is not needed.
func (k *keeper) cancel(exec string) error {
	e, err := k.running(exec)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit == nil && e.result == nil {
		e.terminate()
	}
	return nil
}

// terminate sends SIGTERM to a command's process group. When the command has exited or ignores the signal, its whole
// tree is killed. e.mu is held.
func (e *execution) terminate() {
	if e.timer != nil {
		e.timer.Stop()
	}
	_ = e.k.link.Send(initlink.MsgKill,
		initlink.Kill{PID: e.pid, Signal: int(unix.SIGTERM), Whom: initlink.KillGroup, Doom: true})
	_ = e.k.link.Send(initlink.MsgKill, initlink.Kill{PID: e.pid, Signal: int(unix.SIGCONT), Whom: initlink.KillGroup})
	e.timer = time.AfterFunc(plan.TermGrace, func() {
		_ = e.k.link.Send(initlink.MsgKill, initlink.Kill{PID: e.pid, Signal: int(unix.SIGKILL), Whom: initlink.KillTree})
	})
}

// attend serves an attached client, as req specifies, until the exec exits or the client disconnects. Unless the
// command is supervised, it detaches the previous client.
func (e *execution) attend(conn *net.UnixConn, req wire.ExecRequest) error {
	e.mu.Lock()
	if !e.kept {
		for before := range e.conns {
			before.Close()
		}
		clear(e.conns)
	}
	e.conns[conn] = true
	e.mu.Unlock()
	// A blocked terminal must not delay the output of the other clients.
	r := e.out.attach(req.Offset, e.kept && (req.ReadOnly || e.tty))
	var input sync.WaitGroup
	defer func() {
		conn.Close()
		r.close()
		e.mu.Lock()
		delete(e.conns, conn)
		e.mu.Unlock()
		input.Wait()
	}()
	if e.kept && req.Attach != "" && req.Size != nil && !req.ReadOnly {
		e.redraw(*req.Size)
	}
	if e.pid != 0 {
		if err := wire.WriteJSON(conn, wire.FrameStarted,
			wire.Started{Exec: e.id, PID: e.pid, Offset: r.from()}); err != nil {
			return nil
		}
	}
	input.Go(func() {
		e.listen(conn, e.kept && req.ReadOnly)
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
		return nil // the client was detached
	}
	if !e.kept { // callers of wait fetch the result of a supervised command
		if err := e.sendRecorded(conn); err != nil {
			return nil
		}
	}
	if err := wire.WriteJSON(conn, wire.FrameExit, e.reported()); err == nil && !e.kept {
		e.k.drop(e.id)
	}
	return nil
}

// listen handles the frames of an attached client, and ignores those of a client that only watches.
func (e *execution) listen(conn net.Conn, watches bool) {
	buf := make([]byte, 4<<10)
	for {
		t, p, err := wire.ReadFrame(conn, buf)
		if err != nil {
			return
		}
		if watches || e.kept && t == wire.FrameHangup || e.kept && e.tty && t == wire.FrameStdinEOF {
			continue // one of several clients at a terminal does not end its input
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

// hangUp signals to the command that no client is left, as ssh and docker do: it closes the command's input, or hangs
// up its terminal, on which the kernel sends SIGHUP to the session leader and to the foreground process group. It may
// be called twice.
func (e *execution) hangUp() {
	switch {
	case e.master != nil:
		e.hungUp.Store(true)
		e.master.Close()
	case e.in != nil:
		e.in.eof()
	}
}

// redraw sets the size of the terminal and makes the program in it redraw its screen for a client that has just
// attached. Programs redraw when the size changes, so redraw changes it briefly, as dtach(1) and abduco(1) do.
func (e *execution) redraw(s wire.Size) {
	if e.master == nil || s.Rows < 2 || s.Cols == 0 {
		return
	}
	e.mu.Lock()
	same := e.size == s
	e.mu.Unlock()
	if same {
		e.resize(wire.Size{Cols: s.Cols, Rows: s.Rows - 1})
	}
	e.resize(s)
}

func (e *execution) resize(s wire.Size) {
	e.mu.Lock()
	e.size = s
	e.mu.Unlock()
	if e.k.config.Tier == plan.TierGvisor {
		_ = e.k.link.Send(initlink.MsgResize, initlink.Resize{PID: e.pid, Size: s})
		return
	}
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

// signal sends a signal to the command's process group. With a terminal, INT, QUIT and TSTP are sent to the foreground
// process group, as if they were typed.
func (e *execution) signal(name string) error {
	sig, err := signalNumber(name)
	if err != nil {
		return err
	}
	if e.master != nil && (sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTSTP) {
		if e.k.config.Tier == plan.TierGvisor {
			return e.k.link.Send(initlink.MsgKill, initlink.Kill{PID: e.pid, Signal: int(sig), Whom: initlink.KillForeground})
		}
		const tiocsig = 0x40045436
		if e.control(func(fd int) error { return unix.IoctlSetInt(fd, tiocsig, int(sig)) }) == nil {
			return nil
		}
	}
	return e.k.link.Send(initlink.MsgKill, initlink.Kill{PID: e.pid, Signal: int(sig), Whom: initlink.KillGroup})
}

func (k *keeper) signal(exec, name string) error {
	e, err := k.running(exec)
	if err != nil {
		return err
	}
	return e.signal(name)
}

// running returns an exec that has not ended.
func (k *keeper) running(exec string) (*execution, error) {
	k.mu.Lock()
	e := k.execs[exec]
	k.mu.Unlock()
	if e != nil && e.pid != 0 {
		if _, ended := e.ended(); !ended {
			return e, nil
		}
	}
	return nil, fault.New(fault.NotFound, "no running exec %s", exec)
}

// input copies what a caller sends to an exec without being attached, until the caller's protocol.FrameThaw.
func (k *keeper) input(conn *net.UnixConn, exec string) error {
	e, err := k.running(exec)
	if err != nil {
		return err
	}
	e.mu.Lock()
	in := e.in
	e.mu.Unlock()
	if in == nil {
		return fault.New(fault.Conflict, "exec %s does not accept input", exec).WithHint("start it with \"stdin\": true")
	}
	buf := make([]byte, 32<<10)
	for {
		t, p, err := wire.ReadFrame(conn, buf)
		switch {
		case err != nil:
			return fault.New(fault.Cancelled, "the client that sent input disconnected")
		case t == protocol.FrameThaw:
			return nil
		case t == wire.FrameStdin:
			in.write(p)
		case t == wire.FrameStdinEOF:
			in.eof()
		}
	}
}
