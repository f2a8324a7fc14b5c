//go:build linux

package engine

import (
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestGC_KeepsRedoTargetsOfFork covers a snapshot that belongs to the parent and is only in the redo list of the
// fork.
func TestGC_KeepsRedoTargetsOfFork(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	begin := h.head("a").ID
	var made []string
	for _, name := range []string{"one", "two", "three"} {
		h.run("a", "write", name, name)
		made = append(made, h.head("a").ID)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	if m, err := h.Undo(ctx, "b", wire.UndoRequest{N: 2}); err != nil || m.Head != made[1] {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err := h.Undo(ctx, "b", wire.UndoRequest{N: 2}); err != nil || m.Head != begin {
		t.Fatalf("%+v, %v", m, err)
	}
	res, err := h.GC(ctx, wire.GCRequest{Keep: wire.Keep{Last: 1}}, func(wire.Progress) {})
	if err != nil || len(res.Removed) != 1 || res.Removed[0] != made[0] {
		t.Errorf("dropped %v, %v; want %s alone", res.Removed, err, made[0])
	}
	if m, err := h.Redo(ctx, "b", wire.RedoRequest{}); err != nil || m.Head != made[1] {
		t.Errorf("%+v, %v; want %s", m, err, made[1])
	}
}
