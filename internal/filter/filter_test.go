package filter

import (
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// some returns sandboxes of all kinds.
func some() []wire.Sandbox {
	return []wire.Sandbox{
		{Name: "api", State: wire.StateLive, Tier: "gvisor", Driver: "overlay", From: "host",
			Labels: map[string]string{"team": "web", "env": "prod"}},
		{Name: "api-1", State: wire.StateIdle, Tier: "process", Driver: "copy", From: "api@0123456789ab",
			Labels: map[string]string{"team": "web", "env": "dev"}},
		{Name: "db", State: wire.StateLive, Paused: true, Tier: "gvisor", Driver: "btrfs", From: "/srv/api@0123456789ab",
			Labels: map[string]string{"team": "data", "ci": ""}},
		{Name: "gone", State: wire.StateUnavailable, Tier: "supervised", Driver: "overlay", From: "api@x",
			Quarantine: &wire.Quarantine{Reason: "r"}},
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ terms, want string }{
		{"", "api api-1 db gone"},
		{"label=team", "api api-1 db"},
		{"label=team=web", "api api-1"},
		{"label=team=web label=team=data", "api api-1 db"},
		{"label=team=web label=env=prod", "api"},
		{"label=team=web label=ci", ""},
		{"label=ci=", "db"},
		{"label=team=", ""},
		{"label=unknown", ""},
		{"state=running", "api"},
		{"state=live", "api"},
		{"state=stopped", "api-1"},
		{"state=idle state=paused", "api-1 db"},
		{"state=unavailable", "gone"},
		{"state=quarantined", "gone"},
		{"name=api", "api"},
		{"name=api*", "api api-1"},
		{"name=?b name=g*", "db gone"},
		{"name=[a-d]*", "api api-1 db"},
		{"tier=gvisor", "api db"},
		{"tier=gvisor state=paused", "db"},
		{"driver=overlay driver=copy", "api api-1 gone"},
		{"origin=api", "api-1"},
		{"origin=/srv/api", ""},
	} {
		f, err := Parse(strings.Fields(c.terms))
		if err != nil {
			t.Errorf("%s: %v", c.terms, err)
			continue
		}
		var got []string
		for _, sb := range f.Choose(some()) {
			got = append(got, sb.Name)
		}
		if !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s: %v, want %s", c.terms, got, c.want)
		}
	}
}

func TestParse_RefusesInvalidTerms(t *testing.T) {
	t.Parallel()
	for term, want := range map[string]string{
		"":               `unknown filter key ""`,
		"status=running": `unknown filter key "status": must be label, name, state, tier, driver or origin`,
		"Label=x":        `unknown filter key "Label"`,
		"\x1b[2J=x":      `unknown filter key "\x1b[2J"`,
		"label":          `must be label=VALUE`,
		"label=":         `must be label=VALUE`,
		"label==x":       `the key is empty`,
		"label=A":        `invalid label key "A"`,
		"state=up":       `unknown state "up": must be running, paused, stopped`,
		"tier=docker":    `unknown tier "docker": must be workspace, process, supervised, container or gvisor`,
		"driver=zfs":     `unknown driver "zfs"`,
		"name=[a":        `invalid name pattern "[a"`,
	} {
		_, err := Parse([]string{"state=running", term})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
			t.Errorf("%q: %v, want %s", term, err, want)
		}
	}
}

func TestParse_RefusesTooManyTerms(t *testing.T) {
	t.Parallel()
	terms := slices.Repeat([]string{"state=running"}, limit.FilterTerms+1)
	if _, err := Parse(terms[1:]); err != nil {
		t.Error(err)
	}
	if _, err := Parse(terms); !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v, want too_large", err)
	}
}

// TestValues_AreValid checks that all completions of values and all examples in hints are valid.
func TestValues_AreValid(t *testing.T) {
	t.Parallel()
	for _, key := range Keys() {
		for _, value := range append(Values(key), example(key)) {
			if _, err := Parse([]string{key + "=" + value}); err != nil {
				t.Errorf("%s=%s: %v", key, value, err)
			}
		}
	}
}
