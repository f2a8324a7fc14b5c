//go:build linux

package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestTenThousandSandboxes uses a few of very many sandboxes, before and after the home is opened again.
func TestTenThousandSandboxes(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	src := h.onDir("src")
	n := 10_000
	switch {
	case looptest.Race: // SQLite takes twenty times as long with the race detector
		n = 200
	case testing.Short():
		n = 1_000
	}
	created := n / 10
	forks, err := h.Fork(ctx, "src", wire.ForkRequest{N: n - created, At: src.Head})
	if err != nil {
		t.Fatal(err)
	}
	for i := range created {
		req := wire.CreateRequest{From: wire.Source{Kind: wire.SourceSandbox, Sandbox: "src", Ref: src.Head}}
		if i%2 == 0 {
			req.Name = fmt.Sprint("box-", i)
		}
		if _, err := h.Create(ctx, req, ignore); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Create(ctx, wire.CreateRequest{Name: "box-0"}, ignore); !fault.Is(err, fault.Exists) &&
		!fault.Is(err, fault.Unsupported) {
		t.Errorf("a name that is taken: %v", err)
	}
	for i := range forks.Sandboxes[:100] {
		h.run(forks.Sandboxes[i].Name, "write", "f", itoa(i))
	}
	look := func() {
		t.Helper()
		list, err := h.List(ctx)
		if err != nil || len(list) != n+1 {
			t.Fatalf("%d sandboxes are listed, %v", len(list), err)
		}
		if !slices.IsSortedFunc(list, func(a, b wire.Sandbox) int {
			if a.Name < b.Name {
				return -1
			}
			return 1
		}) {
			t.Error("sandboxes have the same name, or are not sorted")
		}
		name := forks.Sandboxes[7].Name
		if got := h.tree(name); got["f"] != "7" || got["base"] != "base" {
			t.Errorf("a sandbox shows %v", got)
		}
		if st, err := h.Status(ctx, name); err != nil || st.Snapshots != 2 {
			t.Errorf("status: %+v, %v", st, err)
		}
		if log, err := h.Log(ctx, name); err != nil || len(log.Nodes) != 4 {
			t.Errorf("log: %d snapshots, %v", len(log.Nodes), err)
		}
		if _, err := h.Log(ctx, "nobody"); !fault.Is(err, fault.NotFound) {
			t.Errorf("an unknown name: %v", err)
		}
		if _, err := h.Undo(ctx, name, wire.UndoRequest{N: 1}); err != nil {
			t.Error(err)
		}
		if _, err := h.Redo(ctx, name, wire.RedoRequest{}); err != nil {
			t.Error(err)
		}
		if v, err := h.Verify(ctx, "", ignore); err != nil || len(v.Damage) > 0 || v.Layers < 101 {
			t.Errorf("verify: %+v, %v", v, err)
		}
		if res, err := h.GC(ctx, wire.GCRequest{DryRun: true, Keep: wire.Keep{Last: 1}}, ignore); err != nil ||
			len(res.Removed) > 0 {
			t.Errorf("gc would remove %d snapshots, %v", len(res.Removed), err)
		}
	}
	look()
	h.close()
	h.open()
	look()
	var names []string
	for _, sb := range forks.Sandboxes[50:150] {
		names = append(names, sb.Name)
	}
	if gone, err := h.Remove(ctx, names, true); err != nil || len(gone) != 100 {
		t.Errorf("removed %d, %v", len(gone), err)
	}
	if list, err := h.List(ctx); err != nil || len(list) != n+1-100 {
		t.Errorf("%d are left, %v", len(list), err)
	}
}

// TestFreshNames gives two sandboxes different names although their short names are the same.
func TestFreshNames(t *testing.T) {
	h := newHome(t)
	a, b := timeline.SandboxID("0123aaa45678"), timeline.SandboxID("0123bbb45678")
	one, err := h.freshName(ctx, a, nil)
	if err != nil || one != "aspen-45678" {
		t.Errorf("%q, %v", one, err)
	}
	if two, err := h.freshName(ctx, b, map[string]bool{one: true}); err != nil || two != "aspen-0123bbb45678" {
		t.Errorf("taken by a sandbox that is being made: %q, %v", two, err)
	}
	h.onDir(one)
	if two, err := h.freshName(ctx, b, nil); err != nil || two != "aspen-0123bbb45678" {
		t.Errorf("taken: %q, %v", two, err)
	}
}
