//go:build linux

package command

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// endWait is how long the removal of a sandbox waits for the exits of its commands, after its box has exited.
const endWait = time.Second

// await waits in the background for the exit of a command that the keeper holds, and passes it to ended, which
// reports whether the keeper may forget the command. If the engine is closed meanwhile, the next daemon finds the
// command.
func (r *Runner) await(p *place, b Box, c *command, ended func(context.Context, Ended, error) (forget bool)) {
	r.c.Go(func(ctx context.Context) {
		end, err := b.Wait(ctx, c.id)
		if err == nil {
			r.c.Register.ends(c, end)
		}
		if ctx.Err() != nil || !ended(ctx, end, err) {
			return
		}
		err = b.Forget(ctx, c.id)
		if err != nil && !fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
			r.c.Log.Warn("could not free the stored result of a command", "sandbox", p.id, "err", err)
		}
	})
}

// leave makes the Runner follow a command that continues without its client.
func (r *Runner) leave(o *opened) {
	if r.c.Register.isOpen(o.command) {
		r.c.Go(func(ctx context.Context) { r.seeThrough(ctx, o.place, o.box, o.command) })
	}
}

// seeThrough waits for the exit of a command that has no attached client, or that an earlier daemon started, and
// records it, unless a client that has attached meanwhile does.
func (r *Runner) seeThrough(ctx context.Context, p *place, b Box, c *command) {
	end, err := b.Wait(ctx, c.id)
	if ctx.Err() != nil {
		return // the next daemon finds the command
	}
	_, known := r.c.Register.endOf(c)
	switch {
	case !r.c.Register.isOpen(c):
		return
	case fault.Is(err, fault.NotFound):
		if known || r.c.Register.isRelayed(c) {
			return // a client was sent the exit
		}
		end = Ended{Exit: wire.Exit{Code: exitUnknown, Message: "its exit code is unknown: " +
			"the daemon was killed when it exited"}}
	case err != nil:
		end = killed(stoppedMeanwhile)
	}
	r.c.Register.ends(c, end)
	if _, err := r.settle(ctx, p, c, end); err != nil {
		r.c.Log.Error("could not capture the changes of a command", "sandbox", p.id, "err", err)
	}
}

// recordEnd records the exit of a command without a snapshot, unless the exit is already recorded.
func (r *Runner) recordEnd(ctx context.Context, rec *meta.Sandbox, c *command, end Ended, x wire.Exit) {
	if tell := r.exitRecords(ctx, rec, c, end, x, Taken{}); len(tell) > 0 {
		r.c.Book.Note(ctx, rec, tell...)
		r.c.Register.settle(c)
	}
}

// EndAll records the exits of the commands of a sandbox that is about to be removed and whose box has exited. An
// attached client may still be reading the exit of its own command.
func (r *Runner) EndAll(ctx context.Context, h *sandbox.Held, rec *meta.Sandbox) {
	late := time.NewTimer(endWait)
	defer late.Stop()
	expired := false
	for _, c := range r.c.Register.in(h.SandboxID()) {
		if !expired && !c.found {
			select {
			case <-c.ended:
			case <-late.C:
				expired = true
			}
		}
		end, known := r.c.Register.endOf(c)
		if !known {
			end = killed(audit.RemovedMeanwhile)
		}
		r.recordEnd(ctx, rec, c, end, end.Exit)
	}
}

// EndMoved records the exits of the commands of a sandbox that was brought to another snapshot, where the commands of
// a memory image resume. From then on, commands with the same ids are different commands.
func (r *Runner) EndMoved(ctx context.Context, h *sandbox.Held, rec *meta.Sandbox) {
	for _, c := range r.c.Register.in(h.SandboxID()) {
		end := killed("the sandbox was rewound to another snapshot")
		r.recordEnd(ctx, rec, c, end, end.Exit)
	}
}
