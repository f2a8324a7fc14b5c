//go:build linux

package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/egress"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

// TestStart_PassesLimitsAndStrong sets limits and strong in a file and with a flag, also for forks. Limits that the
// host cannot enforce are refused before anything is created.
func TestStart_PassesLimitsAndStrong(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	sb, err := h.makes("box", func(r *wire.CreateRequest) {
		r.Limits = "time=90s,output=1MiB"
		r.Policy = []wire.PolicyFile{said(wire.PolicyUser, "strong: true\nlimits: {cpus: 1.5, files: 100, time: 1h}")}
	})
	want := wire.Limits{MilliCPUs: 1500, TimeMS: 90_000, Output: 1 << 20, Files: 100}
	if err != nil || sb.Limits != want {
		t.Fatalf("%+v, %v", sb, err)
	}
	h.run("box", "true")
	if c := h.last(); c.Limits != want || !c.Strong {
		t.Errorf("started with %+v", c)
	}
	fork := func(text string) (wire.Sandbox, error) {
		res, err := h.Fork(t.Context(), "box", wire.ForkRequest{Policy: []wire.PolicyFile{said(wire.PolicyFlags, text)}})
		if err != nil {
			return wire.Sandbox{}, err
		}
		return res.Sandboxes[0], nil
	}
	sb, err = fork("strong: false\nlimits: {time: 2s, pids: 5}")
	want.TimeMS, want.Pids = 2000, 5
	if err != nil || sb.Limits != want {
		t.Fatalf("%+v, %v", sb, err)
	}
	h.run(sb.Name, "true")
	if c := h.last(); c.Limits != want || c.Strong {
		t.Errorf("the fork started with %+v", c)
	}

	h.boxes.noShare = true
	_, err = h.makes("none", func(r *wire.CreateRequest) { r.Limits = "cpus=2" })
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("cpus: %v", err)
	}
	if _, err := fork("env: {A: b}"); !fault.Is(err, fault.Unsupported) {
		t.Errorf("cpus of a fork: %v", err)
	}
	for _, limits := range []string{"time=1s", "output=1B", "files=9", "memory=1GiB"} {
		_, err := h.makes("none", func(r *wire.CreateRequest) { r.Tier, r.Driver, r.Limits = "workspace", "copy", limits })
		if !fault.Is(err, fault.Unsupported) && !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("workspace with %s: %v", limits, err)
		}
	}
	if _, err := h.Status(t.Context(), "none"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a sandbox was made: %v", err)
	}
}

// TestPolicySources_AreStored checks that sources are stored beside the policy: they do not change its digest, and a
// sandbox can be used without them.
func TestPolicySources_AreStored(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	one, err := h.makes("one", func(r *wire.CreateRequest) {
		r.Limits, r.Env = "pids=5", []string{"A=1"}
		r.Policy = []wire.PolicyFile{
			said(wire.PolicyUser, "network: {presets: [pypi], deny: [evil.example]}"),
			said(wire.PolicyProject, "network: {allow: [good.example]}"),
			{Level: wire.PolicyFlags, Name: "--allow", Text: `{"version":1,"network":{"allow":["more.example"]}}`},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	from := func(name, key, value string) string {
		t.Helper()
		res, err := h.Policy(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(res.Lines,
			func(l wire.PolicyLine) bool { return l.Key == key && strings.Contains(l.Value, value) })
		if i < 0 {
			t.Fatalf("%s %s not found", key, value)
		}
		return res.Lines[i].From
	}
	is := func(name, key, value, want string) {
		t.Helper()
		if got := from(name, key, value); got != want {
			t.Errorf("%s: the source of %s %s is %q, want %q", name, key, value, got, want)
		}
	}
	all := func(name string) {
		t.Helper()
		is(name, "network.deny", "evil.example", "/p/user.yaml:2")
		is(name, "network.allow", "good.example", "/p/project.yaml:2")
		is(name, "network.allow", "more.example", "--allow")
		is(name, "network.allow", "files.pythonhosted.org", "preset pypi, /p/user.yaml:2")
		is(name, "files.hide", "~/.ssh", "built-in keys")
		is(name, "limits.pids", "5", "--limit")
		is(name, "env.A", "1", "--env")
		is(name, "strong", "false", "built-in")
	}
	all("one")
	h.close()
	h.open()
	all("one")
	if at := h.verdict("one", "good.example").At; at != "/p/project.yaml:2" {
		t.Errorf("its source is %q", at)
	}
	if res := h.verdict("one", "evil.example"); res.At != "/p/user.yaml:2" || !res.Denies {
		t.Errorf("%+v", res)
	}
	for range 2 {
		if _, err := h.Allow(ctx, "one", wire.AllowRequest{Allow: []string{"later.example", "good.example"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Allow(ctx, "one", wire.AllowRequest{Deny: []string{"brief.example"}, ForMS: 60_000}); err != nil {
		t.Fatal(err)
	}
	is("one", "network.allow", "later.example", "coppice net allow")
	if at := from("one", "network.deny", "brief.example"); !strings.HasPrefix(at, "coppice net allow, until 2") {
		t.Errorf("its source is %q", at)
	}
	all("one")

	// Another sandbox has the same policy from other sources.
	two, err := h.makes("two", func(r *wire.CreateRequest) {
		r.Policy = []wire.PolicyFile{
			said(wire.PolicyUser,
				"env: {A: '1'}\nlimits: {pids: 5}\nnetwork: {presets: [pypi], deny: [evil.example], allow: [good.example, "+
					"more.example]}")}
	})
	if err != nil || two.Policy != one.Policy {
		t.Fatalf("%+v, %v", two, err)
	}
	is("two", "network.allow", "more.example", "/p/user.yaml:4")

	// A fork has the sources of its parent.
	for name, files := range map[string][]wire.PolicyFile{"same": nil,
		"more": {said(wire.PolicyFlags, "network: {allow: [fork.example]}")}} {
		if _, err := h.Fork(ctx, "one", wire.ForkRequest{Names: []string{name}, Policy: files}); err != nil {
			t.Fatal(err)
		}
		all(name)
		is(name, "network.allow", "later.example", "coppice net allow")
	}
	is("more", "network.allow", "fork.example", "/p/flags.yaml:2")

	// The sources survive gc, and the sandbox can be used when they are lost.
	if _, err := h.DB.DropUnreferenced(ctx, ""); err != nil {
		t.Fatal(err)
	}
	all("one")
	rec, err := h.DB.Sandbox(ctx, "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, lose := range []func(*meta.Sandbox){
		func(r *meta.Sandbox) { r.OriginsText = "not what it was" },
		func(r *meta.Sandbox) { r.Origins, r.OriginsText = "sha256:none", "" },
	} {
		if err := h.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error { lose(r); return nil }); err != nil {
			t.Fatal(err)
		}
		is("one", "network.deny", "evil.example", "the sandbox's policy")
		h.run("one", "true")
		if res := h.verdict("one", "evil.example"); res.Verdict != "deny" {
			t.Errorf("%+v", res)
		}
	}
	if _, err := h.Allow(ctx, "one", wire.AllowRequest{Allow: []string{"new.example"}}); err != nil {
		t.Fatal(err)
	}
	is("one", "network.allow", "new.example", "coppice net allow")
}

// TestAllow_RemovesRules removes allow and deny rules of any source while the sandbox runs,
// and checks that the removal is recorded.
func TestAllow_RemovesRules(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	h.gated("a", "one.example", "two.example", "*.wide.example")
	first := h.verdict("a", "one.example").Policy
	if _, err := h.Allow(ctx, "a",
		wire.AllowRequest{Allow: []string{"three.example", "x.wide.example"}, Deny: []string{"bad.example"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Allow(ctx, "a",
		wire.AllowRequest{Allow: []string{"brief.example", "two.example"}, Deny: []string{"worse.example"},
			ForMS: 3_600_000}); err != nil {
		t.Fatal(err)
	}
	b := h.box("a")
	res, err := h.Allow(ctx, "a",
		wire.AllowRequest{RemoveAllow: []string{"one.example", "brief.example", "two.example"},
			RemoveDeny: []string{"worse.example"}})
	if err != nil || !res.Live || res.Until != nil || len(res.Warnings) != 1 || len(b.set) != 1 || len(b.set[0]) != 1 ||
		b.set[0][0].Digest != res.Policy {
		t.Fatalf("%+v, %v; the keeper got %+v", res, err, b.set)
	}
	for place, want := range map[string]string{"one.example": "deny", "two.example": "deny", "brief.example": "deny",
		"three.example": "allow", "bad.example": "deny"} {
		if got := h.verdict("a", place); got.Verdict != want || got.Policy != res.Policy {
			t.Errorf("%s: %+v", place, got)
		}
	}
	net, err := h.Net(ctx, "a", wire.NetRequest{Last: 1})
	if err != nil || len(net.Events) != 1 || net.Events[0].Kind != wire.NetPolicy || net.Events[0].Policy != res.Policy ||
		!strings.Contains(net.Events[0].Reason, "--remove") ||
		net.Events[0].Rule != "brief.example:443 two.example:443 worse.example one.example:443" {
		t.Errorf("%+v, %v", net, err)
	}
	// Another rule may allow the same destination.
	if res, err := h.Allow(ctx, "a", wire.AllowRequest{RemoveAllow: []string{"x.wide.example"}}); err != nil ||
		len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "stays allowed: by *.wide.example") {
		t.Errorf("%+v, %v", res, err)
	}
	// So may a wider private rule, for the private addresses of a name.
	if _, err := h.Allow(ctx, "a",
		wire.AllowRequest{Allow: []string{"db.example:5000-6000,private", "db.example:5432,private"}}); err != nil {
		t.Fatal(err)
	}
	if res, err := h.Allow(ctx, "a", wire.AllowRequest{RemoveAllow: []string{"db.example:5432,private"}}); err != nil ||
		!slices.Equal(res.Warnings,
			[]string{"db.example:5432 at private addresses stays allowed: by db.example:5000-6000,private"}) {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := h.Allow(ctx, "a",
		wire.AllowRequest{RemoveAllow: []string{"db.example:5000-6000,private"}}); err != nil || res.Warnings != nil {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := h.Allow(ctx, "a", wire.AllowRequest{RemoveDeny: []string{"bad.example"}}); err != nil ||
		len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "bad.example:443 stays denied: no rule") {
		t.Errorf("%+v, %v", res, err)
	}
	if res := h.verdict("a", "bad.example"); res.Verdict != "deny" || res.Denies || !res.Allow {
		t.Errorf("%+v", res)
	}
	// Without any of the allow rules, a destination is denied because no rule names it.
	if _, err := h.Allow(ctx, "a",
		wire.AllowRequest{RemoveAllow: []string{"*.wide.example", "three.example"}}); err != nil {
		t.Fatal(err)
	}
	if res := h.verdict("a", "y.wide.example"); res.Verdict != "deny" || res.Reason != "no rule names it" {
		t.Errorf("%+v", res)
	}
	if res, err := h.Allow(ctx, "a",
		wire.AllowRequest{Allow: []string{"one.example", "two.example", "*.wide.example"}}); err != nil ||
		res.Policy != first {
		t.Errorf("%+v, %v; want %s", res, err, first)
	}

	before := h.verdict("a", "one.example").Policy
	for _, c := range []struct {
		req  wire.AllowRequest
		kind fault.Kind
	}{
		{wire.AllowRequest{RemoveAllow: []string{"none.example"}}, fault.NotFound},
		{wire.AllowRequest{RemoveDeny: []string{"one.example"}}, fault.NotFound},
		{wire.AllowRequest{RemoveAllow: []string{"one.example", "one.example"}}, fault.NotFound},
		{wire.AllowRequest{RemoveAllow: []string{"one.example"}, Allow: []string{"two.example"}}, fault.Invalid},
		{wire.AllowRequest{RemoveAllow: []string{"one.example"}, ForMS: 1}, fault.Invalid},
		{wire.AllowRequest{RemoveAllow: make([]string, egress.MaxTimed+1)}, fault.Invalid},
	} {
		if _, err := h.Allow(ctx, "a", c.req); !fault.Is(err, c.kind) || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
	if now := h.verdict("a", "one.example").Policy; now != before {
		t.Error("a refused request has changed the policy")
	}
	// A policy that the monitor does not take is rolled back.
	b.setErr = func() error { return fault.New(fault.Timeout, "no answer") }
	if _, err := h.Allow(ctx, "a",
		wire.AllowRequest{RemoveAllow: []string{"one.example"}}); !fault.Is(err, fault.Timeout) {
		t.Error(err)
	}
	if now := h.verdict("a", "one.example"); now.Policy != before || now.At == "the sandbox's policy" {
		t.Errorf("%+v", now)
	}
}

// TestTimedDeny_IsNotShortened denies a destination for an hour and then for a millisecond:
// the answer and the audit log keep the later end.
func TestTimedDeny_IsNotShortened(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.gated("a", "one.example")
	long, err := h.Allow(t.Context(), "a", wire.AllowRequest{Deny: []string{"one.example"}, ForMS: 3_600_000})
	if err != nil {
		t.Fatal(err)
	}
	short, err := h.Allow(t.Context(), "a", wire.AllowRequest{Deny: []string{"one.example"}, ForMS: 1})
	if err != nil || !short.Until.Equal(*long.Until) {
		t.Errorf("%+v, %v; want the end of %+v", short, err, long)
	}
	want := long.Until.UTC().Format(time.RFC3339)
	if p := last[*format.Policy](h, h.id("a")); p == nil || p.Until != want {
		t.Errorf("the ledger has %+v; want the end %s", p, want)
	}
}

// TestCreate_RefusesDirThatIsNotAbsolute checks that the directory to search for unchangeable files is never resolved
// against the working directory of the daemon, and has a bounded length.
func TestCreate_RefusesDirThatIsNotAbsolute(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	for _, dir := range []string{"relative", "/" + strings.Repeat("a", 5000)} {
		if _, err := h.Create(t.Context(), wire.CreateRequest{Name: "d", Dir: dir}, ignore); !fault.Is(err, fault.Invalid) {
			t.Errorf("%.20q: %v", dir, err)
		}
	}
}
