//go:build linux

package engine

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/timeline"
)

func TestLabels_AreKeptInheritedAndRecorded(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	dir := wire.Source{Kind: wire.SourceDir, Path: t.TempDir()}
	labelled := func(name string, want map[string]string) {
		t.Helper()
		st, err := h.Status(ctx, name)
		if err != nil || !maps.Equal(st.Sandbox.Labels, want) {
			t.Errorf("%s: %v, %v, want %v", name, st.Sandbox.Labels, err, want)
		}
	}
	box := map[string]string{"team": "web", "ci": "", "example.com/key": "ghp_0123456789abcdefghijABCDEFGHIJ012345"}
	made, err := h.Create(ctx, wire.CreateRequest{Name: "box", From: dir, Labels: box}, ignore)
	if err != nil || !maps.Equal(made.Labels, box) {
		t.Fatalf("%v, %v", made.Labels, err)
	}
	forked, err := h.Fork(ctx, "box",
		wire.ForkRequest{Names: []string{"twin"}, Labels: map[string]string{"team": "api", "n": "1"}})
	twin := map[string]string{"team": "api", "ci": "", "n": "1", "example.com/key": box["example.com/key"]}
	if err != nil || !maps.Equal(forked.Sandboxes[0].Labels, twin) {
		t.Fatalf("%v, %v", forked, err)
	}
	again, err := h.Create(ctx, wire.CreateRequest{Name: "again",
		From: wire.Source{Kind: wire.SourceSandbox, Sandbox: "twin"}, Labels: map[string]string{"n": "2"}}, ignore)
	if err != nil || again.Labels["n"] != "2" || again.Labels["team"] != "api" {
		t.Errorf("%v, %v", again.Labels, err)
	}
	labelled("box", box)

	// A request applies all its changes or none.
	for _, bad := range []wire.LifeRequest{
		{Labels: map[string]string{"Team": "x"}, RemoveLabels: []string{"ci"}},
		{Labels: map[string]string{"team": "a\x1b[2J"}},
		{RemoveLabels: []string{"../ci"}},
	} {
		if _, err := h.SetLife(ctx, "twin", bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
		labelled("twin", twin)
	}
	changed, err := h.SetLife(ctx, "twin",
		wire.LifeRequest{Labels: map[string]string{"ci": "no"}, RemoveLabels: []string{"ci", "n", "none"}})
	twin["ci"] = "no"
	delete(twin, "n")
	if err != nil || !maps.Equal(changed.Labels, twin) || changed.Expires != nil {
		t.Errorf("%+v, %v", changed, err)
	}
	// Each change is recorded with all labels afterwards; a request that changes none is not.
	if _, err := h.SetLife(ctx, "twin", wire.LifeRequest{Labels: map[string]string{"ci": "no"}}); err != nil {
		t.Error(err)
	}
	var before, changes [][]string
	for _, r := range h.told(timeline.SandboxID(forked.Sandboxes[0].ID), format.KindLabels) {
		l := r.Body.(*format.Labels)
		before, changes = append(before, l.Before), append(changes, l.Labels)
	}
	if len(changes) != 1 || len(changes[0]) != 3 || changes[0][0] != "ci=no" || changes[0][2] != "team=api" ||
		strings.Contains(changes[0][1], "ghp_") || len(before[0]) == 0 || slices.Equal(before[0], changes[0]) {
		t.Errorf("recorded: %q, before: %q", changes, before)
	}
	h.close()
	h.open()
	labelled("twin", twin)
	labelled("box", box)

	bad := wire.CreateRequest{Name: "bad", From: dir, Labels: map[string]string{"a b": ""}}
	if _, err := h.Create(ctx, bad, ignore); !fault.Is(err, fault.Invalid) {
		t.Errorf("create: %v", err)
	}
	turned := wire.ForkRequest{Labels: map[string]string{"a": "\u202e"}}
	if _, err := h.Fork(ctx, "box", turned); !fault.Is(err, fault.Invalid) {
		t.Errorf("fork: %v", err)
	}

	// The labels are in the record of the sandbox, without secrets of known formats.
	records := h.told(h.id("box"), format.KindCreate)
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	got := records[0].Body.(*format.Create).Labels
	if len(got) != 3 || got[0] != "ci=" || got[2] != "team=web" ||
		slices.Contains(got, "example.com/key="+box["example.com/key"]) {
		t.Errorf("recorded: %q", got)
	}
}
