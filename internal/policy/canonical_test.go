package policy

import (
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestCanonical_RoundTrips checks that a policy read from its canonical text is the same, with the same decisions and
// description, and that a modified text is refused.
func TestCanonical_RoundTrips(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "tier: workspace", "network: host", "network: {}",
		"network: {presets: [pypi, npm, debian], deny: [a.example, 192.0.2.0/24], ask: true}",
		"network: {allow: [{host: a.example, methods: [GET], paths: [/x/*], query: {q: \"*\"}, max_request: 1MiB, " +
			"max_bytes: 1GiB, rate: 10/s, name: n}, \"udp://192.0.2.1:123\"]}",
		"limits: {memory: 1GiB, cpus: 1.5, time: 30m, output: 1MiB, files: 7, pids: 5, disk: 1TiB}\nenv: {A: \"x\\ny\", " +
			"B: \"\"}",
		"strong: true\nfiles: {hide: [./a], show: [~/.ssh], readonly: [/usr], writable: [], decoys: true, mounts: [{from: " +
			"/srv, to: /mnt/x, mode: rw}]}",
	} {
		p, err := Merge(layer(t, Flags, text))
		if err != nil {
			t.Fatalf("%s: %v", text, told(err))
		}
		kept := canonical(t, p)
		got, err := ParseCanonical([]byte(kept))
		if err != nil {
			t.Fatalf("%s: %v", text, told(err))
		}
		if len(Diff(p, got)) > 0 || canonical(t, got) != kept || got.Network.Mode != p.Network.Mode {
			t.Errorf("%s: stored as %s, but read as %s", text, kept, canonical(t, got))
		}
		for i, line := range Explain(got) {
			if line.Key == "" || i == 0 && line.From != pinned {
				t.Errorf("%s: line %+v", text, line)
			}
		}
		again, err := Merge(got.Layer(User))
		if err != nil || !strings.Contains(text, "show") && canonical(t, again) != kept {
			t.Errorf("%s: merged alone, it is %v, %v", text, again, err)
		}
		for _, touched := range []string{kept + " ", strings.Replace(kept, `"version":1`, `"version": 1`, 1),
			strings.Replace(kept, `"tier"`, `"teir"`, 1), `{"version":1}`, kept[:len(kept)-1], ""} {
			if _, err := ParseCanonical([]byte(touched)); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%q is accepted: %v", touched, err)
			}
		}
	}
}

// TestWith_AddsRules checks that With allows and denies more than Merge did, that deny wins, and that a rule that
// cannot be enforced is refused.
func TestWith_AddsRules(t *testing.T) {
	t.Parallel()
	rule := func(s string, denies bool) Rule {
		r, err := ParseRule(s, denies)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	decided := func(p Policy, host string) Verdict {
		q, err := ParseRequest(host)
		if err != nil {
			t.Fatal(err)
		}
		return p.Network.Decide(q).Verdict
	}
	for _, c := range []struct{ flags, a, b string }{
		{"tier: supervised", "allow", "deny"}, {"network: {allow: [b.example]}", "allow", "allow"},
		{"network: {deny: [a.example]}", "deny", "deny"},
	} {
		p, err := Merge(layer(t, Flags, c.flags))
		if err != nil {
			t.Fatal(err)
		}
		before := canonical(t, p)
		more, err := p.With(rule("a.example", false), rule("*.b.example", true))
		if err != nil || string(decided(more, "a.example")) != c.a || string(decided(more, "b.example")) != c.b ||
			decided(more, "x.b.example") != Deny {
			t.Errorf("%s: %s, %v", c.flags, canonical(t, more), err)
		}
		if canonical(t, p) != before {
			t.Errorf("%s: the policy itself has changed", c.flags)
		}
		if _, err := ParseCanonical([]byte(canonical(t, more))); err != nil {
			t.Error(err)
		}
	}
	for _, flags := range []string{"network: host", "tier: process", "tier: workspace\nconfine: off"} {
		p, err := Merge(layer(t, Flags, flags))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.With(rule("a.example", false)); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", flags, err)
		}
		if same, err := p.With(); err != nil || canonical(t, same) != canonical(t, p) {
			t.Errorf("%s without more rules: %v", flags, err)
		}
	}
	off, err := Merge(layer(t, Flags, "tier: supervised"))
	if err != nil {
		t.Fatal(err)
	}
	if still, err := off.With(rule("a.example", true)); err != nil || still.Network.Mode != NetOff {
		t.Errorf("a deny rule turned the network on: %+v, %v", still.Network, err)
	}
}

// TestUnenforced checks that exactly the settings that cannot be enforced are reported, each with its origin.
func TestUnenforced(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "tier: supervised": "", "tier: gvisor": "", "network: host": "", "tier: workspace": "",
		"network: {ask: true}": "",
		"network: {presets: [pypi], allow: [{host: a.example, max_bytes: 1GiB}], deny: [b.example]}": "",
		"network: {allow: [{host: a.example, methods: [GET], paths: [/], query: {}, max_request: 1, rate: 1/s}], deny: " +
			"[{host: a.example, methods: [DELETE]}]}": "",
		"strong: true\nlimits: {memory: 1GiB, cpus: 1.5, pids: 5, disk: 1GiB, time: 30m, output: 1MiB, files: 10}\nenv: " +
			"{A: b}\nfiles: {show: [~/.ssh]}": "",

		"tier: container\ncontainer: {runtime: crun}": "",
		"tier: microvm":                         "/w/flags.yaml:2: tier",
		"files: {hide: [/proc/x]}":              "/w/flags.yaml:2: files.hide",
		"files: {hide: [/]}":                    "/w/flags.yaml:2: files.hide",
		"files: {hide: [./a, ~/x/*, /proceed]}": "",
		"files: {readonly: [/a], writable: [/b], mounts: [{from: /srv, to: /mnt/x}]}": "",
		"files: {writable: []}":                      "",
		"files: {decoys: [/a, ./b], on_touch: stop}": "", "memory: {fork: deny}": "",
		"files: {decoys: true, on_touch: record}": "",
		"files: {decoys: [/a/*]}":                 "/w/flags.yaml:2: files.decoys",
		"files: {decoys: [/proc/x]}":              "/w/flags.yaml:2: files.decoys",
	} {
		p, err := Merge(layer(t, Flags, text))
		if err != nil {
			t.Fatalf("%s: %v", text, told(err))
		}
		got := p.Unenforced()
		_, err = p.Enforceable()
		switch {
		case want == "" && (len(got) > 0 || err != nil):
			t.Errorf("%s: %v, %v; want nothing", text, got, err)
		case want == "":
		case len(got) == 0 || !strings.Contains(got.Error(), want) || got[0].Hint != unenforcedHint:
			t.Errorf("%s: %v, want %q", text, got, want)
		case !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), want) || fault.HintOf(err) != unenforcedHint:
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestInspects(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false, "network: host": false, "network: {allow: [a.example], deny: [b.example]}": false,
		"network: {allow: [{host: a.example, max_bytes: 1}]}":   false,
		"network: {allow: [{host: a.example, methods: [GET]}]}": true,
		"network: {allow: [{host: a.example, rate: 1/s}]}":      true,
		"network: {deny: [{host: a.example, paths: [/x]}]}":     true, "network: {presets: [golang]}": true,
		"network: {presets: [pypi]}": false,
	} {
		p, err := Merge(layer(t, Flags, text))
		if err != nil {
			t.Fatalf("%s: %v", text, told(err))
		}
		if got := p.Network.Inspects(); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func BenchmarkKeep(b *testing.B) {
	for b.Loop() {
		p, err := Merge()
		if err != nil {
			b.Fatal(err)
		}
		text, err := p.Canonical()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := ParseCanonical(text); err != nil {
			b.Fatal(err)
		}
	}
}
