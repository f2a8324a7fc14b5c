//go:build linux

package audit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Statement is the body of a record, and the observer that states it.
type Statement struct {
	By   format.Observer
	Body format.Body
}

// ByDaemon returns statements of the daemon.
func ByDaemon(bodies ...format.Body) (all []Statement) {
	for _, b := range bodies {
		all = append(all, Statement{format.ByDaemon, b})
	}
	return all
}

// ByKeeper returns a statement of a keeper.
func ByKeeper(b format.Body) Statement { return Statement{format.ByKeeper, b} }

// Store is the part of the database that a Book uses.
type Store interface {
	// Sandbox finds the record of a sandbox by its name or id. It returns NotFound if there is none.
	Sandbox(ctx context.Context, nameOrID string) (meta.Sandbox, error)
	// HasSnapshot reports whether a snapshot is in the history of any sandbox.
	HasSnapshot(ctx context.Context, id timeline.SnapshotID) (bool, error)
	// Setting returns the value of a setting, "" if it is not set. SetSetting sets it.
	Setting(ctx context.Context, key string) (string, error)
	SetSetting(ctx context.Context, key, value string) error
	// BeginIntent durably stores an intent to do something; Intents lists the intents that have not ended.
	BeginIntent(ctx context.Context, kind string, payload any) (int64, error)
	EndIntent(ctx context.Context, id int64) error
	Intents(ctx context.Context) ([]meta.Intent, error)
}

// Commands holds the commands whose exits are not recorded yet. A Book stores them for the next daemon, and restores
// them there from what it stored and from the records (Found, Hear).
type Commands interface {
	// Open returns these commands.
	Open() []OpenCommand
	// Found adds a command that an earlier daemon started.
	Found(OpenCommand)
	// Hear is called with the records that an earlier daemon left, in their order.
	Hear(*format.Record)
	// Settle removes a command whose exit has been recorded.
	Settle(OpenCommand)
}

// BookConfig configures a Book. All fields are required.
type BookConfig struct {
	// Ledger stores the records. The caller closes it after the last call of a method of the Book.
	Ledger   *ledger.Ledger
	Store    Store
	Cleaners *Cleaners
	Commands Commands
	// PolicyNow returns the digest of the policy of a sandbox that is in force.
	PolicyNow func(context.Context, *meta.Sandbox) (string, error)
	// NeverApplied reports whether the change that an apply record states certainly did not happen.
	NeverApplied func(context.Context, *meta.Sandbox, *format.Apply) bool
	Home         string // for messages
	Now          func() time.Time
	Logger       *slog.Logger
}

// Book writes the audit log. An operation on a sandbox is recorded before it is done (Do) or, if it frees disk space,
// as soon as it is done (Free); an operation that cannot be recorded is refused. What has already happened is
// appended (Append, Note, Begin). After a crash, Reconcile compares the records with what happened. All methods are
// safe for concurrent use.
type Book struct {
	// Ledger stores the records; Cleaners redacts them first. They are never changed.
	Ledger   *ledger.Ledger
	Cleaners *Cleaners

	config BookConfig // never changed

	compared atomic.Bool // Reconcile has succeeded

	doing  atomic.Int64 // the number of calls of Do in progress
	agreed atomic.Int64 // see settingAgreed

	mu   sync.Mutex     // held last: see docs/design/locks.md
	late []ledger.Draft // guarded by mu: records that could not be written yet
}

// NewBook returns a Book.
func NewBook(c BookConfig) *Book { return &Book{Ledger: c.Ledger, Cleaners: c.Cleaners, config: c} }

// Drafts returns records of a sandbox in its current state.
func (b *Book) Drafts(ctx context.Context, rec *meta.Sandbox, all ...Statement) []ledger.Draft {
	digest := rec.Policy
	if len(rec.Timed) > 0 {
		if now, err := b.config.PolicyNow(ctx, rec); err == nil {
			digest = now
		}
	}
	out := make([]ledger.Draft, len(all))
	for i, s := range all {
		out[i] = ledger.Draft{Sandbox: format.Sandbox(rec.ID), Name: rec.Name, Observer: s.By, Policy: digest,
			Tier: rec.Tier, Body: s.Body}
	}
	return out
}

// Append writes records, after those that could not be written earlier. When it returns without an error, they are on
// the disk.
func (b *Book) Append(ctx context.Context, drafts ...ledger.Draft) ([]format.Record, error) {
	if len(drafts) == 0 {
		return nil, nil
	}
	ctx = context.WithoutCancel(ctx)
	late := b.takeLate()
	got, err := b.Ledger.Append(ctx, slices.Concat(late, drafts)...)
	if fault.Is(err, fault.NotFound) && len(late) > 0 { // the ledger of a late record was removed meanwhile
		for i := range late {
			if _, lerr := b.Ledger.Append(ctx, late[i]); lerr != nil && !fault.Is(lerr, fault.NotFound) {
				b.keepLate(late[i : i+1])
			}
		}
		late = nil
		got, err = b.Ledger.Append(ctx, drafts...)
	}
	if err != nil {
		b.keepLate(late)
		fault.HintNoSpace(err, "make room on the file system of %s, for example with: coppice system gc", b.config.Home)
		return nil, fault.Wrap(err, "record an operation on sandbox %s", drafts[0].Name)
	}
	return got[len(late):], nil
}

// Record appends statements about one sandbox.
func (b *Book) Record(ctx context.Context, rec *meta.Sandbox, all ...Statement) error {
	_, err := b.Append(ctx, b.Drafts(ctx, rec, all...)...)
	return err
}

// Note is Record for events that have happened and can no longer be refused. Records that cannot be written now are
// written with the next ones.
func (b *Book) Note(ctx context.Context, rec *meta.Sandbox, all ...Statement) {
	b.noteDrafts(ctx, b.Drafts(ctx, rec, all...)...)
}

// noteDrafts is Note for drafts.
func (b *Book) noteDrafts(ctx context.Context, drafts ...ledger.Draft) {
	if _, err := b.Append(ctx, drafts...); err != nil {
		b.config.Logger.Error("could not write to the ledger yet", "sandbox",
			drafts[0].Name, "kind", drafts[0].Body.Kind(), "err", err)
		if !fault.Is(err, fault.NotFound) { // the ledger was removed
			b.keepLate(drafts)
		}
	}
}

func (b *Book) takeLate() []ledger.Draft {
	b.mu.Lock()
	defer b.mu.Unlock()
	late := b.late
	b.late = nil
	return late
}

// keepLate keeps records for a later write. If there are too many, the newest ones are only counted.
func (b *Book) keepLate(drafts []ledger.Draft) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.late = append(b.late, drafts...)
	over := len(b.late) - limit.RecordsUnsaid
	if over <= 0 {
		return
	}
	b.late = b.late[:limit.RecordsUnsaid]
	if lost, ok := b.late[limit.RecordsUnsaid-1].Body.(*format.Lost); ok {
		lost.Count += int64(over)
		return
	}
	b.late[limit.RecordsUnsaid-1] = ledger.Draft{Sandbox: format.Host, Name: string(format.Host),
		Observer: format.ByDaemon,
		Body:     &format.Lost{Count: int64(over) + 1, Reason: "the ledger could not be written"}}
}
