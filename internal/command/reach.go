//go:build linux

package command

import (
	"cmp"
	"context"
	"io"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// Execs lists the commands that run in a sandbox, oldest first.
func (r *Runner) Execs(ctx context.Context, name string) ([]wire.ExecInfo, error) {
	b, rec, err := r.live(ctx, name, "listing commands")
	if err != nil {
		return nil, err
	}
	if b == nil {
		return []wire.ExecInfo{}, nil
	}
	all, err := b.Execs(ctx)
	if fault.Is(err, fault.Unavailable) {
		return []wire.ExecInfo{}, nil
	}
	out := []wire.ExecInfo{}
	for _, x := range all {
		if x.Exit == nil {
			x.Supervised = rec.Run != nil && rec.Run.Exec == x.ID
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b wire.ExecInfo) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	})
	return out, err
}

// SignalExec sends a signal ("TERM") to a running command.
func (r *Runner) SignalExec(ctx context.Context, name, exec, signal string) error {
	return r.withBox(ctx, name, exec, func(b Box) error { return b.Signal(ctx, exec, signal) })
}

// CancelExec ends a running command: SIGTERM, and SIGKILL two seconds later. It does not wait for the
// exit.
func (r *Runner) CancelExec(ctx context.Context, name, exec string) error {
	return r.withBox(ctx, name, exec, func(b Box) error { return b.Cancel(ctx, exec) })
}

// InputExec sends in to the input of a running command, at the pace that the command reads it, and
// closes the input if eof is set.
func (r *Runner) InputExec(ctx context.Context, name, exec string, in io.Reader, eof bool) error {
	return r.withBox(ctx, name, exec, func(b Box) error { return b.Input(ctx, exec, in, eof) })
}

// withBox calls fn with the box that a command runs in.
func (r *Runner) withBox(ctx context.Context, name, exec string, fn func(Box) error) error {
	b, rec, err := r.live(ctx, name, "reaching a command")
	if err != nil {
		return err
	}
	gone := fault.New(fault.NotFound, "exec %s not found among the running commands of sandbox %s", exec, rec.Name).
		WithHint("list them: GET /v1/sandboxes/%s/execs", rec.Name)
	if b == nil {
		return gone
	}
	if err := fn(b); fault.Is(err, fault.NotFound) || fault.Is(err, fault.Unavailable) {
		return gone.Because(err)
	} else if err != nil {
		return err
	}
	return nil
}

// Processes lists the processes of a sandbox. A stopped sandbox has none, and is not started.
func (r *Runner) Processes(ctx context.Context, name string) (wire.ProcessesResult, error) {
	none := wire.ProcessesResult{Processes: []wire.Process{}}
	b, rec, err := r.live(ctx, name, "listing its processes")
	if err != nil || b == nil {
		return none, err
	}
	res, err := b.Processes(ctx)
	if fault.Is(err, fault.Unavailable) {
		return none, nil // the keeper has just exited
	}
	return res, sandbox.Named(err, rec.Name)
}

// SignalProcess sends a signal to one process of a sandbox.
func (r *Runner) SignalProcess(ctx context.Context, name string, pid int, sig wire.ProcessSignal) error {
	if sig.Name == "" {
		sig.Name = "TERM"
	}
	b, rec, err := r.live(ctx, name, "signalling a process")
	if err != nil {
		return err
	}
	if b != nil {
		if err = b.SignalProcess(ctx, pid, sig); !fault.Is(err, fault.Unavailable) {
			return sandbox.Named(err, rec.Name)
		}
	}
	return fault.New(fault.NotFound, "process %[2]d not found: sandbox %[1]s is stopped", rec.Name, pid)
}

// Unrecorded starts a command of Coppice in a box, without a record. wait reads the session to its end, and returns
// the exit and the beginning of the output. The lock of the sandbox may be released before that.
func (r *Runner) Unrecorded(
	ctx context.Context, h Held, b Box, cmd ...string,
) (wait func() (exit wire.Exit, said string, err error), err error) {
	session, err := b.Exec(ctx, wire.ExecRequest{Cmd: cmd})
	r.with(h).begun++ // a capture must not assume that no command runs
	if err != nil {
		return nil, err
	}
	return func() (wire.Exit, string, error) {
		defer session.Close()
		defer context.AfterFunc(ctx, func() { session.Close() })()
		return readAll(session)
	}, nil
}
