//go:build linux

package engine

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestRecovery_AfterLedgerRemoval checks that a home can be opened after a sandbox was removed while the disk was
// full and its records were removed later.
func TestRecovery_AfterLedgerRemoval(t *testing.T) {
	h, disk := newHomeWithFaultyLedger(t)
	h.onDir("a")
	gone := h.id("a")
	disk.FailAt(1, syscall.ENOSPC, true)
	if err := h.RemoveWithLedger(ctx, "a", true); !fault.Is(err, fault.NoSpace) {
		t.Fatal(err)
	}
	disk.FailAt(0, 0, false)
	if err := h.RemoveWithLedger(ctx, string(gone), true); err != nil { // as coppice rm --ledger ID does
		t.Fatal(err)
	}
	h.close()
	h.open()
}

// TestRemove_RecordsPendingLosses checks that activity beyond the budget is counted in the
// audit log also if the sandbox is removed within a minute.
func TestRemove_RecordsPendingLosses(t *testing.T) {
	now := time.Now()
	h := newHomeAt(t, &now)
	h.onDir("a")
	id := h.id("a")
	flood := func(n int) {
		h.unread(id, func() {
			h.spends("a", audit.ClassNetwork, limit.EvidenceNetwork)
			for i := range n {
				h.gateTells(id, allowed(i))
			}
		})
		h.journals.CatchUp(ctx, id)
	}
	flood(3) // recorded as lost immediately
	flood(4) // counted, to be recorded later
	if _, err := h.Remove(ctx, []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	if count, _ := h.lost(id, format.KindNetwork); count != 7 {
		t.Errorf("%d of 7 are recorded as lost: %s", count, h.kinds(id))
	}
}

// TestRemove_RecordsLossesOfFullDisk checks that records that could not be written on a full disk are counted when
// the sandbox is removed.
func TestRemove_RecordsLossesOfFullDisk(t *testing.T) {
	h, disk := newHomeWithFaultyLedger(t)
	h.onDir("a")
	id := h.id("a")
	h.gateTells(id, allowed(1))
	h.journals.CatchUp(ctx, id)
	disk.FailAt(1, syscall.ENOSPC, true)
	h.gateTells(id, wire.NetEvent{Kind: wire.NetDeny, Name: "two.example", Port: 443, Count: 3})
	h.gateTells(id, wire.NetEvent{Kind: wire.NetRefused, Syscall: "mount", Reason: "EPERM", Count: 2})
	if _, err := h.Remove(ctx, []string{"a"}, true); !fault.Is(err, fault.NoSpace) {
		t.Fatal(err)
	}
	disk.FailAt(0, 0, false)
	for range 2 { // the second time must add no record
		h.close()
		h.open()
		network, _ := h.lost(id, format.KindNetwork)
		denials, _ := h.lost(id, format.KindDenial)
		if kinds := h.kinds(id); network != 3 || denials != 2 || !strings.HasSuffix(kinds, "lost lost delete") {
			t.Errorf("%d of 3 gate events and %d of 2 refused calls are recorded as lost: %s", network, denials, kinds)
		}
	}
}

// TestRemove_BlocksNoOtherSandbox removes a sandbox while the layers are read for long, as by a rewind in place of many
// files. Others go on.
func TestRemove_BlocksNoOtherSandbox(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	h.shape.RLock()
	removed := make(chan error, 1)
	go func() { _, err := h.Remove(t.Context(), []string{"a"}, true); removed <- err }()
	for i := range 50 { // a writer that queued would block one of them
		h.run("b", "write", "f", strconv.Itoa(i))
	}
	select {
	case err := <-removed:
		t.Fatalf("removed while the layers were read: %v", err)
	default:
	}
	h.shape.RUnlock()
	if err := <-removed; err != nil {
		t.Error(err)
	}
}

// TestGC_SkipsBusyOrHungSandbox checks that gc frees the remains of other sandboxes although the monitor of one does
// not answer, or one is busy.
func TestGC_SkipsBusyOrHungSandbox(t *testing.T) {
	for name, hang := range map[string]func(h *home) (end func()){
		"hung": func(h *home) func() {
			h.close()
			h.boxes.unheard = context.DeadlineExceeded
			h.open()
			return func() { h.boxes.unheard = nil }
		},
		"fork": func(h *home) func() {
			err := h.DB.UpdateSandbox(ctx, h.id("a"), func(r *meta.Sandbox) error { r.Tournament = "x-t0000"; return nil })
			if err != nil {
				h.t.Fatal(err)
			}
			h.close()
			h.boxes.unheard = context.DeadlineExceeded
			h.open()
			return func() { h.boxes.unheard = nil }
		},
		"busy": func(h *home) func() {
			h.Patience = 50 * time.Millisecond
			s, err := h.lock(ctx, h.entry(h.id("a")), "capturing for very long")
			if err != nil {
				h.t.Fatal(err)
			}
			return func() { s.unlock(h.Engine) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.onDir("a")
			h.onDir("b")
			h.run("a", "write", "f", "1")
			if _, err := h.Remove(ctx, []string{"b"}, true); err != nil {
				t.Fatal(err)
			}
			end := hang(h)
			defer end()
			h.mounts.set(h.id("a"), []timeline.LayerID{"0123456789abcdef"}) // as present does for a root with layers
			if _, err := h.GC(ctx, wire.GCRequest{}, func(wire.Progress) {}); err != nil {
				t.Errorf("gc: %v", err)
			}
		})
	}
}
