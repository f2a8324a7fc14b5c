package policy

import (
	"strings"
	"testing"
)

func TestRuntime_IsTheOwners(t *testing.T) {
	t.Parallel()
	p, err := Merge(layer(t, User, "container: {runtime: crun}"), layer(t, Flags, "container: {runtime: /opt/bin/runc}"))
	if err != nil || p.Runtime.Value != "/opt/bin/runc" {
		t.Errorf("%+v, %v", p.Runtime, err)
	}
	if _, err := Merge(layer(t, Project, "container: {runtime: /tmp/evil}")); err == nil ||
		!strings.Contains(told(err), "cannot choose a program of the host") {
		t.Errorf("a project's file chooses the runtime: %v", err)
	}
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParseCanonical(text); err != nil || again.Runtime.Value != "/opt/bin/runc" {
		t.Errorf("%s: %+v, %v", text, again.Runtime, err)
	}
}

func TestParseRuntime(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"runc", "crun-1.8", "/usr/bin/runc"} {
		if got, err := ParseRuntime(s); err != nil || got != s {
			t.Errorf("%s: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "a/b", "../runc", "-x", ".", "..", "/a/../b", "/a//b", "/", "a b", "/a\nb"} {
		if _, err := ParseRuntime(s); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
}

// TestTier_ContainerIsWeakerThanGVisor checks the order: a container has the host's kernel.
func TestTier_ContainerIsWeakerThanGVisor(t *testing.T) {
	t.Parallel()
	p, err := Merge(layer(t, User, "tier: gvisor"), layer(t, Project, "tier: container"))
	if err != nil || p.Tier.Value != GVisor {
		t.Errorf("%+v, %v", p.Tier, err)
	}
}

// TestTier_ContainerIsTheOwners checks that a project's file, which may be untrusted, does not replace another tier by
// one for which a program of the host runs, and which is not stronger.
func TestTier_ContainerIsTheOwners(t *testing.T) {
	t.Parallel()
	project := layer(t, Project, "tier: container")
	for _, text := range []string{"env: {A: b}", "tier: supervised", "tier: process"} {
		if _, err := Merge(layer(t, User, text), project); err == nil ||
			!strings.Contains(told(err), "a project's file cannot choose tier container") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, layers := range [][]Layer{
		{layer(t, User, "tier: container"), project},
		{project, layer(t, Flags, "tier: container")},
	} {
		if p, err := Merge(layers...); err != nil || p.Tier.Value != Container {
			t.Errorf("%+v, %v", p.Tier, err)
		}
	}
	if p, err := Merge(layer(t, User, "tier: container"), layer(t, Project, "tier: supervised")); err != nil ||
		p.Tier.Value != Container {
		t.Errorf("%+v, %v", p.Tier, err)
	}
	a, err := Merge(layer(t, User, "tier: supervised"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Merge(layer(t, User, "tier: container"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range [][]Change{Diff(a, b), Diff(b, a)} {
		if len(d) != 1 || d[0].Way != Other || d[0].Key != "tier" {
			t.Errorf("%+v", d)
		}
	}
}
