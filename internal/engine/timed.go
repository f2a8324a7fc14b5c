//go:build linux

package engine

import (
	"context"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
)

// tellEnded tells the journal of rules that held for a time and ended while there was no
// gate to tell of it, and takes what has ended out of the record. The caller holds the
// sandbox's lock, and nothing of it runs.
func (e *Engine) tellEnded(ctx context.Context, rec *meta.Sandbox) error {
	now := e.Now()
	left := policies.Timed(rec, now)
	if !policies.Gated(rec.Tier) || len(left) == len(rec.Timed) {
		return nil
	}
	told, err := journal.Read(e.journalAt(rec.ID), journal.Query{Kinds: []string{wire.NetPolicy}})
	if err != nil {
		return fault.Wrap(err, "look at the network of sandbox %s", rec.Name)
	}
	var rules []string
	var last time.Time
	for _, t := range rec.Timed {
		if t.Until.After(now) || endTold(told, t) {
			continue
		}
		rules = append(rules, t.Rule)
		if t.Until.After(last) {
			last = t.Until
		}
	}
	next := *rec
	next.Timed = left
	if len(rules) > 0 {
		phases, err := e.Policies.Phases(ctx, &next)
		if err != nil {
			return err
		}
		ev := wire.NetEvent{
			Kind: wire.NetPolicy, Rule: strings.Join(rules, " "), Policy: phases[0].Digest,
			Reason: wire.NetRulesEnded + ", the last at " + last.UTC().Format(time.RFC3339) + ", while nothing ran",
		}
		before, err := e.Policies.Phases(ctx, rec)
		if err != nil {
			return err
		}
		if err := e.noteNet(rec.ID, ev); err != nil {
			return err
		}
		changed := &format.Policy{
			After: ev.Policy, Before: before[0].Digest,
			Reason: e.cleaners.Formats().RecordText(ev.Reason + ": " + ev.Rule),
		}
		if err := e.record(ctx, &next, byDaemon(changed)...); err != nil {
			return err
		}
	}
	if err := e.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { r.Timed = left; return nil }); err != nil {
		return err
	}
	rec.Timed = left
	return nil
}

// endTold reports whether a gate has told that t has ended.
func endTold(told []wire.NetEvent, t meta.TimedRule) bool {
	for _, ev := range told {
		if ev.Reason == wire.NetRulesEnded && !ev.Time.Before(t.Until) {
			return true
		}
	}
	return false
}
