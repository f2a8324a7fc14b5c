//go:build linux

package restore

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/images"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// releasing is how many forks are released from quarantine concurrently.
const releasing = 4

// Step is a step of giving a box its own identity. Err says why it failed; "" if it did not.
type Step struct{ Name, Detail, Err string }

// Box is the keeper of a live sandbox, as far as a Restorer needs it. Equal values mean the same keeper.
type Box interface {
	// Gone returns a channel that is closed when the keeper has exited.
	Gone() <-chan struct{}
	// Pause suspends every process until Resume, which a later daemon may call.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Paused reports whether the processes are suspended by Pause.
	Paused(ctx context.Context) (bool, error)
	// Rekey gives a box that was started from an image its own identity. seed is 32 fresh random bytes. It stops at the
	// first step that fails, which the error names. If the gate is open, it returns a Conflict without a step.
	Rekey(ctx context.Context, hostname string, seed []byte) ([]Step, error)
	// Release opens the gate of a box that was started from an image.
	Release(ctx context.Context) error
}

// Held is a sandbox whose lock the caller holds. It must not be used after Unlock.
type Held interface {
	// Box returns the box of the sandbox while its keeper runs; nil otherwise.
	Box() Box
	// Bring captures the present of a sandbox without a box, and rewinds its files to one of its snapshots.
	Bring(ctx context.Context, rec *meta.Sandbox, at timeline.SnapshotID) error
	// Start starts the box of a sandbox from a memory image; its gate lets nothing pass before Box.Release. The start
	// is recorded once recorded has returned nil.
	Start(ctx context.Context, rec *meta.Sandbox, img *images.Image) (b Box, recorded func() error, err error)
	// Adopt takes over the commands that resume in a box that Start has started, under their previous ids, which it
	// returns. run is the id of the supervised one, "" if there is none.
	Adopt(ctx context.Context, rec *meta.Sandbox, run string) (ids []string, err error)
	// Stop stops the box.
	Stop(ctx context.Context) error
	// Unlock releases the lock.
	Unlock()
}

// Files gives access to the live files of a sandbox. The caller closes it.
type Files interface {
	// List lists a directory to a depth. It returns NotFound if the directory does not exist.
	List(ctx context.Context, dir string, depth int) (wire.FileList, error)
	// Context returns a context for calls of List, which is canceled when the files must be closed.
	Context() context.Context
	Close() error
}

// Sandboxes finds sandboxes. The engine implements it.
type Sandboxes interface {
	// Acquire finds a sandbox by name or id and takes its lock. what names the operation in the error that concurrent
	// callers get. The caller unlocks.
	Acquire(ctx context.Context, name, what string) (Held, meta.Sandbox, error)
	// Snapshot returns a snapshot of the history of a sandbox; the zero Snapshot if it is not in the history.
	Snapshot(ctx context.Context, rec *meta.Sandbox, id timeline.SnapshotID) (timeline.Snapshot, error)
	// Exec runs a command that re-keys a sandbox, and relays its frames over stream. Little of it is recorded.
	Exec(ctx context.Context, id string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)
	// Files opens the live files of a sandbox.
	Files(ctx context.Context, id string) (Files, error)
	// Describe describes a sandbox for clients.
	Describe(ctx context.Context, rec *meta.Sandbox) wire.Sandbox
}

// Records stores the records of sandboxes.
type Records interface {
	// Sandbox finds a sandbox by name or id. It returns NotFound if there is none.
	Sandbox(ctx context.Context, ref string) (meta.Sandbox, error)
	// UpdateSandbox stores the record of a sandbox as edited by change. If change fails, the record is not
	// changed, and its error is returned.
	UpdateSandbox(ctx context.Context, id timeline.SandboxID, change func(*meta.Sandbox) error) error
}

// Recorder writes the audit log. audit.Book implements it.
type Recorder interface {
	// Drafts returns records of a sandbox in the state of rec.
	Drafts(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) []ledger.Draft
	// Record writes records of a sandbox in the state of rec. When it returns without an error, they are on the disk.
	Record(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement) error
	// Note is Record for events that have happened and can no longer be refused.
	Note(ctx context.Context, rec *meta.Sandbox, all ...audit.Statement)
	// Do writes records of what fn is about to do, and then calls fn. If the records cannot be written, fn is not
	// called. If fn fails, Do records that they did not happen, and returns the error of fn.
	Do(ctx context.Context, drafts []ledger.Draft, fn func(context.Context) error) error
}

// Config configures a Restorer. All fields are required.
type Config struct {
	Sandboxes Sandboxes
	Records   Records
	Recorder  Recorder
	Images    *images.Images
	Cleaners  *audit.Cleaners // redact the texts of records
	Feed      *events.Bus     // receives the events
	// EndTrial ends the trial that a process of a sandbox asked for, after a change of the sandbox: see package
	// tournament.
	EndTrial func(id timeline.SandboxID, why string)
	Rand     io.Reader
	Now      func() time.Time
	Log      *slog.Logger
}

// Restorer pauses and resumes the processes of the sandboxes of a home. New makes one. All methods are safe
// for concurrent use.
type Restorer struct {
	config Config // never changed

	identifying singleflight.Group // by sandbox id: see RekeyFork

	mu        sync.Mutex                  // held last: see docs/design/locks.md
	releasing map[timeline.SandboxID]bool // sandboxes that are being released from quarantine; guarded by mu
}

// New returns a Restorer.
func New(c Config) *Restorer { return &Restorer{config: c, releasing: map[timeline.SandboxID]bool{}} }

// Quarantine returns the quarantine, from since on, of a sandbox whose processes resume from the memory of its
// snapshot at. It lasts until Release.
func Quarantine(since time.Time, at timeline.SnapshotID) *meta.Quarantine {
	return &meta.Quarantine{Since: since, At: at, Reason: "it is being re-keyed"}
}

// Restore resumes processes from a memory image. The files of the sandbox must be those of the same snapshot, and it
// must not have a box. Restore returns the ids of the commands that resume, and releases the image. It opens the gate
// of the sandbox, unless the processes are those of another sandbox: then the sandbox is quarantined until Release.
// An earlier quarantine has ended with its processes.
func (r *Restorer) Restore(
	ctx context.Context, s Held, rec *meta.Sandbox, img *images.Image, foreign bool,
) ([]string, error) {
	if foreign || rec.Quarantine != nil { // the processes of an earlier quarantine have exited
		var q *meta.Quarantine
		if foreign {
			q = Quarantine(r.config.Now().UTC(), rec.Head)
		}
		err := r.config.Records.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Quarantine = q; return nil })
		if err != nil {
			img.Release()
			return nil, err
		}
		rec.Quarantine = q
	}
	b, ids, err := r.start(ctx, s, rec, img)
	if err == nil && !foreign {
		if err = b.Release(ctx); err != nil {
			err = errors.Join(err, s.Stop(ctx))
		}
	}
	if err != nil {
		return nil, fault.Wrap(err, "sandbox %s is at snapshot %s, but its processes were not resumed", rec.Name, rec.Head)
	}
	return append([]string{}, ids...), nil
}

// start starts the box of a sandbox from a memory image, with the files of the same snapshot, and takes over the
// commands that resume in it, whose ids it returns. It releases the image. The gate stays closed.
func (r *Restorer) start(
	ctx context.Context, s Held, rec *meta.Sandbox, img *images.Image,
) (Box, []string, error) {
	b, recorded, err := s.Start(ctx, rec, img)
	if err != nil {
		img.Release()
		return nil, nil, err
	}
	r.config.Images.ReleaseAfter(img, b.Gone())
	ids, err := s.Adopt(ctx, rec, img.Run)
	if err = errors.Join(recorded(), err); err != nil {
		return nil, nil, errors.Join(err, s.Stop(ctx))
	}
	ev := events.About(rec, wire.EventResumed)
	ev.Snapshot, ev.Detail = string(rec.Head), "from memory"
	r.config.Feed.Emit(ev)
	return b, ids, nil
}

// startAt resumes the processes of a snapshot with its files, in a sandbox that has the snapshot in its history and
// has no box.
func (r *Restorer) startAt(ctx context.Context, s Held, rec *meta.Sandbox, at timeline.SnapshotID) (Box, error) {
	snap, err := r.config.Sandboxes.Snapshot(ctx, rec, at)
	if err != nil {
		return nil, err
	}
	m, err := r.config.Images.Resumable(rec, snap)
	if err != nil {
		return nil, err
	}
	img, err := r.config.Images.Ready(ctx, rec, at, m)
	if err != nil {
		return nil, err
	}
	if err := s.Bring(ctx, rec, at); err != nil {
		img.Release()
		return nil, err
	}
	b, _, err := r.start(ctx, s, rec, img)
	return b, err
}

// ReleaseForks releases forks from quarantine, several concurrently. A fork for which this fails stays quarantined,
// with the reason. It updates recs to the records of the forks afterwards.
func (r *Restorer) ReleaseForks(ctx context.Context, recs []meta.Sandbox) {
	var g errgroup.Group
	g.SetLimit(releasing)
	for i := range recs {
		g.Go(func() error {
			if err := r.Release(ctx, string(recs[i].ID)); err != nil {
				r.config.Log.Warn("a fork was quarantined", "sandbox", recs[i].Name, "err", err)
			}
			if now, err := r.config.Records.Sandbox(ctx, string(recs[i].ID)); err == nil {
				recs[i] = now
			}
			return nil
		})
	}
	_ = g.Wait()
}
