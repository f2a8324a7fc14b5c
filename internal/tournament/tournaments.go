//go:build linux

package tournament

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Operations are the operations on sandboxes that Tournaments needs. Each acquires its own locks.
type Operations interface {
	// Fork creates forks of a sandbox for a purpose, which their records name, and returns the snapshot that they start
	// from. They are marked: a daemon that starts removes them. Exists: a name is taken.
	Fork(
		ctx context.Context, of timeline.SandboxID, req wire.ForkRequest, p Purpose,
	) (res wire.ForkResult, at timeline.SnapshotID, err error)
	// Keep clears the mark of a fork, which is then an ordinary sandbox with the tag of its tournament.
	Keep(ctx context.Context, id timeline.SandboxID) error
	// Rekey gives a fork of Fork its own identity, as its first command would; again it does nothing. It ends soon
	// after ctx: see restore.Restorer.RekeyWithin.
	Rekey(ctx context.Context, id string) error
	// Exec runs a command in a sandbox; its frames go to stream.
	Exec(ctx context.Context, id string, req wire.ExecRequest, stream io.ReadWriter) (wire.Exit, error)
	// Halt stops all processes of a sandbox. It does nothing if the sandbox cannot be acquired.
	Halt(ctx context.Context, id string) error
	// Remove stops and removes a sandbox. NotFound: it does not exist.
	Remove(ctx context.Context, id string) error
	// Checkout rewinds a sandbox to a snapshot.
	Checkout(ctx context.Context, id timeline.SandboxID, to string) error
	// Head returns the head of a sandbox.
	Head(ctx context.Context, id timeline.SandboxID) (string, error)
	// Weigh counts the paths that differ between two snapshots of a sandbox, and the bytes of those files in the
	// second.
	Weigh(ctx context.Context, id string, from, to timeline.SnapshotID) (paths int, bytes int64, err error)
}

// Purpose says what forks are made for.
type Purpose struct {
	Tag string // of the tournament or trial
	// Trial is set for a trial: its fork has neither the labels of the sandbox nor a socket inside, and the same temporary
	// network rules.
	Trial bool
	Limit time.Duration // of a trial: its fork expires soon after; 0: none
}

// Config configures New. All fields are required.
type Config struct {
	DB         *meta.DB
	Operations Operations
	Guests     Guests
	Budgets    *audit.Budgets
	Book       *audit.Book
	Cleaners   *audit.Cleaners
	Feed       *events.Bus
	Rand       io.Reader
	Now        func() time.Time
	Log        *slog.Logger
}

// Tournaments runs tournaments and trials. Create one with New. Its methods are safe for concurrent use.
type Tournaments struct {
	config Config        // never changed
	trials chan struct{} // holds one value for each running trial

	mu      sync.Mutex
	playing map[string]bool               // tags in progress; guarded by mu
	guests  map[timeline.SandboxID]*guest // trials that sandboxes asked for, by sandbox; guarded by mu
	queues  map[timeline.SandboxID]*queue // of sandboxes with trials that clients asked for; guarded by mu
}

// New returns a Tournaments with nothing in progress.
func New(c Config) *Tournaments {
	return &Tournaments{
		config: c, playing: map[string]bool{}, guests: map[timeline.SandboxID]*guest{},
		queues: map[timeline.SandboxID]*queue{},
		trials: make(chan struct{}, jobs(0, MaxCandidates, runtime.NumCPU(), memAvailable(), roomForOne)),
	}
}

// TrialsAtOnce returns the maximum number of concurrent trials; further ones wait.
func (t *Tournaments) TrialsAtOnce() int { return cap(t.trials) }

// UnderWay returns the tags of the tournaments and trials in progress, sorted. Their forks must not be removed.
func (t *Tournaments) UnderWay() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.playing))
}

// begin registers a tournament until finish is called. It returns false if the tag is in use.
func (t *Tournaments) begin(tag string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.playing[tag] {
		return false
	}
	t.playing[tag] = true
	return true
}

func (t *Tournaments) finish(tag string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.playing, tag)
}
