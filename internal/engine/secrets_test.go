//go:build linux

package engine

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestLabels_AreRedacted covers messages that are made from commands, programs and paths, also where they are
// truncated, and secrets of a command that has exited. A message that a user wrote keeps its words, but no tokens.
func TestLabels_AreRedacted(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	rec := &meta.Sandbox{ID: "0123456789ab", Name: "a"}
	rec.Env = []string{"API_TOKEN=correct'horse"}
	rec.Learnt = []string{"SESSION_KEY=battery-staple"}
	own := wire.ExecRequest{
		Cmd: []string{"x", "correct'horse", "own-secret"}, Env: []string{"DB_PASSWORD=own-secret"},
	}
	long := []string{"make", strings.Repeat("x", message.Max-12), "battery-staple"}
	c := h.cleaners.For(ctx, rec)
	labelOf := func(req wire.ExecRequest) string { return command.Message(ctx, h.cleaners, rec, req) }
	for name, label := range map[string]string{
		"a command":      labelOf(own),
		"given":          labelOf(wire.ExecRequest{Cmd: []string{"x"}, Label: "with battery-staple"}),
		"programs":       autoMessageOf(c, "", []wire.Program{{PID: 1, Args: []string{"make", "battery-staple"}}}, nil),
		"programs, cut":  autoMessageOf(c, "", []wire.Program{{PID: 1, Args: long}}, nil),
		"places":         autoMessageOf(c, "", nil, []string{"/home/me/battery-staple/f", "/home/me/battery-staple/g"}),
		"a flag's value": labelOf(wire.ExecRequest{Cmd: []string{"x", "--password", "hunter2hunter2"}}),
	} {
		for _, part := range []string{"correct", "battery", "own-secret", "hunter2"} {
			if strings.Contains(label, part) {
				t.Errorf("%s: %q", name, label)
			}
		}
	}
	token := "ghp_" + strings.Repeat("aB3", 12)
	got := h.cleaners.ForMessage(ctx, rec, timeline.CauseManual).Redact("battery-staple " + token)
	if !strings.HasPrefix(got, "battery-staple ") || strings.Contains(got, token) {
		t.Errorf("a message of a user: %q", got)
	}
	err := c.CheckName("tag", "battery-staple")
	if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "battery") {
		t.Errorf("a tag: %v", err)
	}
	if err := c.CheckName("tag", "v1.0"); err != nil {
		t.Error(err)
	}
}

// TestRedaction_LearnsCommandSecrets checks that the secrets of a command are redacted from later records, also by
// later daemons, and that a bounded number of them is stored.
func TestRedaction_LearnsCommandSecrets(t *testing.T) {
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
		env := []string{"B_TOKEN=correct-horse", "LANG=C.UTF-8", "A_TOKEN=its-own-value", "B_TOKEN=correct-horse"}
		if err := h.cleaners.Learn(ctx, &rec, env); err != nil {
			t.Fatal(err)
		}
	}
	again, err := h.DB.Sandbox(ctx, "box")
	if err != nil || len(again.Learnt) != 1 || len(rec.Learnt) != 1 || again.Learnt[0] != "B_TOKEN=correct-horse" {
		t.Fatalf("%q, %q, %v", again.Learnt, rec.Learnt, err)
	}
	if got := h.cleaners.For(ctx, &again).RecordText("a correct-horse"); strings.Contains(got, "horse") {
		t.Errorf("%q", got)
	}
}
