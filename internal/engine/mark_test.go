//go:build linux

package engine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// behind changes a file of the live root without a command, as a running process may.
func (h *home) behind(name, file, text string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.rootOf(name), file), []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// auto takes an automatic snapshot.
func (h *home) auto(name string) taken {
	h.t.Helper()
	s, rec, err := h.acquire(ctx, name, "testing")
	if err != nil {
		h.t.Fatal(err)
	}
	defer s.unlock(h.Engine)
	t, err := h.capture(ctx, s, &rec, note{cause: timeline.CauseAuto})
	if err != nil {
		h.t.Fatal(err)
	}
	return t
}

// story returns cause and message of the snapshots of a sandbox, oldest first.
func (h *home) story(name string) (out []string) {
	h.t.Helper()
	log, err := h.Log(ctx, name)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, n := range log.Nodes {
		out = append(out, n.Cause+": "+n.Message)
	}
	slices.Reverse(out)
	return out
}

func TestMark_LabelsSnapshots(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	mark := func(phase, label string) wire.CommitResult {
		t.Helper()
		res, err := h.Mark(ctx, "a", wire.MarkRequest{Phase: phase, Label: label})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	before := len(h.story("a"))
	h.behind("a", "f", "1")
	mark(wire.MarkBegin, "Bash: make")
	h.behind("a", "f", "2")
	h.auto("a")
	h.run("a", "write", "g", "1")
	h.behind("a", "f", "3")
	if res := mark(wire.MarkEnd, ""); !res.Changed || res.Head != res.Node {
		t.Errorf("%+v", res)
	}
	h.behind("a", "f", "4")
	h.auto("a")
	h.behind("a", "f", "5")
	mark("", "a point")
	if res := mark("", "nothing new"); res.Changed {
		t.Errorf("%+v", res)
	}
	// A begin without an end survives a restart of the engine.
	mark(wire.MarkBegin, "one")
	h.behind("a", "f", "6")
	h.close()
	h.open()
	h.behind("a", "f", "7")
	mark(wire.MarkBegin, "two")
	h.behind("a", "f", "8")
	mark("", "within")
	h.behind("a", "f", "9")
	h.auto("a")
	h.behind("a", "f", "10")
	mark(wire.MarkEnd, " the given label ")
	h.behind("a", "f", "11")
	h.auto("a")
	want := []string{
		"auto: /f", "auto: Bash: make", "exec: write g 1", "mark: Bash: make", "auto: /f", "mark: a point",
		"auto: one", "mark: within", "auto: two", "mark: the given label", "auto: /f",
	}
	if got := h.story("a")[before:]; !slices.Equal(got, want) {
		t.Errorf("the log is\n%q\nwant\n%q", got, want)
	}
	got := collect(t, h.Bus, "", 0, wire.EventMark)
	if ev := got[len(got)-1]; ev.Message != "two" || ev.Detail != wire.MarkBegin || ev.Snapshot == "" {
		t.Errorf("%+v", ev)
	}
}

func TestMark_IsNotInheritedByFork(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "true")
	if _, err := h.Mark(ctx, "a", wire.MarkRequest{Phase: wire.MarkBegin, Label: "mine"}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	h.run("b", "true")
	h.behind("b", "f", "1")
	h.auto("b")
	if got := h.story("b"); got[len(got)-1] != "auto: /f" {
		t.Errorf("messages of the fork: %q", got)
	}
}

func TestMark_RefusesInvalid(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	for _, tc := range []struct {
		req  wire.MarkRequest
		kind fault.Kind
	}{
		{wire.MarkRequest{}, fault.Invalid},
		{wire.MarkRequest{Label: " \n"}, fault.Invalid},
		{wire.MarkRequest{Phase: wire.MarkBegin}, fault.Invalid},
		{wire.MarkRequest{Phase: "middle", Label: "l"}, fault.Invalid},
		{wire.MarkRequest{Phase: wire.MarkEnd}, fault.Conflict},
	} {
		if _, err := h.Mark(ctx, "a", tc.req); !fault.Is(err, tc.kind) || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v", tc.req, err)
		}
	}
	h.run("a", "true")
	h.behind("a", "f", "1")
	_, err := h.Mark(ctx, "a", wire.MarkRequest{Label: strings.Repeat("x", 1<<20) + "\x1b"})
	rec, rerr := h.DB.Sandbox(ctx, "a")
	if err := errors.Join(err, rerr); err != nil {
		t.Fatal(err)
	}
	if show, err := h.Show(ctx, "a", string(rec.Head)); err != nil || len(show.Message) > events.MaxText {
		t.Errorf("a message of %d bytes, %v", len(show.Message), err)
	}
}
