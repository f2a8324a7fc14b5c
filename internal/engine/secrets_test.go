//go:build linux

package engine

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestLabelsHaveNoSecrets: those that are made of what was done, also where they are cut,
// and where the secret is a command's own and long over; what a person said has its own
// words, but no tokens.
func TestLabelsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	rec := &meta.Sandbox{ID: "0123456789ab", Name: "a"}
	rec.Env = []string{"API_TOKEN=correct'horse"}
	rec.Learnt = []string{"SESSION_KEY=battery-staple"}
	for name, label := range map[string]string{
		"a command":      h.labelOf(ctx, rec, wire.ExecRequest{Cmd: []string{"x", "correct'horse", "own-secret"}, Env: []string{"DB_PASSWORD=own-secret"}}),
		"given":          h.labelOf(ctx, rec, wire.ExecRequest{Cmd: []string{"x"}, Label: "with battery-staple"}),
		"programs":       h.autoLabelOf(ctx, rec, "", []wire.Program{{PID: 1, Args: []string{"make", "battery-staple"}}}, nil),
		"programs, cut":  h.autoLabelOf(ctx, rec, "", []wire.Program{{PID: 1, Args: []string{"make", strings.Repeat("x", label.Max-12), "battery-staple"}}}, nil),
		"places":         h.autoLabelOf(ctx, rec, "", nil, []string{"/home/me/battery-staple/f", "/home/me/battery-staple/g"}),
		"a flag's value": h.labelOf(ctx, rec, wire.ExecRequest{Cmd: []string{"x", "--password", "hunter2hunter2"}}),
	} {
		for _, part := range []string{"correct", "battery", "own-secret", "hunter2"} {
			if strings.Contains(label, part) {
				t.Errorf("%s: %q", name, label)
			}
		}
	}
	token := "ghp_" + strings.Repeat("aB3", 12)
	if got := h.redactorFor(ctx, rec, timeline.CauseManual).text("battery-staple " + token); !strings.HasPrefix(got, "battery-staple ") || strings.Contains(got, token) {
		t.Errorf("what a person said: %q", got)
	}
	if err := h.noSecret(ctx, rec, "tag", "battery-staple"); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "battery") {
		t.Errorf("a tag: %v", err)
	}
	if err := h.noSecret(ctx, rec, "tag", "v1.0"); err != nil {
		t.Error(err)
	}
}

// TestASandboxLearnsTheSecretsOfItsCommands: they are known to what is recorded later, by
// whichever daemon, and no more of them than there is room for.
func TestASandboxLearnsTheSecretsOfItsCommands(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	if _, err := h.makes("box", func(r *wire.CreateRequest) { r.Env = []string{"A_TOKEN=its-own-value"} }); err != nil {
		t.Fatal(err)
	}
	rec, err := h.DB.Sandbox(ctx, "box")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.learn(ctx, &rec, []string{"B_TOKEN=correct-horse", "LANG=C.UTF-8", "A_TOKEN=its-own-value", "B_TOKEN=correct-horse"}); err != nil {
			t.Fatal(err)
		}
	}
	again, err := h.DB.Sandbox(ctx, "box")
	if err != nil || len(again.Learnt) != 1 || len(rec.Learnt) != 1 || again.Learnt[0] != "B_TOKEN=correct-horse" {
		t.Fatalf("%q, %q, %v", again.Learnt, rec.Learnt, err)
	}
	if got := h.redactor(ctx, &again).clean("a correct-horse"); strings.Contains(got, "horse") {
		t.Errorf("%q", got)
	}
}

func TestTheNewestOfAListAreThoseThatFit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		list, most := rapid.SliceOf(rapid.StringN(0, 20, -1)).Draw(rt, "list"), rapid.IntRange(0, 100).Draw(rt, "most")
		got := newest(list, most)
		size := len(strings.Join(got, ""))
		if size > most || len(got) < len(list) && size+len(list[len(list)-len(got)-1]) <= most {
			rt.Fatalf("%q of %q", got, list)
		}
		for i, s := range got {
			if list[len(list)-len(got)+i] != s {
				rt.Fatalf("%q of %q", got, list)
			}
		}
	})
}
