//go:build linux

package upkeep

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sandboxes gives Upkeep access to sandboxes.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock, for which it waits with patience. what names
	// the operation in the error that other callers get meanwhile. The caller calls release.
	Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error)
	// TryAcquire takes the lock of a sandbox if it is free; ok reports whether it did.
	TryAcquire(id timeline.SandboxID, what string) (release func(), ok bool)
	// Whole returns an error if the sandbox can only be removed or forked.
	Whole(id timeline.SandboxID) error
	// Playing reports whether a tournament, named by its tag, is running.
	Playing(tournament string) bool
	// Idle reports whether no process runs in a sandbox. It does not wait for the sandbox's lock.
	Idle(ctx context.Context, rec *meta.Sandbox) bool
	// Remove removes a sandbox; it returns a Conflict if processes run in it.
	Remove(ctx context.Context, id timeline.SandboxID) error
	// Nodes describes the snapshots of a history for clients.
	Nodes(ctx context.Context, h *timeline.History) (map[timeline.SnapshotID]wire.Snapshot, error)
}

// Stacks gives Upkeep access to layers that others make, read and mount.
type Stacks interface {
	// NewLayer names a layer that is about to be made. Until made is called, Garbage leaves it out
	// although it has no record.
	NewLayer() (id timeline.LayerID, made func(), err error)
	// Rerouted discards the cached stacks: routes other than those of new snapshots have changed.
	Rerouted()
	// Mounted returns the layers that live roots are mounted with. They stay on the disk.
	Mounted() map[timeline.LayerID]bool
	// LetGo forgets the mounts of sandboxes whose keepers have exited.
	LetGo(ctx context.Context) error
	// Garbage returns the layers that may be deleted: those in dead, and those on the disk without a record,
	// except layers that are mounted, being made, or to be moved back to a live root.
	Garbage(ctx context.Context, dead []timeline.LayerID) ([]timeline.LayerID, error)
}

// Dropped describes snapshots that are removed, and why.
type Dropped struct {
	Of        *meta.Sandbox // nil: the host, for snapshots of removed sandboxes
	Snapshots []timeline.SnapshotID
	Reason    string
}

// Recorder records what Upkeep removes. A removal frees space, so a full disk must not prevent it.
type Recorder interface {
	// Drop notes that snapshots are about to be removed, calls drop, and records that they are removed unless
	// drop fails. A later process writes the record if this one cannot. The error is that of drop, or says
	// that drop was not called, or that the record is not written yet.
	Drop(ctx context.Context, d Dropped, drop func(context.Context) error) error
}

// Sweeps are the garbage collections of other parts, which GC calls in this order.
type Sweeps interface {
	// SweepReferences removes references to commits in users' repositories, and imported files of commits,
	// that no sandbox needs.
	SweepReferences(ctx context.Context) error
	// SweepLeftovers deletes directories that belong neither to a sandbox nor to a current generation. GC
	// calls it with Config.Shape locked.
	SweepLeftovers(ctx context.Context) error
	// SweepImages removes memory images that belong to no snapshot, and adds them to res.
	SweepImages(ctx context.Context, res *wire.GCResult) error
}

// Config configures an Upkeep. All fields are required.
type Config struct {
	DB        *meta.DB
	Layers    *layer.Store
	Shape     *sync.RWMutex // see the package comment
	Sandboxes Sandboxes
	Stacks    Stacks
	Recorder  Recorder
	Sweeps    Sweeps
	Feed      *events.Bus
	// Go runs fn in the background. Its context is canceled when the engine is closed, which waits for fn.
	Go  func(fn func(context.Context))
	Now func() time.Time
	Log *slog.Logger
}

// Upkeep keeps layers and histories in order. New makes one, and the caller runs Work in the background. All
// methods are safe for concurrent use. A sandbox's lock must not be held in calls of them, unless their
// comment says so.
type Upkeep struct {
	config Config        // never changed
	shape  *sync.RWMutex // Config.Shape

	thinning   sync.Mutex // one caller at a time drops snapshots of a whole history
	merging    sync.Mutex // one caller at a time merges what is queued
	finalizing sync.Mutex // one caller at a time

	work chan struct{} // one token: there may be something to finalize, to merge or to thin

	mu       sync.Mutex
	deep     map[timeline.SnapshotID]bool // snapshots whose chains may need merging; guarded by mu
	shallow  map[timeline.SnapshotID]bool // snapshots whose chains need none; guarded by mu
	thick    map[timeline.SandboxID]bool  // histories that may have snapshots to remove; guarded by mu
	autos    map[timeline.SandboxID]int   // automatic snapshots since the history was queued; guarded by mu
	underway finalization                 // the layer that is being finalized; guarded by mu
}

// New returns an Upkeep. It does nothing in the background before Work runs.
func New(c Config) *Upkeep {
	return &Upkeep{
		config: c, shape: c.Shape, work: make(chan struct{}, 1),
		deep: map[timeline.SnapshotID]bool{}, shallow: map[timeline.SnapshotID]bool{},
		thick: map[timeline.SandboxID]bool{}, autos: map[timeline.SandboxID]int{},
	}
}

// Wake makes Work look for something to do. It does not wait, and the caller may hold any lock.
func (u *Upkeep) Wake() {
	select {
	case u.work <- struct{}{}:
	default:
	}
}

// Work finalizes new layers, keeps chains short and thins old automatic snapshots, until ctx is canceled. A
// failure is logged, and retried when something new is captured: nothing that was acknowledged depends on it.
func (u *Upkeep) Work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.work:
		}
		if err := u.Finalize(ctx); err != nil && ctx.Err() == nil {
			u.config.Log.Error("could not finalize layers; will try again", "err", err)
		}
		if err := u.Merge(ctx); err != nil && ctx.Err() == nil {
			u.config.Log.Error("could not merge layers; will try again", "err", err)
		}
		if err := u.thinQueued(ctx); err != nil && ctx.Err() == nil {
			u.config.Log.Error("could not delete old automatic snapshots; will try again", "err", err)
		}
	}
}

// Hold waits for a layer that is being finalized and for merges in progress, and prevents others until
// release is called. It is for tests, for example of what is lost before a layer is finalized.
func (u *Upkeep) Hold() (release func()) {
	u.merging.Lock()
	u.finalizing.Lock()
	return func() {
		u.finalizing.Unlock()
		u.merging.Unlock()
	}
}

// Forget discards the state of a removed sandbox. The caller may hold any lock.
func (u *Upkeep) Forget(id timeline.SandboxID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.autos, id)
	delete(u.thick, id)
}

// find reads a sandbox's record and its history.
func (u *Upkeep) find(ctx context.Context, name string) (meta.Sandbox, *timeline.History, error) {
	rec, err := u.config.DB.Sandbox(ctx, name)
	if err != nil {
		return rec, nil, err
	}
	h, err := u.config.DB.History(ctx, rec.ID)
	if err != nil {
		return rec, nil, err
	}
	return rec, &h, nil
}
