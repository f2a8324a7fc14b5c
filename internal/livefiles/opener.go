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
	// patience is how long a move waits for requests that read or write files.
	patience = 30 * time.Second
	// grace is what requests have to close their files when the sandbox is stopped.
	grace = 5 * time.Second
)

// Sandboxes is what an Opener needs of sandboxes.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock, for which it waits with patience. what
	// names the operation for callers that find the sandbox busy.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Fixed returns the places at which something is mounted inside, or has a decoy.
	Fixed(ctx context.Context, rec *meta.Sandbox) ([]string, error)
	// Decoys returns the places of decoys. The sandbox is live.
	Decoys(ctx context.Context, rec *meta.Sandbox) ([]string, error)
}

// Held is a sandbox whose lock is held until Release.
type Held interface {
	// Root starts the sandbox if it is not live, and opens its root.
	Root(ctx context.Context, rec *meta.Sandbox) (*Root, error)
	// Capture takes a snapshot of what was written, unless the sandbox is captured by itself. what is the
	// label.
	Capture(ctx context.Context, what string) error
	// Release releases the lock.
	Release()
}

// Root is a live root as the processes of its sandbox see it.
type Root struct {
	Dir  *os.File
	User boxfs.User // who commands run as
	// Unseen are directories whose files lie in memory of the sandbox, and not in Dir.
	Unseen []string
	// Close lets go of all but Dir.
	Close func() error
	// Lock takes the lock of the sandbox, for which it waits as long as ctx allows. what names the operation
	// for callers that find the sandbox busy.
	Lock func(ctx context.Context, what string) (Held, error)
	// Rename renames a file by a process of the sandbox; failed is the error where that cannot be done.
	Rename func(ctx context.Context, from, to string, failed error) error
}

// Opener opens the files of sandboxes. Make one with New; all methods are safe for concurrent use.
type Opener struct {
	sandboxes Sandboxes           // never changed
	watchers  boxfs.WatchersOfAll // of all sandboxes

	mu    sync.Mutex
	trees map[timeline.SandboxID]*tree // the sandboxes used since New; guarded by mu
}

// tree is what is known of the live files of a sandbox.
type tree struct {
	renames sync.Mutex      // see boxfs.Options.Renames
	watches boxfs.Watches   // see boxfs.Options.Watches
	open    map[*Files]bool // which requests have open; guarded by Opener.mu
}

// New makes an Opener.
func New(s Sandboxes) *Opener { return &Opener{sandboxes: s, trees: map[timeline.SandboxID]*tree{}} }

// tree returns what is known of a sandbox.
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

// Open opens the files of a sandbox, which is started when it is not live. The
// caller calls Done or Close, once what was opened by it is not used any more.
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

// HoldNames calls fn while no client renames files of a sandbox. fn opens no files.
func (o *Opener) HoldNames(id timeline.SandboxID, fn func()) {
	t := o.tree(id)
	t.renames.Lock()
	defer t.renames.Unlock()
	fn()
}

// Alone calls acquire, which takes the lock of a sandbox, until no request reads or writes files of the
// sandbox, and returns with the lock, for what changes all files at once. Files are opened with the lock, so
// that no request begins to read or write before it is released.
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

// working returns the files of a request that reads or writes, and what it does; nil: there is none.
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

// Cut ends what is done with the live root of a sandbox, which is about to go. The caller holds the lock of
// the sandbox, so that no files are opened meanwhile.
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

// Forget discards what is known of a sandbox that is gone.
func (o *Opener) Forget(id timeline.SandboxID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.trees, id)
}
