package audit

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestBudget_RefillsEvenly(t *testing.T) {
	t.Parallel()
	b := NewBudget(began)
	if !b.Take(began, ClassInside, limit.InsideChanges) || b.Take(began, ClassInside, 1) {
		t.Fatal("the budget is not full, or not empty afterwards")
	}
	one := b.Wait(began, ClassInside)
	if want := limit.EvidenceRefill / limit.InsideChanges; one != want {
		t.Fatalf("the next is available in %s, want %s", one, want)
	}
	if b.Take(began.Add(one-1), ClassInside, 1) || !b.Take(began.Add(one), ClassInside, 1) {
		t.Error("the next is not available then")
	}
	if half := began.Add(one + limit.EvidenceRefill/2); b.Take(half, ClassInside, limit.InsideChanges/2+1) ||
		!b.Take(half, ClassInside, limit.InsideChanges/2) {
		t.Error("the budget is not half full after half of the time")
	}
	// If the clock is set back, the budget is at most empty: the wait is not longer than from empty.
	if wait := b.Wait(began.Add(-time.Hour), ClassInside); wait != one {
		t.Errorf("with the clock set back, the next is available in %s", wait)
	}
}

func TestBudget_SeparatesClasses(t *testing.T) {
	t.Parallel()
	b := NewBudget(began)
	flood := &format.Program{Path: strings.Repeat("x", limit.RecordText)}
	n := 0
	for b.Admit(began, format.ByKernel, flood) {
		n++
	}
	if most := limit.EvidencePrograms / limit.RecordText; n == 0 || n > most {
		t.Errorf("%d records of %d bytes are within %d", n, limit.RecordText, limit.EvidencePrograms)
	}
	for _, one := range []struct {
		by   format.Observer
		body format.Body
	}{
		{format.ByKeeper, &format.Denial{Path: "/k", Reason: DecoyPrefix + "it was opened"}},
		{format.ByKernel, &format.Denial{Syscall: "bpf"}},
		{format.ByKernel, &format.Denial{Syscall: "open", Op: wire.FileRead}},
		{format.ByGate, &format.Network{Verdict: wire.VerdictDeny}},
		{format.ByGate, &format.Network{Verdict: wire.VerdictAllow}},
		{format.ByDaemon, &format.Exec{Args: []string{"of the owner"}}},
	} {
		if !b.Admit(began, one.by, one.body) {
			t.Errorf("a flood of programs hides %+v", one.body)
		}
	}
}

func TestCharge(t *testing.T) {
	t.Parallel()
	const owners = classes
	for _, c := range []struct {
		by   format.Observer
		body format.Body
		want Class
	}{
		{format.ByKeeper, &format.Denial{Reason: DecoyPrefix + "x"}, ClassDecoys},
		{format.ByGate, &format.Network{Verdict: wire.VerdictDeny, Reason: DecoyPrefix + "x"}, ClassDecoys},
		{format.ByKernel, &format.Denial{Syscall: "bpf", Reason: "answered with EPERM"}, ClassRefusals},
		{format.ByKernel, &format.Denial{Syscall: "open", Op: wire.FileRead, Path: "/etc/shadow"}, ClassFiles},
		{format.ByKeeper, &format.Lost{Of: string(format.KindDenial), Count: 9}, ClassRefusals},
		{format.ByKeeper, &format.Lost{Of: string(format.KindDenial), Count: 9, Reason: wire.RefusedFiles}, ClassFiles},
		{format.ByGate, &format.Lost{Of: string(format.KindNetwork), Count: 9, Reason: wire.NetDropped}, ClassDenials},
		{format.ByGate, &format.Network{Verdict: wire.VerdictDeny, Reason: "no rule"}, ClassDenials},
		{format.ByGate, &format.Network{Verdict: wire.VerdictAsk}, ClassDenials},
		{format.ByGate, &format.Network{Verdict: wire.VerdictAllow}, ClassNetwork},
		{format.BySandbox, &format.Program{Path: "/x"}, ClassPrograms},
		{format.BySandbox, &format.Snapshot{Cause: "mark"}, ClassInside},
		{format.ByDaemon, &format.Snapshot{Cause: "auto"}, ClassCaptures},
		{format.ByDaemon, &format.Snapshot{Cause: "mark"}, owners},
		{format.ByDaemon, &format.Lost{Of: string(format.KindNetwork)}, owners},
		{format.ByKeeper, &format.Exit{Exec: "x"}, owners},
		{format.ByGate, &format.Policy{After: "x"}, owners},
	} {
		got, n, ok := charge(c.by, c.body)
		if !ok {
			got = owners
		}
		if got != c.want || ok && n < 1 {
			t.Errorf("%s %+v is of class %d, %d", c.by, c.body, got, n)
		}
	}
}

// TestNewBudget_GrantsNoMoreThanRemained checks that a budget that is rebuilt from recent spending grants no more
// than the budget that saw all spending, whatever was spent, and when.
func TestNewBudget_GrantsNoMoreThanRemained(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type spending struct {
			at time.Time
			n  int64
		}
		known, now := NewBudget(began), began
		var all []spending
		for range rapid.IntRange(0, 50).Draw(t, "times") {
			now = now.Add(time.Duration(rapid.IntRange(0, 7200).Draw(t, "seconds")) * time.Second)
			n := rapid.Int64Range(1, limit.InsideChanges).Draw(t, "n")
			if known.Take(now, ClassInside, n) {
				all = append(all, spending{now, n})
			}
		}
		again := NewBudget(now)
		for _, s := range all {
			if !s.at.Before(now.Add(-limit.EvidenceRefill)) {
				again.Spent(s.at, ClassInside, s.n)
			}
		}
		if n := rapid.Int64Range(1, limit.InsideChanges).
			Draw(t, "next"); again.Take(now, ClassInside, n) && !known.Take(now, ClassInside, n) {
			t.Fatalf("the rebuilt budget grants %d, which is more than was left", n)
		}
	})
}
