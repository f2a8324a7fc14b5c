//go:build linux

package egress

import (
	"context"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// RecordExpired records in the journal and the ledger that temporary rules have expired while no gate ran to record it,
// and removes them from the record of the sandbox. The caller holds the sandbox's lock; the sandbox has no box.
func (c *Control) RecordExpired(ctx context.Context, _ *sandbox.Held, rec *meta.Sandbox) error {
	now := c.config.Now()
	left := policies.Timed(rec, now)
	if !policies.Gated(rec) || len(left) == len(rec.Timed) {
		return nil
	}
	told, err := journal.Read(c.config.Sandboxes.Journal(rec.ID), journal.Query{Kinds: []string{wire.NetPolicy}})
	if err != nil {
		return fault.Wrap(err, "read the network events of sandbox %s", rec.Name)
	}
	var rules []string
	var last time.Time
	for _, t := range rec.Timed {
		if t.Until.After(now) || expiryRecorded(told, t) {
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
		phases, err := c.config.Policies.Phases(ctx, &next)
		if err != nil {
			return err
		}
		ev := wire.NetEvent{
			Kind: wire.NetPolicy, Rule: strings.Join(rules, " "), Policy: phases[0].Digest,
			Reason: wire.NetRulesEnded + ", the last at " + last.UTC().Format(time.RFC3339) + ", while no process was running",
		}
		before, err := c.config.Policies.Phases(ctx, rec)
		if err != nil {
			return err
		}
		if err := c.NoteEvent(rec.ID, ev); err != nil {
			return err
		}
		changed := &format.Policy{
			After: ev.Policy, Before: before[0].Digest,
			Reason: c.config.Cleaners.Formats().RecordText(ev.Reason + ": " + ev.Rule),
		}
		if err := c.config.Recorder.Record(ctx, &next, audit.ByDaemon(changed)...); err != nil {
			return err
		}
	}
	forget := func(r *meta.Sandbox) error { r.Timed = left; return nil }
	if err := c.config.Records.UpdateSandbox(ctx, rec.ID, forget); err != nil {
		return err
	}
	rec.Timed = left
	return nil
}

// expiryRecorded reports whether a gate has recorded that t has expired.
func expiryRecorded(told []wire.NetEvent, t meta.TimedRule) bool {
	for _, ev := range told {
		if ev.Reason == wire.NetRulesEnded && !ev.Time.Before(t.Until) {
			return true
		}
	}
	return false
}
