package policy

import (
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestOrigins_AreKeptBesidePolicy checks that a stored policy names the source of each rule as after the merge, and
// that its digest does not depend on sources.
func TestOrigins_AreKeptBesidePolicy(t *testing.T) {
	t.Parallel()
	p, err := Merge(
		layer(t, User,
			"strong: true\nfiles: {hide: [/private], readonly: [/a]}\nnetwork: {presets: [pypi], deny: "+
				"[evil.example]}\nlimits: {memory: 1GiB}\nenv: {A: x}"),
		layer(t, Project,
			"network:\n  allow:\n    - one.example\n    - {name: items, host: two.example, methods: [GET]}\nlimits: {pids: 5}"),
	)
	if err != nil {
		t.Fatal(told(err))
	}
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	origins, err := p.Origins()
	if err != nil {
		t.Fatal(err)
	}
	bare, err := ParseCanonical(text)
	if err != nil {
		t.Fatal(err)
	}
	read, err := bare.Placed(origins)
	if err != nil {
		t.Fatal(err)
	}
	p.Notes = nil
	if want, got := Explain(p), Explain(read); !reflect.DeepEqual(want, got) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if again, err := read.Origins(); err != nil || again != origins {
		t.Errorf("%s, %v", again, err)
	}
	if was, err := bare.Origins(); err != nil || was != "" {
		t.Errorf("of a policy without known origins: %s, %v", was, err)
	}
	if again, err := read.Canonical(); err != nil || string(again) != string(text) {
		t.Errorf("%s, %v", again, err)
	}
	if strings.Contains(origins, "~/.ssh") {
		t.Error("built-in settings are encoded too")
	}
	for _, bad := range []string{"{", "[1]", "x"} {
		if got, err := bare.Placed(bad); !fault.Is(err, fault.Corrupt) || !reflect.DeepEqual(got, bare) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := bare.Placed(`[{"at":"x","said":["network.allow no.example","limits.none","nothing"]}]`); err != nil {
		t.Error(err)
	}
}

func TestWithout_RemovesRule(t *testing.T) {
	t.Parallel()
	p, err := Merge(layer(t, Flags, `network:
  allow:
    - one.example
    - "one.example:80"
    - {name: items, host: two.example, methods: [GET]}
    - {host: three.example, methods: [GET]}
    - {host: three.example, methods: [PUT]}
    - {host: four.example, methods: [GET]}
    - 10.0.0.0/8:5432
  deny: [one.example, 10.1.0.0/16]`))
	if err != nil {
		t.Fatal(told(err))
	}
	before := p.Network
	for _, c := range []struct {
		text string
		deny bool
		gone string
		kind fault.Kind
	}{
		{"one.example", false, "one.example:443", ""},
		{"ONE.example.:443", false, "one.example:443", ""},
		{"one.example:80", false, "one.example:80", ""},
		{"one.example", true, "one.example", ""},
		{"one.example:443", true, "", fault.NotFound},
		{"items", false, "two.example", ""},
		{"two.example", false, "two.example", ""},
		{`{"host":"four.example","protocol":"tcp","ports":[443],"methods":["GET"]}`, false, "four.example", ""},
		{"four.example", false, "four.example", ""},
		{"three.example", false, "", fault.Conflict},
		{"10.0.0.0/8:5432", false, "10.0.0.0/8:5432", ""},
		{"10.1.0.0/16", true, "10.1.0.0/16", ""},
		{"10.1.2.3/16", true, "", fault.NotFound},
		{"10.1.0.0/16", false, "", fault.NotFound},
		{"five.example", false, "", fault.NotFound},
		{"", false, "", fault.NotFound},
		{"*", false, "", fault.NotFound},
	} {
		allow, deny := []string{c.text}, []string(nil)
		if c.deny {
			allow, deny = deny, allow
		}
		got, removed, err := p.Without(allow, deny)
		if fault.KindOf(err) != c.kind || err != nil {
			if fault.KindOf(err) != c.kind || fault.HintOf(err) == "" {
				t.Errorf("%q: %v", c.text, err)
			}
			continue
		}
		if len(removed) != 1 || !strings.Contains(removed[0].String(), c.gone) || removed[0].Denies != c.deny ||
			len(got.Network.Allow)+len(got.Network.Deny) != len(before.Allow)+len(before.Deny)-1 {
			t.Errorf("%q: %v", c.text, removed)
		}
		if d, err := got.Digest(); err != nil || d == "" || reflect.DeepEqual(got.Network, before) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	if !reflect.DeepEqual(p.Network, before) {
		t.Error("the policy itself has changed")
	}
	if _, _, err := p.Without([]string{"one.example", "one.example"}, nil); !fault.Is(err, fault.NotFound) {
		t.Errorf("twice: %v", err)
	}
	none, _, err := p.Without([]string{"one.example", "one.example:80", "items"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := none.Canonical()
	if err == nil {
		_, err = ParseCanonical(text)
	}
	if err != nil {
		t.Errorf("the remaining policy cannot be stored: %v", err)
	}
}

func BenchmarkOrigins(b *testing.B) {
	p, err := Merge()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := p.Origins(); err != nil {
			b.Fatal(err)
		}
	}
}
