//go:build linux

package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// gated makes a sandbox with network rules.
func (h *home) gated(name string, allow ...string) {
	h.t.Helper()
	text := "version: 1\ntier: supervised\nnetwork: {allow: ['" + strings.Join(allow, "','") + "']}\n"
	dir := h.t.TempDir()
	_, err := h.Create(context.Background(),
		wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceDir, Path: dir},
			Policy: []wire.PolicyFile{{Level: wire.PolicyFlags, Name: "/p.yaml", Text: text}}}, func(wire.Progress) {})
	if err != nil {
		h.t.Fatal(err)
	}
}

// verdict returns the decision about a destination.
func (h *home) verdict(name, place string) wire.WhyResult {
	h.t.Helper()
	res, err := h.Why(context.Background(), name, wire.WhyRequest{Host: place})
	if err != nil {
		h.t.Fatal(err)
	}
	return res
}

// TestWhy_NamesTheAddressOfADeniedLookup covers a name that a rule allows, and that is denied for the address that it
// resolved to last, according to the journal.
func TestWhy_NamesTheAddressOfADeniedLookup(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.gated("a", "mirror.example", "registry.example")
	led := func(name, addr, kind string) wire.NetEvent {
		return wire.NetEvent{Kind: kind, Proto: "dns", Name: name, Addr: addr}
	}
	h.gateTells(h.id("a"), led("mirror.example", "10.1.2.3", wire.NetDeny),
		led("registry.example", "203.0.113.7", wire.NetDeny))
	for place, want := range map[string]wire.WhyResult{
		"mirror.example": {Place: "mirror.example:443", Verdict: "deny", Fix: "mirror.example:443,private",
			Reason: "its address 10.1.2.3 is a private address, which only a rule with private or a rule for the address " +
				"allows; it led there at 2"},
		"registry.example": {Place: "registry.example:443", Verdict: "deny", Fix: "203.0.113.7:443",
			Reason: "its address 203.0.113.7 is a documentation address, which only a rule for the address allows; it led " +
				"there at 2"},
	} {
		got := h.verdict("a", place)
		if got.Place != want.Place || got.Verdict != want.Verdict || got.Fix != want.Fix || got.Allow ||
			!strings.HasPrefix(got.Reason, want.Reason) || !strings.Contains(got.Hint, want.Fix) {
			t.Errorf("%+v, expected %+v", got, want)
		}
	}
	// With a rule for that address, or another address, the name is allowed.
	if _, err := h.Allow(t.Context(), "a", wire.AllowRequest{Allow: []string{"mirror.example:443,private"}}); err != nil {
		t.Fatal(err)
	}
	h.gateTells(h.id("a"), led("registry.example", "93.184.216.34", wire.NetConnect))
	for _, place := range []string{"mirror.example", "registry.example"} {
		if got := h.verdict("a", place); got.Verdict != "allow" || got.Fix != "" {
			t.Errorf("%+v", got)
		}
	}
}

func TestAllow_AddsPermanentAndTimedRules(t *testing.T) {
	h, clock := newClockedHomeAt(t, time.Now().UTC().Truncate(time.Second))
	ctx := t.Context()
	h.gated("a", "one.example")
	first := h.verdict("a", "one.example")
	if first.Verdict != "allow" || first.Rule != "one.example:443" || first.At == "" || first.Until != nil {
		t.Errorf("%+v", first)
	}
	if res := h.verdict("a", "two.example"); res.Verdict != "deny" || res.Place != "two.example:443" || !res.Allow ||
		!strings.Contains(res.Hint, `"two.example:443"`) {
		t.Errorf("%+v", res)
	}

	// A permanent rule, in a stopped sandbox.
	res, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"two.example"}})
	if err != nil || res.Live || res.Until != nil || res.Policy == first.Policy {
		t.Fatalf("%+v, %v", res, err)
	}
	second := h.verdict("a", "two.example")
	if second.Verdict != "allow" || second.Policy != res.Policy {
		t.Errorf("%+v", second)
	}

	// Timed rules, in a running sandbox.
	b := h.box("a")
	res, err = h.Allow(ctx, "a",
		wire.AllowRequest{Allow: []string{"three.example:80"}, Deny: []string{"one.example"}, ForMS: 60_000})
	if until := clock.now().Add(time.Minute); err != nil || !res.Live || res.Until == nil || !res.Until.Equal(until) {
		t.Fatalf("%+v, %v", res, err)
	}
	if len(b.set) != 1 || len(b.set[0]) != 2 || b.set[0][0].Digest != res.Policy || !b.set[0][0].Until.Equal(*res.Until) ||
		b.set[0][1].Digest != second.Policy || !b.set[0][1].Until.IsZero() {
		t.Errorf("the keeper got %+v", b.set)
	}
	if res := h.verdict("a", "three.example:80"); res.Verdict != "allow" || !strings.Contains(res.At, "until") ||
		res.Until == nil {
		t.Errorf("%+v", res)
	}
	if res := h.verdict("a", "one.example"); res.Verdict != "deny" || res.Allow {
		t.Errorf("%+v", res)
	}
	if res, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"one.example"}, ForMS: 1}); err != nil ||
		len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "stays denied") {
		t.Errorf("%+v, %v", res, err)
	}
	clock.advance(time.Minute)
	if res := h.verdict("a", "one.example"); res.Verdict != "allow" || res.Policy != second.Policy || res.Until != nil {
		t.Errorf("after the end of the rule: %+v", res)
	}

	// Each change was recorded.
	net, err := h.Net(ctx, "a", wire.NetRequest{})
	if err != nil || len(net.Events) != 3 || net.Now == nil || net.Now.Conns != 1 || net.Policy != second.Policy {
		t.Fatalf("%+v, %v", net, err)
	}
	for i, want := range []string{"two.example:443", "three.example:80 one.example", "one.example:443"} {
		if ev := net.Events[i]; ev.Kind != wire.NetPolicy || ev.Rule != want || ev.Policy == "" ||
			!strings.Contains(ev.Reason, "coppice net allow") {
			t.Errorf("%+v, want %s", ev, want)
		}
	}
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if net, err := h.Net(ctx, "a", wire.NetRequest{Last: 1}); err != nil || len(net.Events) != 1 || net.Now != nil {
		t.Errorf("stopped: %+v, %v", net, err)
	}
}

func TestAllow_RollsBackWhenMonitorFails(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	h.gated("a", "one.example")
	b := h.box("a")
	before := h.verdict("a", "two.example")
	for _, req := range []wire.AllowRequest{{Allow: []string{"two.example"}},
		{Allow: []string{"two.example"}, ForMS: 60_000}} {
		b.set, b.setErr = nil, func() error { return fault.New(fault.Timeout, "no answer") }
		if _, err := h.Allow(ctx, "a", req); !fault.Is(err, fault.Timeout) {
			t.Errorf("%+v: %v", req, err)
		}
		if len(b.set) != 2 || b.set[1][0].Digest != before.Policy || len(b.set[1]) != 1 {
			t.Errorf("%+v: the keeper got %+v", req, b.set)
		}
		if now := h.verdict("a", "two.example"); now.Verdict != "deny" || now.Policy != before.Policy {
			t.Errorf("%+v: %+v", req, now)
		}
		net, err := h.Net(ctx, "a", wire.NetRequest{})
		if n := len(net.Events); err != nil || n < 2 || !strings.Contains(net.Events[n-1].Reason, "undone: ") ||
			net.Events[n-1].Policy != before.Policy {
			t.Errorf("%+v: %+v, %v", req, net, err)
		}
	}
	// If the monitor has just exited, the rule is recorded, and the next monitor starts with it.
	b.setErr = func() error {
		b.once.Do(func() { close(b.gone) })
		return fault.New(fault.Unavailable, "gone")
	}
	if res, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"two.example"}}); err != nil || res.Live {
		t.Errorf("%+v, %v", res, err)
	}
	if now := h.verdict("a", "two.example"); now.Verdict != "allow" {
		t.Errorf("%+v", now)
	}
}

// TestNextDaemon_AppliesRecordedRules covers a daemon that exits after it has recorded a change of the rules and
// before it has sent it to the monitor. The next daemon sends the recorded rules, since a recorded change must be in
// force.
func TestNextDaemon_AppliesRecordedRules(t *testing.T) {
	h := newHome(t)
	h.gated("a", "one.example")
	b := h.box("a")
	res, err := h.Allow(t.Context(), "a", wire.AllowRequest{Deny: []string{"one.example"}})
	if err != nil {
		t.Fatal(err)
	}
	b.set = nil
	h.close()
	h.open()
	h.box("a")
	if len(b.set) != 1 || len(b.set[0]) != 1 || b.set[0][0].Digest != res.Policy {
		t.Errorf("the keeper got %+v", b.set)
	}
}

func TestAllow_RefusesUnrecordedRule(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	h.gated("a", "one.example")
	rec, err := h.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	dir := h.journalDir(rec.ID)
	if err := os.MkdirAll(filepath.Join(dir, "net.lock"), 0o700); err != nil { // blocks the file of this name
		t.Fatal(err)
	}
	if res, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"two.example"}}); err == nil {
		t.Errorf("%+v", res)
	}
	if res := h.verdict("a", "two.example"); res.Verdict != "deny" {
		t.Errorf("%+v", res)
	}
}

// ungated makes a sandbox of tier process, which has no gate.
func (h *home) ungated(name string) {
	h.t.Helper()
	if _, err := h.makes(name, func(r *wire.CreateRequest) { r.Tier = "process" }); err != nil {
		h.t.Fatal(err)
	}
}

func TestAllow_RequiresGate(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	h.ungated("a")
	if _, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{"example.com"}}); !fault.Is(err, fault.Unsupported) ||
		!strings.Contains(fault.HintOf(err), "--from a --net rules --allow example.com:443") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if res := h.verdict("a", "example.com"); res.Allow || res.Policy == "" {
		t.Errorf("%+v", res)
	}
	for _, req := range []wire.AllowRequest{{}, {Allow: []string{"example.com"}, ForMS: -1}, {Allow: []string{"127.1"}},
		{Deny: []string{""}},
		{Allow: make([]string, egress.MaxTimed+1)}, {Allow: []string{"example.com"}, ForMS: 1 << 62}} {
		if _, err := h.Allow(ctx, "a", req); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", req, err)
		}
	}
	for _, last := range []int{-2, egress.MaxNetEvents + 1} {
		if _, err := h.Net(ctx, "a", wire.NetRequest{Last: last}); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
		if err := h.FollowNet(ctx, "a", wire.NetRequest{Last: last}, nil); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
	}
	if err := h.FollowNet(ctx, "nobody", wire.NetRequest{}, nil); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

func TestTimedRules_AreBounded(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	h.gated("a", "one.example")
	var rules []string
	for i := range egress.MaxTimed {
		rules = append(rules, "h"+itoa(i)+".example")
	}
	for range 2 { // the same rules again do not count
		if _, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: rules, ForMS: 60_000}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Allow(ctx, "a",
		wire.AllowRequest{Allow: []string{"more.example"}, ForMS: 60_000}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if res := h.verdict("a", rules[7]); res.Verdict != string(policy.Allow) {
		t.Errorf("%+v", res)
	}
}

func TestFollowNet_StopsOnRemove(t *testing.T) {
	h := newHome(t)
	ctx := t.Context()
	h.gated("a", "one.example")
	enough := errors.New("enough")
	for i, want := range []string{"rule0.example:443", "rule0.example:443 rule1.example:443"} {
		next, got := "rule"+itoa(i)+".example", []string{}
		err := h.FollowNet(ctx, "a", wire.NetRequest{Last: i}, func(ev wire.NetEvent) error {
			if ev.Kind == "" {
				_, err := h.Allow(ctx, "a", wire.AllowRequest{Allow: []string{next}})
				return err
			}
			if got = append(got, ev.Rule); ev.Rule == next+":443" {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) || strings.Join(got, " ") != want {
			t.Errorf("%d: %q, %v; want %s", i, got, err, want)
		}
	}
	err := h.FollowNet(ctx, "a", wire.NetRequest{}, func(wire.NetEvent) error {
		_, err := h.Remove(ctx, []string{"a"}, true)
		return err
	})
	if err != nil {
		t.Errorf("FollowNet ended with %v", err)
	}
}
