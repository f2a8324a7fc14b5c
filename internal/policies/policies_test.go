//go:build linux

package policies

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// fakeRecords has only the texts of policies, by digest. The key of a base is its ID.
type fakeRecords map[string]string

func (f fakeRecords) Sandbox(context.Context, string) (meta.Sandbox, error) {
	return meta.Sandbox{}, fault.New(fault.NotFound, "no sandbox exists")
}

func (f fakeRecords) Policy(_ context.Context, digest string) (string, error) {
	if text, ok := f[digest]; ok {
		return text, nil
	}
	return "", fault.New(fault.NotFound, "there is no policy %s", digest)
}

func (f fakeRecords) BaseKey(_ context.Context, base string) (string, error) { return base, nil }

// newPolicies returns a Policies, and the record of a sandbox whose policy it has.
func newPolicies(t *testing.T, text string, now time.Time) (*Policies, fakeRecords, meta.Sandbox) {
	t.Helper()
	records := fakeRecords{}
	s := New(Config{
		Records: records, Home: "/home/me/.coppice", Homes: []string{"/home/me"}, HostCopyKey: "host-copy",
		CanLimitCPU: func() error { return errors.New("no processors") },
		Now:         func() time.Time { return now }, Log: slog.New(slog.DiscardHandler),
	})
	p, _, err := Ask(wire.CreateRequest{Policy: []wire.PolicyFile{
		{Level: wire.PolicyUser, Name: "/p/user.yaml", Text: "version: 1\n" + text},
	}})
	if err != nil {
		t.Fatal(err)
	}
	rec := meta.Sandbox{ID: "0123456789ab", Name: "a"}
	rec.Tier = string(p.Tier.Value)
	if err := Pin(&rec, p); err != nil {
		t.Fatal(err)
	}
	records[rec.Policy] = rec.PolicyText
	rec.PolicyText = ""
	return s, records, rec
}

// TestConfine_RefusesADamagedPolicy checks that a damaged policy is refused in every tier, including those without a
// gate.
func TestConfine_RefusesADamagedPolicy(t *testing.T) {
	t.Parallel()
	s, records, rec := newPolicies(t, "network: {allow: [good.example]}", time.Now())
	for _, tier := range []string{"workspace", "process", "supervised", "container", "gvisor"} {
		rec.Tier = tier
		phases, err := s.Confine(t.Context(), &rec)
		if err != nil || (len(phases) == 1) != Gated(&rec) {
			t.Errorf("%s: %+v, %v", tier, phases, err)
		}
	}
	records[rec.Policy] += " "
	for _, tier := range []string{"workspace", "process", "supervised", "container", "gvisor"} {
		rec.Tier = tier
		if _, err := s.Confine(t.Context(), &rec); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", tier, err)
		}
	}
}

// TestPhases_EndWithRules checks that there is one phase for each time at which rules expire, and a last one without
// end for the policy itself.
func TestPhases_EndWithRules(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s, _, rec := newPolicies(t, "network: {allow: [good.example]}", now)
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
	rec.Timed = []meta.TimedRule{
		{Rule: "late.example", Until: at(2)}, {Rule: "over.example", Until: now},
		{Rule: "soon.example", Until: at(1)}, {Rule: "soon2.example", Until: at(1)},
	}
	all, err := s.Phases(t.Context(), &rec)
	var ends []time.Time
	for _, p := range all {
		ends = append(ends, p.Until)
	}
	if err != nil || !slices.Equal(ends, []time.Time{at(1), at(2), {}}) || all[2].Digest != rec.Policy {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestHides_DependsOnTheRoot checks that decoys are hidden as well, that built-in paths are hidden only in the host and
// its copies, and that results are cached per root.
func TestHides_DependsOnTheRoot(t *testing.T) {
	t.Parallel()
	s, records, rec := newPolicies(t, "files: {hide: [/work/key], decoys: [/work/decoy]}", time.Now())
	for range 2 {
		for base, builtIn := range map[string]bool{"": false, "image": false, "host-copy": true} {
			rec.Base = base
			c, err := s.Hides(t.Context(), &rec)
			if err != nil || !slices.Contains(c.Hide, "/work/key") || !slices.Contains(c.Decoys, "/work/decoy") ||
				(len(c.Hide) > 2) != builtIn {
				t.Errorf("base %q: %+v, %v", base, c, err)
			}
		}
		clear(records) // the results are cached
	}
	rec.Root = "/work"
	if _, err := s.Hides(t.Context(), &rec); !fault.Is(err, fault.NotFound) {
		t.Errorf("of another root: %v", err)
	}
}

func TestCheck_RefusesUnsupportedByTier(t *testing.T) {
	t.Parallel()
	for text, fits := range map[string]bool{
		"env: {A: b}": true, "files: {hide: [/work/key]}": false, "files: {readonly: [/work]}": false,
		"limits: {pids: 5}": false,
	} {
		s, _, rec := newPolicies(t, text, time.Now())
		p, err := s.Of(t.Context(), &rec)
		if err != nil {
			t.Fatal(err)
		}
		rec.Tier = "process"
		if err := s.Check(p, &rec); err != nil {
			t.Errorf("process, %s: %v", text, err)
		}
		rec.Tier = "workspace"
		if err := s.Check(p, &rec); (err == nil) != fits {
			t.Errorf("workspace, %s: %v", text, err)
		}
	}
}

// TestRunsAs_NamesUserInside checks that the daemon's user is shown as root only where it is root inside.
func TestRunsAs_NamesUserInside(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tier, user string
		daemon     uint32
		want       string
	}{
		{"container", "me", 1000, "root"},
		{"container", "me", 0, "me"},
		{"container", "root", 1000, "root"},
		{"supervised", "me", 1000, "me"},
		{"workspace", "me", 1000, "me"},
		{"process", "agent", 1000, "agent"},
	} {
		rec := &meta.Sandbox{Config: meta.Config{Tier: c.tier, User: c.user}}
		if got := RunsAs(rec, c.daemon); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
