//go:build linux

package livefiles

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// patience is how long a rewind waits for requests that read or write files.
	patience = 30 * time.Second
	// grace is the time that requests have to close their files when the sandbox is stopped.
	grace = 5 * time.Second
)

// Sandboxes gives an Opener access to sandboxes.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock, for which it waits with patience. what names the
	// operation in the error that concurrent callers get.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Fixed returns the paths inside that have a mount or a decoy.
	Fixed(ctx context.Context, rec *meta.Sandbox) ([]string, error)
	// Decoys returns the paths of decoys. The sandbox is live.
	Decoys(ctx context.Context, rec *meta.Sandbox) ([]string, error)
}

// Held is a sandbox whose lock is held until Release.
type Held interface {
	// Root starts the sandbox unless it is live, and opens its root.
	Root(ctx context.Context, rec *meta.Sandbox) (*Root, error)
	// Capture takes a snapshot of the changes, unless the sandbox has automatic history. what is the message.
	Capture(ctx context.Context, what string) error
	// Release releases the lock.
	Release()
}

// Root is a live root as the processes of its sandbox see it.
type Root struct {
	Dir  *os.File
	User boxfs.User // the user that commands run as
	// Unseen are directories whose files are in the sandbox's memory, and not in Dir.
	Unseen []string
	// Close releases everything but Dir.
	Close func() error
	// Lock takes the lock of the sandbox, and waits as long as ctx allows. what names the operation in the error that
	// concurrent callers get.
	Lock func(ctx context.Context, what string) (Held, error)
	// Rename renames a file with a process of the sandbox. It returns failed if that is not possible.
	Rename func(ctx context.Context, from, to string, failed error) error
}

// Opener opens the files of sandboxes. New makes one; all methods are safe for concurrent use.
type Opener struct {
	sandboxes Sandboxes           // never changed
	watchers  boxfs.WatchersOfAll // watchers of all sandboxes

	mu    sync.Mutex
	trees map[timeline.SandboxID]*tree // the sandboxes used since New; guarded by mu
}

// tree is the state of the live files of a sandbox.
type tree struct {
	renames sync.Mutex      // see boxfs.Options.Renames
	watches boxfs.Watches   // see boxfs.Options.Watches
	open    map[*Files]bool // the requests that have files open; guarded by Opener.mu
}

// New returns an Opener.
func New(s Sandboxes) *Opener { return &Opener{sandboxes: s, trees: map[timeline.SandboxID]*tree{}} }

// tree returns the state of a sandbox.
func (o *Opener) tree(id timeline.SandboxID) *tree {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.trees[id]
	if t == nil {
		t = &tree{watches: boxfs.Watches{All: &o.watchers}, open: map[*Files]bool{}}
		o.trees[id] = t
	}
	return t
}

// opened returns the files of a sandbox that requests have open. The caller holds mu.
func (o *Opener) opened(id timeline.SandboxID) map[*Files]bool {
	if t := o.trees[id]; t != nil {
		return t.open
	}
	return nil
}

// Open opens the files of a sandbox, and starts it unless it is live. The caller calls Done or Close when it no
// longer uses anything that was opened through Files.
func (o *Opener) Open(ctx context.Context, name string) (*Files, error) {
	h, rec, err := o.sandboxes.Acquire(ctx, name, "opening its files")
	if err != nil {
		return nil, err
	}
	defer h.Release()
	fixed, err := o.sandboxes.Fixed(ctx, &rec)
	if err != nil {
		return nil, fault.Wrap(err, "open the files of sandbox %s", rec.Name)
	}
	in, err := h.Root(ctx, &rec)
	if err != nil {
		return nil, fault.Wrap(err, "open the files of sandbox %s", rec.Name)
	}
	decoys, err := o.sandboxes.Decoys(ctx, &rec)
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "open the files of sandbox %s", rec.Name), in.Dir.Close(), in.Close())
	}
	t := o.tree(rec.ID)
	root, err := boxfs.New(
		boxfs.Options{Dir: in.Dir, User: in.User, Renames: &t.renames, Watches: &t.watches, Fixed: fixed, Decoys: decoys,
			Unseen: in.Unseen})
	if err != nil {
		return nil, errors.Join(fault.Wrap(err, "open the files of sandbox %s", rec.Name), in.Dir.Close(), in.Close())
	}
	f := &Files{Root: root, o: o, tree: t, in: in, what: "its files are read or written", closed: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancelCause(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	t.open[f] = true
	return f, nil
}

// InUse reports whether a request has the files of a sandbox open.
func (o *Opener) InUse(id timeline.SandboxID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.opened(id)) > 0
}

// HoldNames calls fn, and prevents clients from renaming files of a sandbox meanwhile. fn must not open files.
func (o *Opener) HoldNames(id timeline.SandboxID, fn func()) {
	t := o.tree(id)
	t.renames.Lock()
	defer t.renames.Unlock()
	fn()
}

// Alone takes the lock of a sandbox with acquire once no request reads or writes files of the sandbox, for an
// operation that changes all files at once, and returns with the lock held. Files are opened under the lock, so no
// request starts to read or write before it is released.
func (o *Opener) Alone(ctx context.Context, acquire func() (timeline.SandboxID, Held, error)) error {
	enough, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		id, h, err := acquire()
		if err != nil {
			return err
		}
		f, doing := o.working(id)
		if f == nil {
			return nil
		}
		h.Release()
		select {
		case <-f.closed:
		case <-enough.Done():
			return busy(id, doing).Because(context.Cause(enough))
		}
	}
}

// working returns the files of a request that reads or writes, and its operation; nil: none.
func (o *Opener) working(id timeline.SandboxID) (*Files, string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for f := range o.opened(id) {
		if !f.watching {
			return f, f.what
		}
	}
	return nil, ""
}

func busy(id timeline.SandboxID, doing string) *fault.Error {
	return fault.New(fault.Conflict, "sandbox %s is busy: %s", id, doing).
		WithHint("wait until it has finished, then try again")
}

// Cut ends all use of the live root of a sandbox, before the root goes away. The caller holds the lock of the
// sandbox, so that no files are opened meanwhile.
func (o *Opener) Cut(ctx context.Context, _ *sandbox.Held, id timeline.SandboxID) error {
	o.mu.Lock()
	var open []*Files
	doing := ""
	for f := range o.opened(id) {
		doing = f.what
		f.cancel(fault.New(fault.Unavailable, "the sandbox was stopped meanwhile").
			WithHint("try again: the sandbox starts automatically"))
		open = append(open, f)
	}
	o.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, f := range open {
		select {
		case <-f.closed:
		case <-ctx.Done():
			return busy(id, doing).Because(context.Cause(ctx))
		}
	}
	return nil
}

// Forget discards the state of a removed sandbox.
func (o *Opener) Forget(id timeline.SandboxID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.trees, id)
}
