//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/fault"
)

// The calls of a keeper. A connection carries one call, as a wire frame of type
// FrameRequest with a JSON call.
//
//	op       answer
//	exec     the frames of an exec stream, see package wire
//	freeze   frameReply with Freeze's answer; thaws at the next frame, which is
//	         answered by another frameReply, and when the connection ends
//	count    frameReply with a number
//	status   frameReply with Status
//	signal   frameReply; to a running exec
//	stop     frameReply when all processes are gone; then the keeper ends
//
// Every call can be answered by FrameFailed instead.
const (
	opExec   = "exec"
	opFreeze = "freeze"
	opCount  = "count"
	opStatus = "status"
	opSignal = "signal"
	opStop   = "stop"

	frameReply wire.FrameType = 64
	frameThaw  wire.FrameType = 65
)

// Exit is what FrameExit holds in the stream of an exec.
type Exit struct {
	wire.Exit
	// Alone says that no process was left in the box when the command was
	// reaped: then there is none until the next exec is begun.
	Alone bool `json:"alone,omitempty"`
}

type call struct {
	Op     string            `json:"op"`
	Exec   *wire.ExecRequest `json:"exec,omitempty"`
	ExecID string            `json:"exec_id,omitempty"` // signal
	Signal string            `json:"signal,omitempty"`
	Grace  time.Duration     `json:"grace,omitempty"` // stop
}

// failure is a fault on its way.
type failure wire.Error

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	return &failure{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}
}

func (f *failure) fault() error {
	return &fault.Error{Kind: fault.Kind(f.Kind), Message: f.Message, Hint: f.Hint}
}

// Status is what a keeper says of itself.
type Status struct {
	ID       string        `json:"id"`
	PID      int           `json:"pid"` // the keeper's
	Started  time.Time     `json:"started"`
	Enforced plan.Enforced `json:"enforced"`
	Procs    int           `json:"procs"`
	Execs    []ExecStatus  `json:"execs,omitempty"` // running, or with a result that nobody fetched
}

// ExecStatus is one exec of a Status.
type ExecStatus struct {
	ID       string     `json:"id"`
	PID      int        `json:"pid"` // inside
	Cmd      []string   `json:"cmd"`
	Started  time.Time  `json:"started"`
	Attached bool       `json:"attached,omitempty"`
	Exit     *wire.Exit `json:"exit,omitempty"` // nil while it runs
}

// open connects and sends the call.
func (b *Box) open(ctx context.Context, c call) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(context.Cause(ctx), "call the keeper")
	}
	conn, err := dial(b.runDir)
	if err == nil {
		if err = wire.WriteJSON(conn, wire.FrameRequest, c); err == nil {
			return conn, nil
		}
		conn.Close()
	}
	return nil, unavailable(err)
}

func unavailable(err error) error {
	if closed(err) {
		return fault.New(fault.Unavailable, "the sandbox's keeper has ended").Because(err)
	}
	return fault.Wrap(err, "call the keeper")
}

// reply reads a frameReply into v.
func reply(ctx context.Context, conn net.Conn, v any) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	t, p, err := wire.ReadFrame(conn, nil)
	switch {
	case err != nil && ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), "wait for the keeper")
	case err != nil:
		return unavailable(err)
	case t == wire.FrameFailed:
		var f failure
		if err := json.Unmarshal(p, &f); err != nil {
			return fault.Wrap(err, "read the keeper's answer")
		}
		return f.fault()
	case t != frameReply:
		return fault.New(fault.Internal, "the keeper answered with frame %d", t)
	case v == nil:
		return nil
	}
	return fault.Wrap(json.Unmarshal(p, v), "read the keeper's answer")
}

func (b *Box) call(ctx context.Context, c call, v any) error {
	conn, err := b.open(ctx, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	return reply(ctx, conn, v)
}

// Session is a running exec: frames of package wire are written to it and read
// from it. Closing it leaves the command running; see Box.Reattach.
type Session struct{ net.Conn }

// Exec runs a command, or with req.Attach takes up one that runs. What goes wrong
// with it comes as a FrameFailed; a keeper that has ended is an Unavailable
// fault, here or, when it ends at that moment, as the end of the stream.
func (b *Box) Exec(ctx context.Context, req wire.ExecRequest) (*Session, error) {
	conn, err := b.open(ctx, call{Op: opExec, Exec: &req})
	if err != nil {
		return nil, err
	}
	return &Session{conn}, nil
}

// Reattach takes up the exec with the given id after offset bytes of output. It
// takes it away from whoever was attached.
func (b *Box) Reattach(ctx context.Context, exec string, offset int64) (*Session, error) {
	return b.Exec(ctx, wire.ExecRequest{Attach: exec, Offset: offset})
}

// Signal sends a signal ("TERM") to a running exec, past its stream, which may
// be full.
func (b *Box) Signal(ctx context.Context, exec, name string) error {
	return b.call(ctx, call{Op: opSignal, ExecID: exec, Signal: name}, nil)
}

// Procs counts the processes of the box, keeper and init left out.
func (b *Box) Procs(ctx context.Context) (int, error) {
	n := 0
	err := b.call(ctx, call{Op: opCount}, &n)
	return n, err
}

// Status asks the keeper about itself.
func (b *Box) Status(ctx context.Context) (Status, error) {
	var s Status
	err := b.call(ctx, call{Op: opStatus}, &s)
	return s, err
}

// Frozen is a box whose processes stand still.
type Frozen struct {
	conn     net.Conn
	procs    int
	suspects []string
	once     sync.Once
	err      error
}

// Freeze stops every process until Thaw is called, or this process ends. One
// freeze at a time: a second one waits. Commands that are started meanwhile start
// after it.
func (b *Box) Freeze(ctx context.Context) (*Frozen, error) {
	conn, err := b.open(ctx, call{Op: opFreeze})
	if err != nil {
		return nil, err
	}
	var f frozenReply
	if err := reply(ctx, conn, &f); err != nil {
		conn.Close()
		return nil, err
	}
	return &Frozen{conn: conn, procs: f.Procs, suspects: f.Suspects}, nil
}

type frozenReply struct {
	Procs    int      `json:"procs"`
	Suspects []string `json:"suspects,omitempty"`
}

// Procs is how many processes stand still.
func (f *Frozen) Procs() int { return f.procs }

// Suspects are absolute paths inside of files that a process has, or had at the
// last freeze, mapped shared and writable.
func (f *Frozen) Suspects() []string { return f.suspects }

// Drop lets go without a word, as the end of this process would: the keeper then
// thaws.
func (f *Frozen) Drop() { f.conn.Close() }

// Thaw lets the processes run. It may be called twice. In a box that has ended
// nothing is left that stands still, which is no error.
func (f *Frozen) Thaw() error {
	f.once.Do(func() {
		defer f.conn.Close()
		err := wire.WriteFrame(f.conn, frameThaw, nil)
		if err == nil {
			err = reply(context.Background(), f.conn, nil)
		}
		if !closed(err) && !fault.Is(err, fault.Unavailable) {
			f.err = fault.Wrap(err, "let the processes run again")
		}
	})
	return f.err
}

// Stop ends all processes, after grace for those that heed SIGTERM, and waits
// until they are gone. The keeper lets go of the mounts then, which takes as long
// as it takes to flush what was written; see Gone. A keeper that does not answer by the end
// of grace and ten seconds more, or of ctx, is killed. Stopping a box that has
// ended is no error.
func (b *Box) Stop(ctx context.Context, grace time.Duration) error {
	limit, cancel := context.WithTimeout(ctx, grace+10*time.Second)
	defer cancel()
	err := b.call(limit, call{Op: opStop, Grace: grace}, nil)
	if err == nil {
		return nil
	}
	if fault.Is(err, fault.Unavailable) {
		err = nil
		select {
		case <-b.gone:
			return nil
		case <-limit.Done():
		}
	}
	if e := b.kill(); e != nil {
		return errors.Join(err, e)
	}
	select {
	case <-b.gone:
		return nil
	case <-time.After(5 * time.Second):
		return fault.New(fault.Internal, "the sandbox's keeper does not end").Because(err)
	}
}

// kill ends the keeper; init ends when its keeper is gone.
func (b *Box) kill() error {
	raw, err := b.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("kill the keeper: %w", err)
	}
	var e error
	if err := raw.Control(func(fd uintptr) { e = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return fmt.Errorf("kill the keeper: %w", err)
	}
	if e != nil && !errors.Is(e, unix.ESRCH) {
		return fmt.Errorf("kill the keeper: %w", e)
	}
	return nil
}
