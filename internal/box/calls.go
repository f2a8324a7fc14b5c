//go:build linux && (amd64 || arm64)

package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
)

// open connects and sends the call.
func (b *Box) open(ctx context.Context, c protocol.Call) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(context.Cause(ctx), "call the monitor")
	}
	conn, err := dial(b.runDir)
	if err == nil {
		if err = wire.WriteJSON(conn, wire.FrameRequest, c); err == nil {
			return conn, nil
		}
		conn.Close()
	}
	if left := b.unended(); left != nil {
		return nil, left
	}
	return nil, unavailable(err)
}

func unavailable(err error) error {
	if isClosed(err) {
		return fault.New(fault.Unavailable, "the sandbox's monitor has exited").Because(err)
	}
	return fault.Wrap(err, "call the monitor")
}

// reply reads a protocol.FrameReply into v.
func reply(ctx context.Context, conn net.Conn, v any) error {
	return replyAfter(ctx, conn, v, protocol.FrameReply, nil)
}

// replyAfter is like reply, but accepts frames of type before ahead of the reply and passes the payload of each to
// each.
func replyAfter(ctx context.Context, conn net.Conn, v any, before wire.FrameType, each func([]byte) error) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	t, p, err := wire.ReadFrame(conn, nil)
	for err == nil && t == before && each != nil {
		if err := each(p); err != nil {
			return fault.New(fault.Internal, "malformed frame from the monitor").Because(err)
		}
		t, p, err = wire.ReadFrame(conn, p)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), "wait for the monitor")
	case err != nil:
		return unavailable(err)
	case t == wire.FrameFailed:
		var f protocol.Failure
		if err := json.Unmarshal(p, &f); err != nil {
			return fault.Wrap(err, "read the monitor's answer")
		}
		return f.Fault()
	case t != protocol.FrameReply:
		return fault.New(fault.Internal, "unexpected frame %d from the monitor", t)
	case v == nil:
		return nil
	}
	return fault.Wrap(json.Unmarshal(p, v), "read the monitor's answer")
}

func (b *Box) call(ctx context.Context, c protocol.Call, v any) error {
	conn, err := b.open(ctx, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	return reply(ctx, conn, v)
}

// Types of the keeper's replies, for users of this package.
type (
	// Status is a keeper's report on itself.
	Status = protocol.Status
	// ExecStatus describes one exec in a Status.
	ExecStatus = protocol.ExecStatus
	// Exit is the result of an exec.
	Exit = protocol.Exit
	// Owners maps stored ids to the ids that appear in a root.
	Owners = protocol.Owners
	// InsideUser is the user that commands of a box run as.
	InsideUser = protocol.InsideUser
	// Rekey is the new identity of a box that was resumed from a memory image.
	Rekey = protocol.Rekey
)

// Session is the stream of a running exec: the caller writes and reads frames of package wire. Closing it
// leaves the command running; see Box.Reattach.
type Session struct{ net.Conn }

// Exec runs a command, or attaches to a running one if req.Attach is set. Failures of the command arrive as a
// FrameFailed. If the keeper has exited, Exec returns an Unavailable fault; if it exits during the call, the
// stream may end instead.
func (b *Box) Exec(ctx context.Context, req wire.ExecRequest) (*Session, error) {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpExec, Exec: &req})
	if err != nil {
		return nil, err
	}
	return &Session{conn}, nil
}

// Reattach attaches to the exec with the given id, from offset bytes of its output on. It detaches the client
// that was attached.
func (b *Box) Reattach(ctx context.Context, exec string, offset int64) (*Session, error) {
	return b.Exec(ctx, wire.ExecRequest{Attach: exec, Offset: offset})
}

// Signal sends a signal ("TERM") to a running exec. It does not use the exec's stream, which may be full.
func (b *Box) Signal(ctx context.Context, exec, name string) error {
	return b.call(ctx, protocol.Call{Op: protocol.OpSignal, ExecID: exec, Signal: name}, nil)
}

// Cancel ends a running exec: it sends its process group SIGTERM, and after two seconds SIGKILL to the rest
// of its process tree.
func (b *Box) Cancel(ctx context.Context, exec string) error {
	return b.call(ctx, protocol.Call{Op: protocol.OpCancel, ExecID: exec}, nil)
}

// Input copies r to the input of a running exec, at the pace at which the exec reads it, and then closes that input if
// eof is set. It returns when everything has been sent, or when ctx ends.
func (b *Box) Input(ctx context.Context, exec string, r io.Reader, eof bool) error {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpInput, ExecID: exec})
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// If the keeper refuses, it answers and closes the connection. Its answer is the error to return, not the failed
	// write.
	buf := make([]byte, 32<<10)
	for werr := error(nil); werr == nil; {
		n, err := r.Read(buf)
		if n > 0 {
			werr = wire.WriteFrame(conn, wire.FrameStdin, buf[:n])
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fault.New(fault.Invalid, "read the input").Because(err)
		}
	}
	if eof {
		_ = wire.WriteFrame(conn, wire.FrameStdinEOF, nil)
	}
	_ = wire.WriteFrame(conn, protocol.FrameThaw, nil)
	return reply(ctx, conn, nil)
}

// Procs returns the number of processes of the box, without keeper and init.
func (b *Box) Procs(ctx context.Context) (int, error) {
	n := 0
	err := b.call(ctx, protocol.Call{Op: protocol.OpCount}, &n)
	return n, err
}

// Status returns the keeper's report on itself.
func (b *Box) Status(ctx context.Context) (Status, error) {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpStatus})
	if err != nil {
		return Status{}, err
	}
	defer conn.Close()
	var s Status
	var execs []ExecStatus
	err = replyAfter(ctx, conn, &s, protocol.FrameExec, func(p []byte) error {
		var e ExecStatus
		err := json.Unmarshal(p, &e)
		execs = append(execs, e)
		return err
	})
	s.Execs = append(s.Execs, execs...) // an older keeper sends all in one frame
	return s, err
}

// ping succeeds when the keeper answers.
func (b *Box) ping(ctx context.Context) error {
	err := b.call(ctx, protocol.Call{Op: protocol.OpPing}, nil)
	if fault.Is(err, fault.Version) {
		return nil // an older keeper does not know the call, but has answered
	}
	return err
}

// Wait waits until a command exits and returns its result. The result of a command that was started with Keep
// is available until Forget; that of any other until an attached client has received it. Wait returns
// NotFound if there is no such command.
func (b *Box) Wait(ctx context.Context, exec string) (x Exit, err error) {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpWait, ExecID: exec})
	if err != nil {
		return x, err
	}
	defer conn.Close()
	var out []wire.Recorded
	err = replyAfter(ctx, conn, &x, wire.FrameRecorded, func(p []byte) (err error) {
		out, err = wire.AddRecorded(out, p)
		return err
	})
	x.Output = out
	return x, err
}

// Forget drops the result of a command that has exited, once the caller has stored it. An unknown command is
// not an error.
func (b *Box) Forget(ctx context.Context, exec string) error {
	return b.call(ctx, protocol.Call{Op: protocol.OpForget, ExecID: exec}, nil)
}

// Active waits until a process of the box has run since the clock read since, and returns the clock's current
// value. While no process runs, no file can have changed. A since of 0 precedes every other value.
func (b *Box) Active(ctx context.Context, since uint64) (clock uint64, err error) {
	err = b.call(ctx, protocol.Call{Op: protocol.OpActive, Since: since}, &clock)
	return clock, err
}

// Ran waits as Active does, about a quarter of a second longer, and returns another clock, which does not
// advance when only init ran to look for ports.
func (b *Box) Ran(ctx context.Context, since uint64) (clock uint64, err error) {
	return clock, anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpRan, Since: since}, &clock))
}

// Frozen is a box whose processes are frozen.
type Frozen struct {
	conn     net.Conn
	procs    int
	suspects Suspects
	programs []wire.Program
	loose    bool // processes can continue themselves; see Held
	once     sync.Once
	err      error
}

// Freeze stops every process until Thaw is called or this process exits. Only one freeze holds at a time: a
// second call waits. Commands that are started meanwhile start after the thaw.
func (b *Box) Freeze(ctx context.Context) (*Frozen, error) {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpFreeze})
	if err != nil {
		return nil, err
	}
	var f protocol.FrozenReply
	if err := reply(ctx, conn, &f); err != nil {
		conn.Close()
		return nil, err
	}
	if f.Since.IsZero() {
		conn.Close()
		return nil, otherVersion()
	}
	return &Frozen{conn: conn, procs: f.Procs, suspects: suspectsOf(f), programs: f.Programs,
		loose: f.Loose}, nil
}

func otherVersion() error {
	return fault.New(fault.Version, "the sandbox was started by another version of coppice").
		WithHint("stop it once: coppice stop NAME")
}

// Procs returns the number of frozen processes.
func (f *Frozen) Procs() int { return f.procs }

// Suspects selects files that a process can write through a shared mapping, which may leave no trace in their
// times. A file is selected if any field matches it.
type Suspects struct {
	Paths  []string // absolute paths inside or, in tier workspace, on the host
	Inodes []uint64
	// Since, unless zero, means that more files are mapped than are listed: any file that changed since then
	// may be one of them.
	Since time.Time
}

// suspectsOf converts the keeper's reply.
func suspectsOf(r protocol.FrozenReply) Suspects {
	s := Suspects{Inodes: r.Written.Inodes}
	for _, p := range r.Written.Paths {
		s.Paths = append(s.Paths, string(p))
	}
	if r.Written.All {
		s.Since = r.Since
	}
	return s
}

// Suspects returns the files that were mapped when the processes froze.
func (f *Frozen) Suspects() Suspects { return f.suspects }

// Root is the live root of a frozen box. The holder closes it.
type Root struct {
	// Dir is the root as processes see it, without the box's own mounts (/proc, /dev, /tmp); nil in tier
	// workspace, which mounts nothing.
	Dir    *os.File
	Owners Owners
	Mapped initlink.Mapped
}

// Root opens the live root while the processes are frozen. The caller closes it; the descriptor stays valid
// after the thaw.
func (f *Frozen) Root(ctx context.Context) (*Root, error) {
	if err := wire.WriteFrame(f.conn, protocol.FrameRoot, nil); err != nil {
		return nil, unavailable(err)
	}
	var r protocol.RootReply
	if err := reply(ctx, f.conn, &r); err != nil {
		return nil, err
	}
	if !r.Frozen {
		return nil, otherVersion()
	}
	out := &Root{Owners: r.Owners, Mapped: r.Mapped}
	if !r.Rooted {
		return out, nil
	}
	fd, err := receiveFD(f.conn)
	if err != nil {
		return nil, fault.Wrap(err, "receive the live root")
	}
	// The keeper sends a descriptor with O_PATH, which cannot list the directory.
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return nil, fault.Wrap(err, "open the live root")
	}
	out.Dir = os.NewFile(uintptr(dir), "live root")
	return out, nil
}

// Close closes Dir.
func (r *Root) Close() error {
	if r.Dir == nil {
		return nil
	}
	return r.Dir.Close()
}

// receiveFD reads the one byte that carries a descriptor.
func receiveFD(conn net.Conn) (int, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return -1, unix.ENOTSUP
	}
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := u.ReadMsgUnix(b[:], oob)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return -1, errors.Join(err, unix.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(err, unix.EPROTO)
	}
	return fds[0], nil
}

// Inside is the live root as the box's processes see it, with the box's own mounts. Its content is hostile
// and changes while it is open.
type Inside struct {
	// Dir is open with O_PATH; nil in tier workspace, which mounts nothing. The caller closes it before
	// Close.
	Dir  *os.File
	User InsideUser
	// Unseen lists the directories whose files are in the memory of the box and not in Dir.
	Unseen []string

	conn net.Conn
}

// OpenRoot opens the live root without freezing processes. The box does not end as idle before Close; it can
// still be stopped.
func (b *Box) OpenRoot(ctx context.Context) (in *Inside, err error) {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpRoot})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	var r protocol.InsideReply
	if err := reply(ctx, conn, &r); err != nil {
		if fault.Is(err, fault.Version) {
			return nil, otherVersion()
		}
		return nil, err
	}
	in = &Inside{User: r.User, Unseen: r.Unseen, conn: conn}
	if !r.Rooted {
		return in, nil
	}
	fd, err := receiveFD(conn)
	if err != nil {
		return nil, fault.Wrap(err, "receive the live root")
	}
	in.Dir = os.NewFile(uintptr(fd), "live root")
	return in, nil
}

// Close lets the box end when idle. It does not close Dir.
func (in *Inside) Close() error { return in.conn.Close() }

// Programs returns the programs that were started in the box since the previous freeze, oldest first, if
// plan.Config.Trace is set: at most 256, each with the number of further starts that it represents.
func (f *Frozen) Programs() []wire.Program { return f.programs }

// Drop closes the connection without a call, as the exit of this process would. The keeper then thaws the
// box.
func (f *Frozen) Drop() { f.conn.Close() }

// Thaw resumes the processes. It may be called twice. It is not an error if the box has ended.
func (f *Frozen) Thaw() error {
	f.once.Do(func() {
		defer f.conn.Close()
		err := wire.WriteFrame(f.conn, protocol.FrameThaw, nil)
		if err == nil {
			err = reply(context.Background(), f.conn, nil)
		}
		if !isClosed(err) && !fault.Is(err, fault.Unavailable) {
			f.err = fault.Wrap(err, "resume the processes")
		}
	})
	return f.err
}

// Stop sends SIGTERM to all processes, kills those that are left after grace, and waits until they are gone.
// The keeper then unmounts, which takes as long as flushing what was written; see Gone. A keeper that does
// not answer within grace and ten seconds, or before ctx ends, is killed. Stopping a box that has ended is
// not an error. In tier workspace Conflict means that processes are left: the box has not ended. The keeper continues
// to kill them, or the hint says how to end them.
func (b *Box) Stop(ctx context.Context, grace time.Duration) error {
	limit, cancel := context.WithTimeout(ctx, grace+10*time.Second)
	defer cancel()
	err := b.call(limit, protocol.Call{Op: protocol.OpStop, Grace: grace}, nil)
	if err == nil || fault.Is(err, fault.Conflict) {
		return err
	}
	if fault.Is(err, fault.Unavailable) {
		err = nil
		select {
		case <-b.gone:
			return nil
		case <-b.unproven:
		case <-limit.Done():
		}
	}
	if e := b.kill(); e != nil {
		return errors.Join(err, e)
	}
	exits := time.NewTimer(5 * time.Second)
	defer exits.Stop()
	select {
	case <-b.gone:
		return nil
	case <-b.unproven:
		if err := b.unended(); err != nil {
			return err
		}
	case <-exits.C:
		return fault.New(fault.Internal, "the sandbox's monitor does not exit").Because(err)
	}
	select { // it was proved now, which awaitEnd is about to find
	case <-b.gone:
		return nil
	case <-exits.C:
		return fault.New(fault.Internal, "the end of the sandbox is not noticed")
	}
}

// kill kills the keeper. Init exits when its keeper is gone.
func (b *Box) kill() error {
	raw, err := b.pidfd.SyscallConn()
	var e error
	if err == nil {
		err = raw.Control(func(fd uintptr) { e = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
	if err != nil {
		select {
		case <-b.gone: // the box has ended, and the descriptor is closed
			return nil
		default:
			return fmt.Errorf("kill the monitor: %w", err)
		}
	}
	if e != nil && !errors.Is(e, unix.ESRCH) {
		return fmt.Errorf("kill the monitor: %w", e)
	}
	return nil
}
