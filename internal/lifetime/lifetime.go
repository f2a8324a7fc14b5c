//go:build linux

package lifetime

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// Box is the box of a sandbox. Equal values mean the same box.
type Box interface {
	// Processes lists the processes that run in the box.
	Processes(ctx context.Context) (wire.ProcessesResult, error)
}

// Finder gives Lifetimes access to sandboxes.
type Finder interface {
	// Acquire finds a sandbox by name or id and takes its lock, for which it waits with patience. what names the
	// operation in the error that concurrent callers get. The caller calls release.
	Acquire(ctx context.Context, name, what string) (release func(), rec meta.Sandbox, err error)
	// Describe describes a sandbox for clients.
	Describe(ctx context.Context, rec *meta.Sandbox) wire.Sandbox
	// Known returns the sandboxes that may have boxes.
	Known() []timeline.SandboxID
	// Box returns the box of a sandbox, nil if it has none. It does not wait for the sandbox's lock: ok is
	// false if another caller holds it. what is as in Acquire.
	Box(id timeline.SandboxID, what string) (b Box, ok bool)
}

// Still reports whether a sandbox must still be ended. An Ender calls it with the sandbox's record once it holds the
// sandbox's lock, and does nothing if it returns false.
type Still func(rec *meta.Sandbox) bool

// Ender ends sandboxes for Lifetimes.
type Ender interface {
	// Remove ends the processes of a sandbox and removes it.
	Remove(ctx context.Context, id timeline.SandboxID, still Still) error
	// Stop ends the processes of a sandbox and captures their changes. If another caller holds the sandbox's lock, it
	// cancels that caller's start or capture.
	Stop(ctx context.Context, id timeline.SandboxID, still Still) error
	// StopIdle captures a sandbox, stops its box b, and captures the changes of the stop; both snapshots have message.
	// It waits for the sandbox's lock. If the sandbox has another box than b by then, it does nothing. stopped reports
	// whether b was stopped, also with an error.
	StopIdle(
		ctx context.Context, id timeline.SandboxID, b Box, message string, still Still,
	) (stopped bool, err error)
	// Checkout rewinds a sandbox to one of its snapshots.
	Checkout(ctx context.Context, id timeline.SandboxID, to timeline.SnapshotID) error
}

// Config configures Lifetimes. All fields are required.
type Config struct {
	DB     *meta.DB
	Finder Finder
	Ender  Ender
	// Drop removes snapshots of a sandbox; see upkeep.Upkeep.
	Drop func(ctx context.Context, id timeline.SandboxID, choose upkeep.Choice) error
	// Relabel records that a sandbox, whose lock is held, is about to get the labels of rec in place of before, and calls
	// do, which stores them. If the change cannot be recorded, do is not called.
	Relabel func(ctx context.Context, rec *meta.Sandbox, before map[string]string, do func(context.Context) error) error
	Now     func() time.Time
	Log     *slog.Logger
}

// Lifetimes ends sandboxes that are expired or idle. New makes one, and the caller runs ExpireAll and StopAllIdle in
// the background. All methods are safe for concurrent use.
type Lifetimes struct {
	config Config // never changed

	expiries chan struct{} // one token: the expiry of a sandbox has changed
	idles    chan struct{} // one token: there may be another sandbox with an idle limit

	mu   sync.Mutex
	uses map[timeline.SandboxID]usage // guarded by mu
}

// New returns Lifetimes. It does nothing in the background before ExpireAll and StopAllIdle run.
func New(c Config) *Lifetimes {
	return &Lifetimes{
		config: c, expiries: make(chan struct{}, 1), idles: make(chan struct{}, 1),
		uses: map[timeline.SandboxID]usage{},
	}
}

// WakeExpiry makes ExpireAll check again: the expiry of a sandbox has changed, or there is a new sandbox. It
// does not wait, and the caller may hold any lock.
func (l *Lifetimes) WakeExpiry() { wake(l.expiries) }

// WakeIdle makes StopAllIdle check again: a sandbox has another box or another limit. It does not wait, and
// the caller may hold any lock.
func (l *Lifetimes) WakeIdle() { wake(l.idles) }

// wake puts a token into a channel, unless it has one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// usage is the number of callers that use a sandbox, and the end of the last use.
type usage struct {
	now  int
	last time.Time
}

// Use marks a sandbox as in use, and so not idle, until done is called, which may be called more than once. Use does
// not wait, and the caller may hold any lock.
func (l *Lifetimes) Use(id timeline.SandboxID) (done func()) {
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		u, known := l.uses[id]
		if !known && n < 0 {
			return // it was deleted meanwhile
		}
		u.now, u.last = u.now+n, l.config.Now()
		l.uses[id] = u
	}
	add(1)
	return sync.OnceFunc(func() { add(-1) })
}

// used reports whether a sandbox is in use, and when it last was.
func (l *Lifetimes) used(id timeline.SandboxID) (now bool, last time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.uses[id]
	return u.now > 0, u.last
}

// Forget discards the uses of a removed sandbox.
func (l *Lifetimes) Forget(id timeline.SandboxID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.uses, id)
}
