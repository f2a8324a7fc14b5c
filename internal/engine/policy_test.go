//go:build linux

package engine

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
)

// said returns a policy file with the given text.
func said(level, text string) wire.PolicyFile {
	return wire.PolicyFile{Level: level, Name: "/p/" + level + ".yaml", Text: "version: 1\n" + text}
}

// makes makes a sandbox from an empty directory.
func (h *home) makes(name string, change func(*wire.CreateRequest)) (wire.Sandbox, error) {
	req := wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceDir, Path: h.t.TempDir()}}
	if change != nil {
		change(&req)
	}
	return h.Create(context.Background(), req, func(wire.Progress) {})
}

// last returns the configuration of the box that was started last.
func (h *home) last() BoxConfig {
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.started[len(h.boxes.started)-1]
}

// TestCreate_DefaultsToBuiltInPolicy creates a sandbox without any policy: it is in tier
// process with its network off.
func TestCreate_DefaultsToBuiltInPolicy(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	sb, err := h.makes("box", nil)
	if err != nil {
		t.Fatal(err)
	}
	built, err := policy.Merge()
	if err != nil {
		t.Fatal(err)
	}
	built.Tier.Value = policy.Supervised // as auto chooses
	want, err := built.Digest()
	if err != nil || sb.Policy != want || sb.Tier != "supervised" || sb.Net != "off" || len(sb.Env) > 0 ||
		sb.Limits != (wire.Limits{}) || len(sb.Warnings) > 0 {
		t.Errorf("%+v; %v", sb, err)
	}
	h.run("box", "true")
	if c := h.last(); len(c.Phases) != 1 || c.JournalDir != h.journalDir(h.id("box")) || !c.Trace {
		t.Errorf("started with %+v", c)
	}
	if sb, err := h.makes("host", func(r *wire.CreateRequest) { r.Net = "host" }); err != nil || sb.Net != "host" ||
		sb.Tier != "process" || sb.Policy == want {
		t.Errorf("%+v, %v", sb, err)
	}
	for _, name := range []string{"box", "host"} {
		st, err := h.Status(t.Context(), name)
		if err != nil || !strings.HasPrefix(st.TierReason, "the strongest tier ") || st.Sandbox.TierReason != "" {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
	if !strings.HasPrefix(sb.TierReason, "the strongest tier ") {
		t.Errorf("the answer says %q", sb.TierReason)
	}
}

// TestCreate_MergesPolicyFilesAndFlags checks that the merged policy is in force, and that the sandbox has its
// digest.
func TestCreate_MergesPolicyFilesAndFlags(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	sb, err := h.makes("box", func(r *wire.CreateRequest) {
		r.Env, r.Limits = []string{"B=flag"}, "memory=2GiB"
		r.Policy = []wire.PolicyFile{
			said(wire.PolicyUser, "limits: {memory: 1GiB, pids: 100}\nnetwork: {deny: [evil.example]}\nenv: {A: user, B: user}"),
			said(wire.PolicyProject, "network: {allow: [evil.example, good.example]}"),
			{Level: wire.PolicyFlags, Name: "--allow", Text: `{"version":1,"network":{"allow":["more.example"]}}`},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if sb.Tier != "supervised" || sb.Net != "rules" || sb.Limits != (wire.Limits{Memory: 2 << 30, Pids: 100}) ||
		!slices.Equal(sb.Env, []string{"A=user", "B=flag"}) {
		t.Errorf("%+v", sb)
	}
	h.run("box", "true")
	c := h.last()
	if len(c.Phases) != 1 || c.Phases[0].Digest != sb.Policy || !c.Phases[0].Until.IsZero() ||
		!filepath.IsAbs(c.JournalDir) || c.Tier != "supervised" || c.Net != "rules" || !c.Trace {
		t.Errorf("started with %+v", c)
	}
	p, err := policy.ParseCanonical([]byte(c.Phases[0].Policy))
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]policy.Verdict{"good.example": policy.Allow, "more.example": policy.Allow,
		"evil.example": policy.Deny, "other.example": policy.Deny} {
		q, err := policy.ParseRequest(host)
		if err != nil {
			t.Fatal(err)
		}
		if d := p.Network.Decide(q); d.Verdict != want {
			t.Errorf("%s: %+v", host, d)
		}
	}
	res, err := h.Policy(t.Context(), "box")
	if err != nil || res.Digest != sb.Policy || res.Text != c.Phases[0].Policy || res.Until != nil ||
		!slices.Contains(res.Lines, wire.PolicyLine{Key: "network.deny", Value: "evil.example", From: "/p/user.yaml:3"}) {
		t.Errorf("%+v, %v", res, err)
	}
	if st, err := h.Status(t.Context(), "box"); err != nil || st.TierReason != "requested by --allow" {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestCreate_RefusesUnenforceablePolicy checks that the error has the key, its source and a hint, and that no sandbox
// is left.
func TestCreate_RefusesUnenforceablePolicy(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	user := func(text string) []wire.PolicyFile { return []wire.PolicyFile{said(wire.PolicyUser, text)} }
	for _, c := range []struct {
		about  string
		change func(*wire.CreateRequest)
		kind   fault.Kind
		says   string
	}{
		{"a decoy of many files", func(r *wire.CreateRequest) { r.Policy = user("files: {decoys: [./x/*]}") },
			fault.Unsupported, "/p/user.yaml:2: files.decoys"},
		{"a decoy in a place of the sandbox's own",
			func(r *wire.CreateRequest) {
				r.Policy = user("files: {decoys: [/run/x]}")
			}, fault.Invalid, "managed by the sandbox"},
		{"a decoy in another one", func(r *wire.CreateRequest) { r.Policy = user("files: {decoys: [/x, /x/y]}") },
			fault.Invalid, "overlaps a mount"},
		{"a path of its own that is to be read-only",
			func(r *wire.CreateRequest) {
				r.Policy = user("files: {readonly: [/proc/sys]}")
			}, fault.Invalid, "cannot make /proc/sys read-only"},
		{"a mount of what has sockets of others",
			func(r *wire.CreateRequest) {
				r.Policy = user("files: {mounts: [{from: /run, to: /mnt}]}")
			}, fault.Denied, "hidden"},
		{"a mount of the store",
			func(r *wire.CreateRequest) {
				r.Policy = user("files: {mounts: [{from: " + h.dir + ", to: /mnt}]}")
			}, fault.Denied, "hidden"},
		{"a mount in the store", func(r *wire.CreateRequest) {
			r.Policy = user("files: {mounts: [{from: " + h.dir + "/layers, to: /mnt}]}")
		}, fault.Denied, "hidden"},
		{"a mount around the store", func(r *wire.CreateRequest) {
			r.Policy = user("files: {mounts: [{from: " + filepath.Dir(h.dir) + ", to: /mnt}]}")
		}, fault.Denied, "hidden"},
		{"a mount of /etc", func(r *wire.CreateRequest) { r.Policy = user("files: {mounts: [{from: /etc, to: /mnt}]}") },
			fault.Denied, "hidden"},
		{"paths without their directory", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{
				{Level: wire.PolicyFlags, Name: "--policy", Text: `{"version":1,"files":{"readonly":["./x"]}}`}}
		}, fault.Invalid, "its directory is unknown"},
		{"a path that cannot be hidden", func(r *wire.CreateRequest) { r.Policy = user("files: {hide: [/proc/x]}") },
			fault.Unsupported, "/p/user.yaml:2: files.hide"},
		{"a path without its directory", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{
				{Level: wire.PolicyFlags, Name: "--policy", Text: `{"version":1,"files":{"hide":["./x"]}}`}}
		}, fault.Invalid, "its directory is unknown"},
		{"a project that has people asked", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{said(wire.PolicyProject, "network: {ask: true}")}
		}, fault.Invalid, "cannot request approvals"},
		{"asking in tier process", func(r *wire.CreateRequest) { r.Tier, r.Policy = "process", user("network: {ask: true}") },
			fault.Invalid, "tier process"},
		{"a stronger tier", func(r *wire.CreateRequest) { r.Tier = "microvm" }, fault.Unsupported,
			"tier is not enforced yet"},
		{"a mistake", func(r *wire.CreateRequest) { r.Policy = user("teir: process") }, fault.Invalid, "/p/user.yaml:2"},
		{"a level", func(r *wire.CreateRequest) { r.Policy = []wire.PolicyFile{said("root", "")} },
			fault.Invalid, "unknown policy level"},
		{"a name", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{{Level: wire.PolicyUser, Name: "coppice.yaml", Text: "version: 1"}}
		}, fault.Invalid, "must be an absolute path"},
		{"a flag that is none", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{{Level: wire.PolicyProject, Name: "--allow", Text: "version: 1"}}
		}, fault.Invalid, "must be an absolute path"},
		{"too many", func(r *wire.CreateRequest) { r.Policy = make([]wire.PolicyFile, 65) }, fault.Invalid, "limit is 64"},
		{"a project that widens", func(r *wire.CreateRequest) {
			r.Policy = []wire.PolicyFile{said(wire.PolicyProject, "network: host")}
		}, fault.Invalid, "host's network"},
		{"rules in a workspace without confinement", func(r *wire.CreateRequest) {
			r.Tier, r.Net, r.Policy = "workspace", "rules", user("confine: off")
		}, fault.Invalid, "tier workspace cannot enforce the network rules"},
		{"rules in tier process", func(r *wire.CreateRequest) { r.Tier, r.Net = "process", "rules" }, fault.Invalid,
			"tier process"},
		{"supervised with the host's network", func(r *wire.CreateRequest) { r.Tier, r.Net = "supervised", "host" },
			fault.Invalid, "does not support the host's network"},
		{"two networks", func(r *wire.CreateRequest) {
			r.Net, r.Policy = "host", []wire.PolicyFile{said(wire.PolicyFlags, "network: {allow: [a.example]}")}
		}, fault.Invalid, "--net host conflicts with network rules"},
		{"a variable that cannot be kept",
			func(r *wire.CreateRequest) {
				r.Env = []string{"A=" + strings.Repeat("x", policy.MaxSize)}
			}, fault.Invalid, "cannot store the policy"},
	} {
		if _, err := h.makes("box", c.change); !fault.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) ||
			fault.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", c.about, err, fault.HintOf(err))
		}
	}
	h.bare = true
	rules := func(r *wire.CreateRequest) { r.Net = "rules" }
	if _, err := h.makes("box", rules); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) != "modprobe veth" {
		t.Errorf("on a host that cannot enforce rules: %v", err)
	}
	if recs, err := h.List(t.Context()); err != nil || len(recs) > 0 {
		t.Errorf("%+v, %v", recs, err)
	}
	h.bare = false
	if _, err := h.makes("box", rules); err != nil {
		t.Errorf("on a host that can enforce rules: %v", err)
	}
}

// TestTimedRules_BecomePhases checks that each phase ends when its rules expire, and that the last phase is the
// policy itself.
func TestTimedRules_BecomePhases(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	sb, err := h.makes("box", func(r *wire.CreateRequest) { r.Net = "rules" })
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d).UTC() }
	rec, err := h.DB.Sandbox(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DB.UpdateSandbox(t.Context(), rec.ID, func(r *meta.Sandbox) error {
		r.Timed = []meta.TimedRule{
			{Rule: "late.example", Until: at(2 * time.Hour)}, {Rule: "over.example", Until: at(-time.Minute)},
			{Rule: "soon.example", Until: at(time.Hour)}, {Rule: "also.example", Deny: true, Until: at(time.Hour)},
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h.run("box", "true")
	var got []string
	for _, p := range h.last().Phases {
		read, err := policy.ParseCanonical([]byte(p.Policy))
		if err != nil || policy.DigestOf([]byte(p.Policy)) != p.Digest {
			t.Fatal(err)
		}
		line := ""
		for _, r := range slices.Concat(read.Network.Allow, read.Network.Deny) {
			line += r.String() + " "
		}
		if !p.Until.IsZero() {
			line += p.Until.Sub(at(0)).String()
		}
		got = append(got, line)
	}
	if want := []string{"late.example:443 soon.example:443 also.example 1h0m0s", "late.example:443 2h0m0s",
		""}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	res, err := h.Policy(t.Context(), "box")
	if err != nil || res.Digest == sb.Policy || res.Base != sb.Policy || len(res.Timed) != 3 ||
		!res.Until.Equal(at(time.Hour)) {
		t.Errorf("%+v, %v", res, err)
	}
	f, err := h.Fork(t.Context(), "box", wire.ForkRequest{Names: []string{"fork"}})
	if err != nil || f.Sandboxes[0].Policy != sb.Policy {
		t.Fatalf("%+v, %v", f, err)
	}
	if res, err := h.Policy(t.Context(), "fork"); err != nil || res.Digest != sb.Policy || res.Timed != nil {
		t.Errorf("a fork has %+v, %v", res, err)
	}
}

// TestFork_InheritsPolicy checks that a fork without policy files has its parent's policy, and that other files are
// merged into it.
func TestFork_InheritsPolicy(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	parent, err := h.makes("box", func(r *wire.CreateRequest) {
		r.Env, r.Policy = []string{"A=1"},
			[]wire.PolicyFile{said(wire.PolicyUser, "network: {deny: [evil.example]}\nlimits: {pids: 50}")}
	})
	if err != nil {
		t.Fatal(err)
	}
	fork := func(name string, files ...wire.PolicyFile) (wire.Sandbox, error) {
		res, err := h.Fork(t.Context(), "box", wire.ForkRequest{Names: []string{name}, Policy: files})
		if err != nil {
			return wire.Sandbox{}, err
		}
		return res.Sandboxes[0], nil
	}
	if same, err := fork("same"); err != nil || same.Policy != parent.Policy || same.Limits != parent.Limits {
		t.Errorf("%+v, %v", same, err)
	}
	more, err := fork("more", said(wire.PolicyFlags, "network: {allow: [evil.example, good.example]}\nenv: {B: \"2\"}"))
	if err != nil || more.Policy == parent.Policy || more.Limits.Pids != 50 ||
		!slices.Equal(more.Env, []string{"A=1", "B=2"}) {
		t.Fatalf("%+v, %v", more, err)
	}
	res, err := h.Policy(t.Context(), "more")
	if err != nil ||
		!slices.Contains(res.Lines, wire.PolicyLine{Key: "network.deny", Value: "evil.example", From: "/p/user.yaml:2"}) ||
		!slices.Contains(res.Lines,
			wire.PolicyLine{Key: "network.allow", Value: "good.example:443", From: "/p/flags.yaml:2"}) {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := h.makes("plain", nil); err != nil {
		t.Fatal(err)
	}
	up, err := h.Fork(t.Context(), "plain",
		wire.ForkRequest{Policy: []wire.PolicyFile{said(wire.PolicyFlags, "network: {allow: [good.example]}")}})
	if err != nil || up.Sandboxes[0].Tier != "supervised" || up.Sandboxes[0].Net != "rules" {
		t.Errorf("%+v, %v", up, err)
	}
	for text, says := range map[string]string{"files: {decoys: [/x/*]}": "files.decoys",
		"limits: {disk: 1GiB}": "disk limit", "network: host": "host's network", "teir: x": "teir"} {
		if _, err := fork("none", said(wire.PolicyFlags, text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestExec_RefusesDamagedPolicy covers a stored policy whose text does not match its digest, and a policy that is
// missing.
func TestExec_RefusesDamagedPolicy(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"another one": `UPDATE policies SET text='{"version":1,"network":{"mode":"host"}}'`,
		"altered":     `UPDATE policies SET text=text||'A'`, "gone": "DELETE FROM policies",
	} {
		for _, tier := range []string{"process", "supervised"} {
			h := newHome(t)
			if _, err := h.makes("box", func(r *wire.CreateRequest) {
				if tier == tierSupervised {
					r.Policy = []wire.PolicyFile{said(wire.PolicyFlags, "tier: supervised")}
				}
			}); err != nil {
				t.Fatal(err)
			}
			damage(t, filepath.Join(h.dir, "coppice.db"), sql)
			_, err := h.Exec(t.Context(), "box", wire.ExecRequest{Cmd: []string{"true"}}, stream{strings.NewReader(""), nil})
			if !fault.Is(err, fault.Corrupt) || len(h.boxes.started) > 0 {
				t.Errorf("%s, tier %s: %v, and %d boxes started", name, tier, err, len(h.boxes.started))
			}
			if _, err := h.Policy(t.Context(), "box"); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: a damaged policy is shown: %v", name, err)
			}
		}
	}
}

func damage(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)") // the engine also writes
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

// TestStart_AcceptsRecordWithoutPolicy covers a sandbox that was recorded before policies existed: it starts, and the
// policy shown is the one that its settings amount to.
func TestStart_AcceptsRecordWithoutPolicy(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	sb, err := h.makes("box", func(r *wire.CreateRequest) {
		r.Tier, r.Net, r.Env, r.Limits = "process", "host", []string{"A=1"}, "pids=50"
	})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := h.DB.Sandbox(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.DB.UpdateSandbox(t.Context(), rec.ID,
		func(r *meta.Sandbox) error { r.Policy = ""; return nil }); err != nil {
		t.Fatal(err)
	}
	h.run("box", "true")
	if res, err := h.Policy(t.Context(), "box"); err != nil || res.Digest != sb.Policy {
		t.Errorf("%+v, %v; want %s", res, err, sb.Policy)
	}
	if st, err := h.Status(t.Context(), "box"); err != nil || st.Sandbox.Policy != sb.Policy {
		t.Errorf("%+v, %v", st, err)
	}
}
