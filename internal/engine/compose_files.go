//go:build linux

package engine

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/livefiles"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// filesCore adapts the engine to livefiles.Sandboxes.
type filesCore struct{ e *Engine }

// Acquire takes the lock of a sandbox.
func (c filesCore) Acquire(ctx context.Context, name, what string) (livefiles.Held, meta.Sandbox, error) {
	s, rec, err := c.e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	return filesHeld{c.e, s}, rec, nil
}

// Fixed returns the paths inside the sandbox that have a mount or a decoy.
func (c filesCore) Fixed(ctx context.Context, rec *meta.Sandbox) ([]string, error) {
	return c.e.fixed(ctx, rec)
}

// Decoys returns the paths of decoys.
func (c filesCore) Decoys(ctx context.Context, rec *meta.Sandbox) ([]string, error) {
	return c.e.Egress.DecoyPlaces(ctx, rec)
}

// filesHeld is a sandbox whose lock is held for its files. It implements livefiles.Held.
type filesHeld struct {
	e *Engine
	s *held
}

// Release releases the lock.
func (h filesHeld) Release() { h.s.unlock(h.e) }

// Root starts the box if necessary, and opens its root.
func (h filesHeld) Root(ctx context.Context, rec *meta.Sandbox) (*livefiles.Root, error) {
	b, err := h.e.start(ctx, h.s, rec)
	if err != nil {
		return nil, err
	}
	in, err := b.OpenRoot(ctx)
	if fault.Is(err, fault.Unavailable) {
		// Usually the keeper was idle and exited between the check and the call.
		if b, err = restart(ctx, h.e, h.s, rec, err); err != nil {
			return nil, err
		}
		in, err = b.OpenRoot(ctx)
	}
	if err != nil {
		return nil, err
	}
	if in.Dir == nil {
		if in.Dir, err = h.openTree(ctx, rec); err != nil {
			return nil, errors.Join(err, in.Close())
		}
	}
	opened := filesRoot{h.e, h.s.entry, b}
	return &livefiles.Root{
		Dir: in.Dir, User: in.User, Unseen: in.Unseen, Close: in.Close, Lock: opened.lock, Rename: opened.rename,
	}, nil
}

// openTree opens the plain tree of a driver.
func (h filesHeld) openTree(ctx context.Context, rec *meta.Sandbox) (*os.File, error) {
	drv, live, err := h.e.live(ctx, rec)
	if err != nil {
		return nil, err
	}
	parts, err := drv.Parts(live)
	if err != nil {
		return nil, err
	}
	if !drv.Plain() || len(parts) != 1 {
		return nil, fault.New(fault.Internal, "the live root of sandbox %s is not mounted", rec.Name)
	}
	fd, err := unix.Open(parts[0].Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: parts[0].Dir, Err: err}
	}
	return os.NewFile(uintptr(fd), "live root"), nil
}

// Capture takes a snapshot of the changes from outside.
func (h filesHeld) Capture(ctx context.Context, what string) error {
	rec, err := h.e.DB.Sandbox(ctx, string(h.s.ID))
	if err != nil {
		return err
	}
	if h.e.Commands.CaptureLater(commandHeld{h.e, h.s}) {
		return nil
	}
	message := message.Clean(events.Cut(h.e.cleaners.For(ctx, &rec).Redact(what)))
	_, err = h.e.capture(ctx, h.s, &rec, note{cause: timeline.CauseAuto, message: message, aside: true})
	return fault.Wrap(err, "the operation succeeded, but capturing its changes failed")
}

// filesRoot is an open live root, and the box that it belongs to.
type filesRoot struct {
	e   *Engine
	s   *entry
	box Box
}

// lock takes the lock of the sandbox.
func (r filesRoot) lock(ctx context.Context, what string) (livefiles.Held, error) {
	s, err := r.e.lock(ctx, r.s, what)
	if err != nil {
		return nil, err
	}
	return filesHeld{r.e, s}, nil
}

// rename renames a file with mv(1) inside. It returns failed if the sandbox has no mv.
func (r filesRoot) rename(ctx context.Context, from, to string, failed error) error {
	s, err := r.e.lock(ctx, r.s, "moving a directory")
	if err != nil {
		return err
	}
	wait, err := r.e.Commands.Unrecorded(ctx, commandHeld{r.e, s}, r.box,
		"mv", "-T", "--", "/"+strings.TrimLeft(from, "/"), "/"+strings.TrimLeft(to, "/"))
	s.unlock(r.e)
	if err != nil {
		return err
	}
	exit, said, err := wait()
	switch {
	case err != nil:
		return err
	case exit.Code == 0:
		return nil
	case exit.Code == 126 || exit.Code == 127: // mv not found, or not executable
		return failed
	}
	return fault.New(fault.Conflict, "move: %s", message.Clean(strings.TrimSpace(said))).
		WithHint("check the source and the destination first: files/stat")
}
