//go:build linux

package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
)

// asking makes a live sandbox whose policy says network.ask, and returns its box.
func (h *home) asking(name string) *fakeBox {
	h.t.Helper()
	_, err := h.Create(h.t.Context(),
		wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceDir, Path: h.t.TempDir()},
			Policy: []wire.PolicyFile{{Level: wire.PolicyFlags, Name: "/p.yaml", Text: "version: 1\nnetwork: {ask: true}\n"}}},
		func(wire.Progress) {})
	if err != nil {
		h.t.Fatal(err)
	}
	return h.box(name)
}

// ask sets the pending requests of the box, and those that remain after the next change of its policy.
func (b *fakeBox) ask(now, then []wire.NetQuestion) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asking = now
	b.setErr = func() error {
		b.asking = then
		return nil
	}
}

func TestPendingRequests_AreAnswered(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	b := h.asking("a")
	if q, err := h.Asking(ctx, "a"); err != nil || q.Asking == nil || len(q.Asking) != 0 {
		t.Fatalf("%+v, %v", q, err)
	}
	one := wire.NetQuestion{Place: "one.example", Proto: "dns", Name: "one.example", Since: time.Now(),
		Until: time.Now().Add(time.Minute)}
	two := one
	two.Place, two.Name = "two.example", "two.example"
	b.ask([]wire.NetQuestion{one, two}, []wire.NetQuestion{two})
	if q, err := h.Asking(ctx, "a"); err != nil || len(q.Asking) != 2 {
		t.Errorf("%+v, %v", q, err)
	}
	if res := h.verdict("a", "one.example"); res.Verdict != wire.VerdictAsk || !res.Allow {
		t.Errorf("%+v", res)
	}
	res, err := h.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"one.example"}, ForMS: 60_000})
	if err != nil || !res.Live || res.Until == nil || len(res.Settled) != 1 || res.Settled[0].Place != "one.example" {
		t.Errorf("%+v, %v", res, err)
	}
	b.ask([]wire.NetQuestion{two}, nil)
	res, err = h.Deny(ctx, "a", wire.AnswerRequest{Rules: []string{"two.example"}})
	if err != nil || len(res.Settled) != 1 || res.Settled[0].Place != "two.example" || len(res.Warnings) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if one, two := h.verdict("a", "one.example").Verdict, h.verdict("a", "two.example").
		Verdict; one != "allow" || two != "deny" {
		t.Errorf("%s, %s", one, two)
	}
	// An approval does not override the deny rule; the answer warns about it.
	res, err = h.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"two.example"}})
	if err != nil || len(res.Settled) != 0 || res.Settled == nil || len(res.Warnings) != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	var said []string
	net, err := h.Net(ctx, "a", wire.NetRequest{Kinds: []string{wire.NetPolicy}})
	for _, ev := range net.Events {
		said = append(said, ev.Rule+" by "+strings.Split(ev.Reason, ",")[0])
	}
	if got := strings.Join(said, "; "); err != nil ||
		got != "one.example:443 by coppice net approve; two.example by coppice net deny; "+
			"two.example:443 by coppice net approve" {
		t.Errorf("%q, %v", got, err)
	}
	for _, rules := range [][]string{nil, {"a b"}, {"127.1:80"}} {
		if _, err := h.Approve(ctx, "a", wire.AnswerRequest{Rules: rules}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", rules, err)
		}
	}
	if _, err := h.Asking(ctx, "nobody"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}

	// A stopped sandbox has no pending requests, and an approval does not start it.
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if q, err := h.Asking(ctx, "a"); err != nil || len(q.Asking) != 0 {
		t.Errorf("%+v, %v", q, err)
	}
	if res, err := h.Approve(ctx, "a", wire.AnswerRequest{Rules: []string{"three.example"}}); err != nil || res.Live ||
		res.Settled == nil {
		t.Errorf("%+v, %v", res, err)
	}
	h.ungated("plain")
	if _, err := h.Approve(ctx, "plain",
		wire.AnswerRequest{Rules: []string{"a.example"}}); !fault.Is(err, fault.Unsupported) {
		t.Error(err)
	}
}

// TestPendingRequests_AreReportedAsEvents checks that a client that watches a sandbox receives each
// pending request and its outcome, also after a restart of the daemon, and when the sandbox stops.
func TestPendingRequests_AreReportedAsEvents(t *testing.T) {
	h := newHome(t)
	b := h.asking("a")
	rec, err := h.DB.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(h.journalAt(rec.ID))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	tell := func(name string, port int, verdict, rule string) {
		t.Helper()
		if err := j.Append(
			wire.NetEvent{Time: time.Now(), Kind: wire.NetAsk, Proto: "tcp", Name: name, Port: port, Verdict: verdict,
				Rule: rule}); err != nil {
			t.Fatal(err)
		}
	}
	enough := errors.New("enough")
	heard := func(after uint64, n int) []string {
		t.Helper()
		var said []string
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := h.Events(ctx, "a", after, func(ev wire.SandboxEvent) error {
			if ev.Kind == wire.EventAsk {
				said = append(said, ev.Message+" "+ev.Detail)
			}
			if len(said) == n {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Fatalf("%q, %v", said, err)
		}
		return said
	}
	tell("one.example", 443, wire.VerdictAsk, "")
	tell("one.example", 443, wire.VerdictAllow, "one.example:443")
	tell("two.example", 80, wire.VerdictAsk, "")
	tell("two.example", 80, wire.VerdictDeny, "two.example")
	tell("late.example", 80, wire.VerdictAsk, "")
	tell("late.example", 80, wire.VerdictDeny, "")
	since := time.Now()
	tell("open.example", 443, wire.VerdictAsk, "")
	want := "one.example:443 waits, one.example:443 allowed, two.example:80 waits, two.example:80 denied, " +
		"late.example:80 waits, late.example:80 no decision in time, open.example:443 waits"
	if got := strings.Join(heard(0, 7), ", "); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}

	// After a restart, the daemon reports what is pending, and nothing that was decided.
	open := []wire.NetQuestion{{Place: "open.example:443", Proto: "tcp", Since: since, Until: since.Add(time.Minute)}}
	b.ask(open, open)
	h.close()
	h.open()
	if _, err := h.Asking(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(heard(0, 1), ", "); got != "open.example:443 waits" {
		t.Error(got)
	}
	if _, err := h.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(heard(0, 2), ", "); got != "open.example:443 waits, open.example:443 no decision in time" {
		t.Error(got)
	}
}
