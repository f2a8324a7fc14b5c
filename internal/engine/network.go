//go:build linux

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// What gate and keeper tell in a sandbox's journal becomes records. How far that has come
// is in its file "journal.told", which is written before the records are: it says how far
// they will have come, and which record was the last before. So whoever reads it after a
// crash finds in the ledger whether they are there, and none is told twice or left out.

const (
	journalTold = "journal.told"
	// netRest is how long events are collected for, of which many come at a time.
	netRest = 50 * time.Millisecond
	// netLook is how often a journal is looked at that nobody waits for.
	netLook = 2 * time.Second
)

// netTold is what the file holds.
type netTold struct {
	Done netPlace `json:"done"` // position up to which events are recorded
	Next netPlace `json:"next"` // the position if the ledger has records of the network after
	Seq  int64    `json:"seq"`  // this record
}

// netPlace is a position in a journal, and the losses before it that are not recorded yet.
type netPlace struct {
	journal.Cursor
	Owed []format.Lost `json:"owed,omitempty"`
}

// watchNet records what the journal of a box tells while it lives: at once where there is a
// gate, or are decoys. Else it has what was refused alone, of which the end of a command
// tells, and is looked at now and then, since the kernel lets few directories be watched.
func (e *Engine) watchNet(s *entry, b Box, busy bool) {
	if !busy {
		e.bg.Go(func() error {
			e.lookNet(s, b)
			return nil
		})
		return
	}
	more := make(chan struct{}, 1)
	e.bg.Go(func() error {
		err := e.followBox(e.bgCtx, s.ID, b, journal.Query{Last: -1}, func(wire.NetEvent) {
			select {
			case more <- struct{}{}:
			default:
			}
		})
		if err != nil && e.bgCtx.Err() == nil {
			e.Logger.Error("the network is recorded when the box has ended", "sandbox", s.ID, "err", err)
		}
		return nil
	})
	e.bg.Go(func() error {
		for {
			e.tellNet(e.bgCtx, s)
			select {
			case <-e.bgCtx.Done():
				return nil
			case <-b.Gone():
				e.tellAllNet(e.bgCtx, s)
				return nil
			case <-more:
			case <-e.owing(s):
			}
			select {
			case <-e.bgCtx.Done():
			case <-b.Gone():
			case <-time.After(netRest):
			}
		}
	})
}

// lookNet is watchNet of a box that hardly ever tells anything.
func (e *Engine) lookNet(s *entry, b Box) {
	tick := time.NewTicker(netLook)
	defer tick.Stop()
	var seen os.FileInfo
	look := func(tell func(context.Context, *entry)) {
		now := journal.Newest(e.journalDir(s.ID))
		if now == nil || seen != nil && os.SameFile(seen, now) && seen.Size() == now.Size() && e.owing(s) == nil {
			return
		}
		tell(e.bgCtx, s)
		seen = now
	}
	for {
		look(e.tellNet)
		select {
		case <-e.bgCtx.Done():
			return
		case <-b.Gone():
			look(e.tellAllNet)
			return
		case <-tick.C:
		}
	}
}

// owing fires when a lost record is due; nil if none is.
func (e *Engine) owing(s *entry) <-chan time.Time {
	s.telling.Lock()
	defer s.telling.Unlock()
	if s.net == nil || len(s.net.Owed) == 0 {
		return nil
	}
	return time.After(limit.LostInterval)
}

// tellAllNet is tellNet if nothing follows soon: losses are recorded now.
func (e *Engine) tellAllNet(ctx context.Context, s *entry) {
	s.telling.Lock()
	s.lost = time.Time{}
	s.telling.Unlock()
	e.tellNet(ctx, s)
}

// tellNet records what the journal of a sandbox tells and is not recorded yet.
func (e *Engine) tellNet(ctx context.Context, s *entry) {
	s.telling.Lock()
	defer s.telling.Unlock()
	for ctx.Err() == nil {
		more, err := e.tellSomeNet(ctx, s)
		if err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil { // it was removed
			e.Logger.Error("what happened in the network is not in the ledger yet", "sandbox", s.ID, "err", err)
		}
		if err != nil || !more {
			return
		}
	}
}

// tellDenials records what the journal of a sandbox tells, before the end of a command that
// counts what was denied.
func (e *Engine) tellDenials(ctx context.Context, s *entry) {
	if e.hasJournal(s.ID) {
		e.tellAllNet(ctx, s)
	}
}

func (e *Engine) tellSomeNet(ctx context.Context, s *entry) (more bool, err error) {
	rec, err := e.DB.Sandbox(ctx, string(s.ID))
	if err != nil {
		return false, err
	}
	if s.net == nil {
		if s.net, err = e.readNetTold(ctx, s.ID); err != nil {
			return false, err
		}
	}
	evs, next, missing, err := journal.From(e.journalAt(s.ID), s.net.Cursor)
	more = next != s.net.Cursor
	if err != nil || !more && len(s.net.Owed) == 0 {
		return false, err
	}
	left, err := e.budgets.Of(ctx, s.ID)
	if err != nil {
		return false, err
	}
	drafts, over := left.AdmitDrafts(e.Now(), e.netDrafts(ctx, &rec, evs))
	if missing {
		over = audit.AddLost(over, audit.LostEvidence())
	}
	after := netPlace{next, audit.AddLost(slices.Clone(s.net.Owed), over...)}
	now := e.Now()
	says := len(after.Owed) > 0 && now.Sub(s.lost).Abs() >= limit.LostInterval
	if says {
		drafts, after.Owed = append(drafts, e.lostDrafts(ctx, &rec, after.Owed)...), nil
	}
	if len(drafts) > 0 {
		last, err := e.Ledger.Last(ctx, format.Sandbox(s.ID))
		if err != nil {
			return false, err
		}
		if err := e.writeNetTold(s.ID, netTold{Done: *s.net, Next: after, Seq: last}); err != nil {
			return false, err
		}
		// All or none, so that one that is there stands for all.
		if _, err := e.Book.Append(ctx, drafts...); err != nil {
			s.net = nil // it may be there
			return false, err
		}
		e.commands.denied(s.ID, drafts)
	}
	if s.net = &after; says {
		s.lost = now
	}
	return more, nil
}

// readNetTold finds how far the journal of a sandbox is recorded.
func (e *Engine) readNetTold(ctx context.Context, id timeline.SandboxID) (*netPlace, error) {
	var t netTold
	text, err := os.ReadFile(filepath.Join(e.sandboxDir(id), journalTold))
	if errors.Is(err, fs.ErrNotExist) {
		return &t.Done, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, "read how much of the network is recorded")
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fault.New(fault.Corrupt, "%s of sandbox %s is damaged", journalTold, id).Because(err)
	}
	if _, err := e.Ledger.Last(ctx, format.Sandbox(id)); err != nil { // what was appended can be read
		return nil, err
	}
	for r, err := range e.Ledger.Read(ctx, format.Sandbox(id), ledger.Filter{From: t.Seq + 1}) {
		if err != nil {
			return nil, err
		}
		if audit.IsEvidence(r) {
			return &t.Next, nil
		}
	}
	return &t.Done, nil
}

// writeNetTold keeps how far the journal is recorded, durably.
func (e *Engine) writeNetTold(id timeline.SandboxID, t netTold) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return fault.Wrap(vfs.WriteFile(e.FS, filepath.Join(e.sandboxDir(id), journalTold), text),
		"note how much of the network is recorded")
}

// netDrafts makes records of events.
func (e *Engine) netDrafts(ctx context.Context, rec *meta.Sandbox, evs []wire.NetEvent) []ledger.Draft {
	var tell []audit.Statement
	var policies []string
	for _, t := range audit.EvidenceOf(evs, e.cleaners.For(ctx, rec).RecordText) {
		tell, policies = append(tell, audit.Statement{By: t.By, Body: t.Body}), append(policies, t.Policy)
	}
	out := e.Book.Drafts(ctx, rec, tell...)
	for i, p := range policies {
		if p != "" {
			out[i].Policy = p
		}
	}
	return out
}

// lostDrafts returns the records of losses.
func (e *Engine) lostDrafts(ctx context.Context, rec *meta.Sandbox, owed []format.Lost) []ledger.Draft {
	var tell []audit.Statement
	for i := range owed {
		tell = append(tell, audit.ByDaemon(&owed[i])...)
	}
	return e.Book.Drafts(ctx, rec, tell...)
}
