//go:build linux

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// What gate and keeper tell in a sandbox's journal becomes records. How far that has come
// is in its file "journal.told", which is written before the records are: it says how far
// they will have come, and which record was the last before. So whoever reads it after a
// crash finds in the ledger whether they are there, and none is told twice or left out.

const (
	journalTold = "journal.told"
	// netRest is how long events are collected for, of which many come at a time.
	netRest = 50 * time.Millisecond
	// aDecoy is how the reason of a record of a decoy begins.
	aDecoy = "a decoy: "
)

// netTold is what the file holds.
type netTold struct {
	Done journal.Cursor `json:"done"` // up to where records are
	Next journal.Cursor `json:"next"` // up to where they are if there are any of the network after
	Seq  int64          `json:"seq"`  // this one
}

// watchNet records what the journal of a box tells while it lives.
func (e *Engine) watchNet(s *sandbox, b Box) {
	more := make(chan struct{}, 1)
	e.bg.Go(func() error {
		err := e.followBox(e.bgCtx, s.id, b, journal.Query{Last: -1}, func(wire.NetEvent) {
			select {
			case more <- struct{}{}:
			default:
			}
		})
		if err != nil && e.bgCtx.Err() == nil {
			e.Logger.Error("the network is recorded when the box has ended", "sandbox", s.id, "err", err)
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
				e.tellNet(e.bgCtx, s)
				return nil
			case <-more:
			}
			select {
			case <-e.bgCtx.Done():
			case <-b.Gone():
			case <-time.After(netRest):
			}
		}
	})
}

// tellNet records what the journal of a sandbox tells and is not recorded yet.
func (e *Engine) tellNet(ctx context.Context, s *sandbox) {
	s.telling.Lock()
	defer s.telling.Unlock()
	for ctx.Err() == nil {
		more, err := e.tellSomeNet(ctx, s)
		if err != nil && !fault.Is(err, fault.NotFound) && ctx.Err() == nil { // it was removed
			e.Logger.Error("what happened in the network is not in the ledger yet", "sandbox", s.id, "err", err)
		}
		if err != nil || !more {
			return
		}
	}
}

// tellDenials records what the journal of a sandbox tells, before the end of a command that
// counts what was denied.
func (e *Engine) tellDenials(ctx context.Context, s *sandbox) {
	if e.hasJournal(s.id) {
		e.tellNet(ctx, s)
	}
}

func (e *Engine) tellSomeNet(ctx context.Context, s *sandbox) (more bool, err error) {
	rec, err := e.DB.Sandbox(ctx, string(s.id))
	if err != nil {
		return false, err
	}
	if s.net == nil {
		if s.net, err = e.readNetTold(ctx, s.id); err != nil {
			return false, err
		}
	}
	evs, next, lost, err := journal.From(e.journalAt(s.id), *s.net)
	if err != nil || next == *s.net {
		return false, err
	}
	drafts := e.netDrafts(ctx, &rec, evs)
	if lost {
		drafts = append(e.drafts(ctx, &rec, byDaemon(&format.Lost{Of: string(format.KindNetwork),
			Reason: "the journal was full before it was read; how many there were is not known"})...), drafts...)
	}
	if len(drafts) > 0 {
		last, err := e.Ledger.Last(ctx, format.Sandbox(s.id))
		if err != nil {
			return false, err
		}
		if err := e.writeNetTold(s.id, netTold{Done: *s.net, Next: next, Seq: last}); err != nil {
			return false, err
		}
		// All or none, so that one that is there stands for all.
		if _, err := e.write(ctx, drafts); err != nil {
			s.net = nil // it may be there
			return false, err
		}
		e.denied(s.id, drafts)
	}
	s.net = &next
	return true, nil
}

// readNetTold finds how far the journal of a sandbox is recorded.
func (e *Engine) readNetTold(ctx context.Context, id timeline.SandboxID) (*journal.Cursor, error) {
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
	for r, err := range e.Ledger.Read(format.Sandbox(id), ledger.Filter{From: t.Seq + 1}) {
		if err != nil {
			return nil, err
		}
		if fromJournal(r) {
			return &t.Next, nil
		}
	}
	return &t.Done, nil
}

// fromJournal reports whether a record is one that tellNet makes.
func fromJournal(r *format.Record) bool {
	switch b := r.Body.(type) {
	case *format.Network:
		return true
	case *format.Lost:
		return b.Of == string(format.KindNetwork)
	case *format.Denial:
		return strings.HasPrefix(b.Reason, aDecoy)
	case *format.Policy:
		return r.Observer == format.ByGate
	}
	return false
}

// writeNetTold keeps how far the journal is recorded, durably.
func (e *Engine) writeNetTold(id timeline.SandboxID, t netTold) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return fault.Wrap(writeDurably(filepath.Join(e.sandboxDir(id), journalTold), text), "note how much of the network is recorded")
}

// netDrafts makes records of events; those that are alike become one.
func (e *Engine) netDrafts(ctx context.Context, rec *meta.Sandbox, evs []wire.NetEvent) (out []ledger.Draft) {
	seen := map[wire.NetEvent]int{} // where in out
	c := e.redactor(ctx, rec)
	for _, ev := range evs {
		alike := ev
		alike.Time, alike.Count, alike.In, alike.Out, alike.Until, alike.Hint = time.Time{}, 0, 0, 0, time.Time{}, ""
		n := int64(max(1, ev.Count))
		if i, ok := seen[alike]; ok {
			switch b := out[i].Body.(type) {
			case *format.Network:
				b.Count, b.BytesIn, b.BytesOut = b.Count+n, b.BytesIn+ev.In, b.BytesOut+ev.Out
			case *format.Denial:
				b.Count += n
			}
			continue
		}
		t := netRecord(c, ev, n)
		if t.body == nil {
			continue
		}
		d := e.drafts(ctx, rec, t)[0]
		if ev.Policy != "" {
			d.Policy = ev.Policy
		}
		seen[alike] = len(out)
		out = append(out, d)
	}
	return out
}

// netRecord tells of an event; of what the daemon itself told the journal nothing.
func netRecord(c cleaner, ev wire.NetEvent, n int64) testimony {
	b := &format.Network{Addr: c.clean(ev.Addr), BytesIn: ev.In, BytesOut: ev.Out, Count: n, Host: c.clean(ev.Name), Method: c.clean(ev.Method), Path: c.clean(ev.Path),
		Port: ev.Port, Proto: c.clean(ev.Proto), Reason: c.clean(ev.Reason), Rule: c.clean(ev.Rule), Verdict: wire.VerdictAllow}
	switch ev.Kind {
	case wire.NetDeny:
		b.Verdict = wire.VerdictDeny
	case wire.NetDNS:
		b.Proto = "dns"
	case wire.NetEnd:
		b.Reason = words("it ended", b.Reason)
	case wire.NetHTTP:
		b.Proto = "http"
	case wire.NetAnswer:
		b.Proto, b.Reason = "http", words(fmt.Sprintf("answered with %d", ev.Status), b.Reason)
	case wire.NetAsk:
		b.Verdict, b.Reason = c.clean(ev.Verdict), words("a person is asked", b.Reason)
	case wire.NetPolicy:
		if ev.Reason != wire.NetRulesEnded {
			return testimony{}
		}
		return testimony{format.ByGate, &format.Policy{After: ev.Policy, Reason: c.clean(words(ev.Reason, ev.Rule))}}
	case wire.NetDecoy:
		reason := c.clean(aDecoy + touch(ev))
		if ev.Place() == "" {
			return testimony{format.ByKeeper, &format.Denial{Path: c.clean(ev.Decoy), Reason: reason, Count: n}}
		}
		b.Verdict, b.Reason = wire.VerdictDeny, reason
	}
	return testimony{format.ByGate, b}
}
