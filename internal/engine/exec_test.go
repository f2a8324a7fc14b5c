//go:build linux

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/ledger/format"
)

// TestCapture_FreezesOnlyWhenNeeded checks that processes are frozen for a capture unless it is known that there are
// none.
func TestCapture_FreezesOnlyWhenNeeded(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	var b *fakeBox
	for _, b = range h.boxes.boxes {
	}
	n := 0
	step := func(want int, what string) {
		t.Helper()
		n++
		before := b.freezes
		if x := h.run("a", "write", "f", itoa(n)); !x.Changed {
			t.Fatalf("%s: nothing was captured", what)
		}
		if got := b.freezes - before; got != want {
			t.Errorf("%s: %d freezes, want %d", what, got, want)
		}
	}
	step(1, "something may run")
	b.alone = true
	step(0, "nothing runs")
	b.alone, b.suspects = false, layer.Suspects{Paths: []string{"/f"}}
	step(1, "a file is mapped")
	b.alone, b.suspects = true, layer.Suspects{}
	step(1, "a file was mapped at the last freeze")
	step(0, "no file was mapped at the last freeze")

	// Another command starts before the capture of this one.
	lost, err := h.StartExec(ctx, "a", wire.ExecRequest{Cmd: []string{"write", "f", "last"}})
	if err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	before := b.freezes
	b.end(lost.ID)
	if x, err := h.attached(ctx, lost.ID); err != nil || x.Changed {
		t.Errorf("%+v, %v", x, err)
	}
	if b.freezes != before+1 {
		t.Error("a command that may run was not frozen")
	}
}

// TestExec_DurationExcludesStart checks that the duration of a command is its run time,
// however long its sandbox took to start.
func TestExec_DurationExcludesStart(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.boxes.begun = func(context.Context) error { time.Sleep(3 * time.Second); return nil }
	h.run("a", "true")
	if d := time.Duration(last[*format.Exit](h, h.id("a")).DurationNanos); d >= 3*time.Second {
		t.Errorf("true took %s", d)
	}
}
