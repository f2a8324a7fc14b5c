//go:build linux

package engine

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

func ignore(wire.Progress) {}

// aged gives a sandbox one snapshot every ten minutes, the last one at a fixed time.
func (h *home) aged(name string, n int) (ids []string) {
	h.t.Helper()
	end := time.Date(2026, 5, 20, 12, 5, 0, 0, time.UTC)
	for i := range n {
		at := end.Add(-time.Duration(n-1-i) * 10 * time.Minute)
		h.clock = func() time.Time { return at }
		ids = append(ids, h.run(name, "write", "f"+itoa(i%5), itoa(i)).Head)
	}
	return ids
}

func TestRetention(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	first := h.onDir("a").Head
	ids := h.aged("a", 40)
	h.onDir("b")
	others := h.aged("b", 3)
	if _, err := h.SetTag(ctx, "a", "good", ids[3]); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"fork"}, At: ids[5]}); err != nil {
		t.Fatal(err)
	}
	// A snapshot that a fork has tagged is kept too, although it belongs to the parent.
	if _, err := h.SetTag(ctx, "fork", "mine", ids[1]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := h.Undo(ctx, "a", wire.UndoRequest{N: 1}); err != nil {
			t.Fatal(err)
		}
	}
	// HEAD is 37, and the live root starts from it; 38 and 39 can be redone.
	req := wire.GCRequest{DryRun: true, Sandboxes: []string{"a"}, Keep: wire.Keep{Last: 4, Hourly: 3}}
	plan, err := h.GC(ctx, req, ignore)
	if err != nil {
		t.Fatal(err)
	}
	if log, err := h.Log(ctx, "a"); err != nil || len(log.Nodes) != 42 {
		t.Fatalf("a dry run left %d snapshots, %v", len(log.Nodes), err)
	}
	req.DryRun = false
	res, err := h.GC(ctx, req, ignore)
	if err != nil {
		t.Fatal(err)
	}
	dropped := func(r wire.GCResult) (out []string) {
		for _, n := range r.Dropped {
			out = append(out, n.ID)
		}
		slices.Sort(out)
		return out
	}
	if !slices.Equal(dropped(plan), dropped(res)) {
		t.Errorf("dropped %v, and the dry run %v", dropped(res), dropped(plan))
	}
	log, err := h.Log(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	var left []int
	for _, n := range log.Nodes {
		if i := slices.Index(ids, n.ID); i >= 0 {
			left = append(left, i)
		}
	}
	slices.Sort(left)
	// 11:55 is number 38, 10:55 is 32, 9:55 is 26: the newest snapshots of their hours.
	if want := []int{1, 3, 5, 26, 32, 36, 37, 38, 39}; !slices.Equal(left, want) {
		t.Errorf("left: %v; want %v", left, want)
	}
	if !slices.ContainsFunc(log.Nodes, func(n wire.Snapshot) bool { return n.ID == first }) {
		t.Error("the first snapshot is gone")
	}
	if log, err := h.Log(ctx, "b"); err != nil || len(log.Nodes) != 2+len(others) {
		t.Errorf("a sandbox that was not named has %d snapshots, %v", len(log.Nodes), err)
	}

	// Snapshots that are left show the same files as before.
	for _, i := range left {
		if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: ids[i]}); err != nil {
			t.Fatal(err)
		}
		got := h.tree("a")
		for f := range 5 {
			newest := i - (i-f+5)%5 // the newest up to i that wrote the file
			want := ""
			if newest >= 0 {
				want = itoa(newest)
			}
			if got["f"+itoa(f)] != want {
				t.Errorf("snapshot %d shows %q in f%d, want %q", i, got["f"+itoa(f)], f, want)
			}
		}
	}
	if got := h.tree("fork"); got["f0"] != "5" || got["f4"] != "4" {
		t.Errorf("the fork shows %v", got)
	}
	if v, err := h.Verify(ctx, "", ignore); err != nil || len(v.Damage) > 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	if again, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil || len(again.Removed) > 0 || again.Layers > 0 {
		t.Errorf("garbage is left: %+v, %v", again, err)
	}
}

func TestGC_RefusesInvalidRetention(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.aged("a", 3)
	for name, req := range map[string]wire.GCRequest{
		"no rule for a name": {Sandboxes: []string{"a"}},
		"negative":           {Keep: wire.Keep{Last: -1}},
		"too many":           {Keep: wire.Keep{Weekly: 1 << 40}},
	} {
		if _, err := h.GC(ctx, req, ignore); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.GC(ctx, wire.GCRequest{Sandboxes: []string{"nobody"}, Keep: wire.Keep{Last: 1}},
		ignore); !fault.Is(err, fault.NotFound) {
		t.Errorf("an unknown sandbox: %v", err)
	}
	if res, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil || len(res.Removed) > 0 {
		t.Errorf("without a rule: %+v, %v", res, err)
	}
}

// TestGC_KeepsLayersDuringCaptures records layers while gc runs, and checks that no layer with a record is removed.
func TestGC_KeepsLayersDuringCaptures(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	const boxes = 4
	for i := range boxes {
		h.onDir("a" + itoa(i))
	}
	done := make(chan struct{})
	var collector, writers sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := h.GC(ctx, wire.GCRequest{}, ignore); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range boxes {
		writers.Go(func() {
			for n := range 60 {
				h.run("a"+itoa(i), "write", "f", itoa(n))
			}
		})
	}
	writers.Wait()
	close(done)
	collector.Wait()
	recorded, err := h.DB.Layers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range recorded {
		if !h.Layers.Has(l.ID) {
			t.Errorf("layer %s has a record and was removed", l.ID)
		}
	}
}
