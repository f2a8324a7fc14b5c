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
	return nil, unavailable(err)
}

func unavailable(err error) error {
	if closed(err) {
		return fault.New(fault.Unavailable, "the sandbox's monitor has exited").Because(err)
	}
	return fault.Wrap(err, "call the monitor")
}

// reply reads a protocol.FrameReply into v.
func reply(ctx context.Context, conn net.Conn, v any) error {
	return replyAfter(ctx, conn, v, protocol.FrameReply, nil)
}

// replyAfter is reply where frames of another kind may come before, each of which is given
// to each.
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

// What a keeper says, for those who use it.
type (
	// Status is what a keeper says of itself.
	Status = protocol.Status
	// ExecStatus is one exec of a Status.
	ExecStatus = protocol.ExecStatus
	// Exit is how an exec has ended.
	Exit = protocol.Exit
	// Owners says how stored ids appear in a root.
	Owners = protocol.Owners
	// InsideUser is who commands of a box run as.
	InsideUser = protocol.InsideUser
	// Reseal is the identity of a box that was resumed from a memory image.
	Reseal = protocol.Reseal
)

// Session is a running exec: frames of package wire are written to it and read
// from it. Closing it leaves the command running; see Box.Reattach.
type Session struct{ net.Conn }

// Exec runs a command, or with req.Attach takes up one that runs. What goes wrong
// with it comes as a FrameFailed; a keeper that has ended is an Unavailable
// fault, here or, when it ends at that moment, as the end of the stream.
func (b *Box) Exec(ctx context.Context, req wire.ExecRequest) (*Session, error) {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpExec, Exec: &req})
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
	return b.call(ctx, protocol.Call{Op: protocol.OpSignal, ExecID: exec, Signal: name}, nil)
}

// Cancel ends a running exec: its group is sent SIGTERM, and what is left of its
// tree after two seconds SIGKILL.
func (b *Box) Cancel(ctx context.Context, exec string) error {
	return b.call(ctx, protocol.Call{Op: protocol.OpCancel, ExecID: exec}, nil)
}

// Input gives a running exec what r holds, at the pace that it reads it, and then,
// with eof, the end of its input. It returns when all is on its way, or when ctx
// ends.
func (b *Box) Input(ctx context.Context, exec string, r io.Reader, eof bool) error {
	conn, err := b.open(ctx, protocol.Call{Op: protocol.OpInput, ExecID: exec})
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	// Where the keeper refuses, it answers and closes: its answer counts, and not
	// that we could not write on.
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

// Procs counts the processes of the box, keeper and init left out.
func (b *Box) Procs(ctx context.Context) (int, error) {
	n := 0
	err := b.call(ctx, protocol.Call{Op: protocol.OpCount}, &n)
	return n, err
}

// Status asks the keeper about itself.
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

// Wait waits for the end of a command. Of one that was started with Keep the result is
// there for others until Forget, and else until somebody who is attached was told. NotFound
// says that there is no such command.
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

// Forget drops the result of a command that has ended: whoever waited for it has
// it safe. One that is unknown is no error.
func (b *Box) Forget(ctx context.Context, exec string) error {
	return b.call(ctx, protocol.Call{Op: protocol.OpForget, ExecID: exec}, nil)
}

// Active waits until a process of the box has run since the clock was since, and
// gives the clock as it is now. While none runs, no file can have changed. A zero
// since is before everything.
func (b *Box) Active(ctx context.Context, since uint64) (clock uint64, err error) {
	err = b.call(ctx, protocol.Call{Op: protocol.OpActive, Since: since}, &clock)
	return clock, err
}

// Ran waits as Active does, for a quarter of a second or so longer, and gives another
// clock, which init alone, in looking for ports, does not change.
func (b *Box) Ran(ctx context.Context, since uint64) (clock uint64, err error) {
	return clock, anotherVersion(b.call(ctx, protocol.Call{Op: protocol.OpRan, Since: since}, &clock))
}

// Frozen is a box whose processes stand still.
type Frozen struct {
	conn     net.Conn
	procs    int
	suspects Suspects
	programs []wire.Program
	once     sync.Once
	err      error
}

// Freeze stops every process until Thaw is called, or this process ends. One
// freeze at a time: a second one waits. Commands that are started meanwhile start
// after it.
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
	return &Frozen{conn: conn, procs: f.Procs, suspects: suspectsOf(f), programs: f.Programs}, nil
}

func otherVersion() error {
	return fault.New(fault.Version, "the sandbox was started by another version of coppice").
		WithHint("stop it once: coppice stop NAME")
}

// Procs is how many processes stand still.
func (f *Frozen) Procs() int { return f.procs }

// Suspects are files that a process can write through a shared mapping, which may
// leave no trace in their times. Any that fits in one way is meant.
type Suspects struct {
	Paths  []string // absolute, inside; in tier workspace the host's
	Inodes []uint64
	// Since, unless zero, says that more are mapped than are named: any that was
	// changed since then may be.
	Since time.Time
}

// suspectsOf returns what the keeper names.
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

// Suspects tells what is mapped while the processes stand still.
func (f *Frozen) Suspects() Suspects { return f.suspects }

// Root is the live root of a frozen box.
type Root struct {
	// Dir is the root as processes see it, without the mounts that are the box's
	// own (/proc, /dev, /tmp); nil in tier workspace, which mounts nothing.
	Dir    *os.File
	Owners Owners
	Mapped initlink.Mapped
}

// Root gives the live root while the processes stand still. The caller closes
// what it holds; the descriptor is good after the thaw as well.
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
	// The keeper's is one of O_PATH, by which nothing can be listed.
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return nil, fault.Wrap(err, "open the live root")
	}
	out.Dir = os.NewFile(uintptr(dir), "live root")
	return out, nil
}

// Close lets go of the root.
func (r *Root) Close() error {
	if r.Dir == nil {
		return nil
	}
	return r.Dir.Close()
}

// receiveFD reads the one byte that brings a descriptor.
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

// Inside is the live root as the box's processes see it, with the mounts that are
// the box's own. What it holds is hostile, and changes meanwhile.
type Inside struct {
	// Dir is open with O_PATH; nil in tier workspace, which mounts nothing.
	Dir  *os.File
	User InsideUser
	// Unseen are the directories whose files lie in memory of the box, and are not in Dir.
	Unseen []string

	conn net.Conn
}

// OpenRoot gives the live root without stopping anybody. The box lives at least
// until Close, unless it is stopped.
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

// Close lets the box end. Dir is the caller's, and is closed by him first.
func (in *Inside) Close() error { return in.conn.Close() }

// Programs are those that were started in the box since the freeze before, oldest
// first, where plan.Config.Trace is set: at most 256, each of which says how many
// more it stands for.
func (f *Frozen) Programs() []wire.Program { return f.programs }

// Drop lets go without a word, as the end of this process would: the keeper then
// thaws.
func (f *Frozen) Drop() { f.conn.Close() }

// Thaw lets the processes run. It may be called twice. In a box that has ended
// nothing is left that stands still, which is no error.
func (f *Frozen) Thaw() error {
	f.once.Do(func() {
		defer f.conn.Close()
		err := wire.WriteFrame(f.conn, protocol.FrameThaw, nil)
		if err == nil {
			err = reply(context.Background(), f.conn, nil)
		}
		if !closed(err) && !fault.Is(err, fault.Unavailable) {
			f.err = fault.Wrap(err, "resume the processes")
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
	err := b.call(limit, protocol.Call{Op: protocol.OpStop, Grace: grace}, nil)
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
		return fault.New(fault.Internal, "the sandbox's monitor does not exit").Because(err)
	}
}

// kill ends the keeper; init ends when its keeper is gone.
func (b *Box) kill() error {
	raw, err := b.pidfd.SyscallConn()
	var e error
	if err == nil {
		err = raw.Control(func(fd uintptr) { e = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
	if err != nil {
		select {
		case <-b.gone: // it has ended by itself, and the descriptor is closed
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
