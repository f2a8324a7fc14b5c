//go:build linux && (amd64 || arm64)

package escape_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/boxtest/escape"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// evidence is an audit log of the events in the journal of a box, written by the functions of the engine.
type evidence struct {
	journal string
	at      journal.Cursor
	ledger  *ledger.Ledger
}

// attacked is the sandbox of the records.
const attacked = format.Sandbox("e5ca9ee5ca9e")

func newEvidence(t *testing.T, journal string) *evidence {
	t.Helper()
	l, _, err := ledger.Open(t.TempDir(), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &evidence{journal: journal, ledger: l}
}

// append records the events since its previous call.
func (e *evidence) append(ctx context.Context, t *testing.T) {
	t.Helper()
	evs, next, lost, err := journal.From(journal.Place{Dir: e.journal}, e.at)
	if err != nil || lost {
		t.Fatalf("the journal lost events: %v, %v", lost, err)
	}
	e.at = next
	var drafts []ledger.Draft
	for _, s := range audit.EvidenceOf(evs, func(s string) string { return strings.ToValidUTF8(s, "\ufffd") }) {
		drafts = append(drafts,
			ledger.Draft{Sandbox: attacked, Name: "escape", Observer: s.By, Policy: s.Policy, Body: s.Body})
	}
	if len(drafts) == 0 {
		return
	}
	if _, err := e.ledger.Append(ctx, drafts...); err != nil {
		t.Fatal(err)
	}
}

// has waits until the audit log has a record. It does not wait for the refusals of a command, which are reported before
// the command exits.
func (e *evidence) has(t *testing.T, want escape.Record) {
	t.Helper()
	patience := 20 * time.Second
	if want.Exec != "" {
		patience = 0
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := context.WithoutCancel(ctx) // events that were reported by then are read completely
	found := errors.New("found")
	err := journal.Follow(ctx, journal.Place{Dir: e.journal}, journal.Query{Last: -1}, func(wire.NetEvent) error {
		e.append(all, t)
		for r, err := range e.ledger.Read(all, attacked, ledger.Filter{Kinds: []format.Kind{format.Kind(want.Kind)}}) {
			if err != nil {
				return err
			}
			if fits(r, want) {
				return found
			}
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Errorf("record %+v not found: %v", want, err)
	}
}

// fits reports whether a record is the expected one.
func fits(r *format.Record, want escape.Record) bool {
	switch b := r.Body.(type) {
	case *format.Denial:
		if want.Path != "" {
			many := b.Path == "" && strings.Contains(b.Reason, wire.DecoyMany)
			return r.Observer == format.ByKeeper && (b.Path == want.Path || many)
		}
		return r.Observer == format.ByKernel && b.Exec == want.Exec && b.Syscall == want.Syscall && b.Count > 0 &&
			b.Reason != "" && (b.Syscall == "" || b.Program == attacker)
	case *format.Network:
		if want.Reason != "" {
			return r.Observer == format.ByGate && b.Verdict == want.Verdict && b.Reason == want.Reason
		}
		place := b.Host
		if a, err := netip.ParseAddr(b.Addr); err == nil && b.Host == "" {
			place = netip.AddrPortFrom(a, uint16(b.Port)).String()
		}
		return r.Observer == format.ByGate &&
			(b.Verdict == want.Verdict || want.Verdict == "" && b.Verdict != wire.VerdictAllow) && b.Reason != "" &&
			strings.EqualFold(place, normal(want.Place))
	}
	return false
}
