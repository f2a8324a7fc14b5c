package policy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

var update = flag.Bool("update", false, "write the golden files anew")

// told formats an error as the command line does.
func told(err error) string {
	var b strings.Builder
	for _, p := range ProblemsOf(err) {
		fmt.Fprintln(&b, p)
		if p.Hint != "" {
			fmt.Fprintln(&b, "  hint:", p.Hint)
		}
	}
	return b.String()
}

func TestParse_RefusesBadFiles(t *testing.T) {
	t.Parallel()
	name := filepath.Join("testdata", "bad.txtar")
	a, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(a.Files); i += 2 {
		in, golden := a.Files[i], &a.Files[i+1]
		d, err := Parse(in.Name, in.Data)
		if err == nil {
			t.Errorf("%s is accepted", in.Name)
			continue
		}
		if !reflect.DeepEqual(d, Document{}) || fault.HintOf(err) == "" || len(ProblemsOf(err)) == 0 ||
			len(ProblemsOf(err)) > maxProblems {
			t.Errorf("%s: %+v, %v, hint %q", in.Name, d, err, fault.HintOf(err))
		}
		if got := told(err); *update {
			golden.Data = []byte(got)
		} else if got != string(golden.Data) {
			t.Errorf("%s: got\n%swant\n%s", in.Name, got, golden.Data)
		}
	}
	if *update {
		if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestParse_RefusesInvalidText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                                   "1:1: the file is empty",
		"version: 1\nenv: {A: \xff}\n":                       "2:10: the file is not UTF-8",
		"version: 1 # é\x00\n":                               "1:15: an invisible character, U+0000",
		"\ufeffversion: 1\n":                                 "1:1: an invisible character, U+FEFF",
		"version: 1\rtier: process\n":                        "1:11: an invisible character, U+000D",
		"version: 1 # \u0085tier: process\n":                 "1:14: an invisible character, U+0085",
		"version: 1 # \u3164\n":                              "1:14: an invisible character, U+3164",
		"version: 1 # \u2800\n":                              "1:14: an invisible character, U+2800",
		"version: 1 # \u2028tier: process\n":                 "1:14: an invisible character, U+2028",
		"v\x00e\x00r\x00":                                    "1:2: an invisible character",
		"version: 1 #" + strings.Repeat(" ", MaxSize):        "1:1: the file is larger than",
		"version: 1\nenv: {A: " + strings.Repeat("[", 20000): "2:1: invalid YAML",
	} {
		_, err := Parse("x.yaml", []byte(in))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "x.yaml:"+want) {
			t.Errorf("%.40q: %.200v; want %s", in, err, want)
		}
	}
}

func TestParse_FileWithEveryKey(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "whole.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := Parse("/w/project/coppice.yaml", text)
	if err != nil {
		t.Fatal(told(err))
	}
	got, err := d.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "whole.json", append(got, '\n'))
	var warned bytes.Buffer
	for _, w := range d.Warnings {
		fmt.Fprintln(&warned, w)
	}
	golden(t, "whole.warnings", warned.Bytes())
	again, err := Parse("/w/project/coppice.yaml", got)
	if err != nil {
		t.Fatal(told(err))
	}
	if !reflect.DeepEqual(nowhere(d), nowhere(again)) {
		t.Errorf("%s is parsed as %+v, want %+v", got, again, d)
	}
}

// golden compares got with a file of testdata, or updates it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s, %v: got\n%s", name, err, got)
	}
}

// nowhere removes all origins.
func nowhere(d Document) Document {
	d.Warnings = nil
	at := Origin{}
	paths := func(list []Said[Path]) (out []Said[Path]) {
		if list != nil {
			out = []Said[Path]{}
		}
		for _, v := range list {
			out = append(out, Said[Path]{v.Value, at})
		}
		return out
	}
	d.Hide, d.Show, d.ReadOnly, d.Writable, d.DecoyAt = paths(d.Hide), paths(d.Show), paths(d.ReadOnly), paths(d.Writable),
		paths(d.DecoyAt)
	d.Ignore = paths(d.Ignore)
	if d.Mounts != nil {
		m := []Said[Mount]{}
		for _, v := range d.Mounts {
			m = append(m, Said[Mount]{v.Value, at})
		}
		d.Mounts = m
	}
	if d.Tier != nil {
		d.Tier = &Said[Tier]{d.Tier.Value, at}
	}
	if d.MemoryFork != nil {
		d.MemoryFork = &Said[MemoryFork]{d.MemoryFork.Value, at}
	}
	if d.OnTouch != nil {
		d.OnTouch = &Said[Touch]{d.OnTouch.Value, at}
	}
	for _, b := range []**Said[bool]{&d.Strong, &d.Decoys} {
		if *b != nil {
			*b = &Said[bool]{(*b).Value, at}
		}
	}
	if d.Evidence != nil {
		v := *d.Evidence
		if v.Output != nil {
			v.Output = &Said[int64]{v.Output.Value, at}
		}
		if v.Entropy != nil {
			v.Entropy = &Said[bool]{v.Entropy.Value, at}
		}
		if v.Programs != nil {
			v.Programs = &Said[Programs]{v.Programs.Value, at}
		}
		if v.Denials != nil {
			v.Denials = &Said[FileDenials]{v.Denials.Value, at}
		}
		if v.Redact != nil {
			list := []Said[string]{}
			for _, r := range v.Redact {
				list = append(list, Said[string]{r.Value, at})
			}
			v.Redact = list
		}
		d.Evidence = &v
	}
	if d.Network != nil {
		n := d.Network.Value
		rules := func(list []Rule) (out []Rule) {
			if list != nil {
				out = []Rule{}
			}
			for _, r := range list {
				r.At = at
				out = append(out, r)
			}
			return out
		}
		n.Allow, n.Deny = rules(n.Allow), rules(n.Deny)
		if n.Presets != nil {
			p := []Said[string]{}
			for _, v := range n.Presets {
				p = append(p, Said[string]{v.Value, at})
			}
			n.Presets = p
		}
		if n.Ask != nil {
			n.Ask = &Said[bool]{n.Ask.Value, at}
		}
		d.Network = &Said[Access]{n, at}
	}
	if d.Limits != nil {
		l := map[string]Said[int64]{}
		for k, v := range d.Limits {
			l[k] = Said[int64]{v.Value, at}
		}
		d.Limits = l
	}
	if d.Env != nil {
		e := map[string]Said[string]{}
		for k, v := range d.Env {
			e[k] = Said[string]{v.Value, at}
		}
		d.Env = e
	}
	return d
}

// maybe draws nil in half of the cases.
func maybe[T any](t *rapid.T, g *rapid.Generator[T], label string) *Said[T] {
	if !rapid.Bool().Draw(t, "has "+label) {
		return nil
	}
	return &Said[T]{g.Draw(t, label), Origin{"x.yaml", rapid.IntRange(1, 3).Draw(t, "line")}}
}

// several draws nil, an empty list, or a list.
func several[T any](t *rapid.T, g *rapid.Generator[T], label string) []Said[T] {
	if !rapid.Bool().Draw(t, "has "+label) {
		return nil
	}
	list := []Said[T]{}
	for _, v := range rapid.SliceOfN(g, 0, 3).Draw(t, label) {
		list = append(list, Said[T]{v, Origin{"x.yaml", rapid.IntRange(1, 3).Draw(t, "line")}})
	}
	return list
}

func filePaths() *rapid.Generator[Path] {
	return rapid.Custom(func(t *rapid.T) Path {
		p, err := ParsePath(
			rapid.SampledFrom(
				[]string{"/etc", "/etc/x", "/etc/*", "~", "~/x", "~/x/*", "~/.ssh", "./a", "./a/b", "/w/p/a", "/w/p", "/w",
					"/w/p/é ü", "/"}).Draw(t, "path"), "/w/p")
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

// documents draws documents with all settings.
func documents() *rapid.Generator[Document] {
	return rapid.Custom(func(t *rapid.T) Document {
		d := Document{
			Name:   "x.yaml",
			Tier:   maybe(t, rapid.SampledFrom(Tiers()), "tier"),
			Strong: maybe(t, rapid.Bool(), "strong"),
			Hide:   several(t, filePaths(), "hide"), ReadOnly: several(t, filePaths(), "readonly"),
			Writable: several(t, filePaths(), "writable"),
			Show:     several(t, rapid.SampledFrom(HiddenPaths()[1].Paths[:3]), "show"),
			Mounts: several(t, rapid.Custom(func(t *rapid.T) Mount {
				to, err := insidePath(rapid.SampledFrom([]string{"/mnt", "/mnt/x", "~/x"}).Draw(t, "to"))
				if err != nil {
					t.Fatal(err)
				}
				return Mount{filePaths().Draw(t, "from"), to, rapid.Bool().Draw(t, "write")}
			}), "mounts"),
		}
		if rapid.Bool().Draw(t, "decoys") {
			d.Decoys = maybe(t, rapid.Bool(), "built-in decoys")
		} else {
			d.DecoyAt = several(t, filePaths(), "decoy")
		}
		d.Ignore = several(t, rapid.Custom(func(t *rapid.T) Path {
			text := rapid.SampledFrom([]string{"/etc/x", "~", "~/.cache", "./a", "/w/p/a/b"}).Draw(t, "path")
			p, err := ignoredPath(text, "/w/p")
			if err != nil {
				t.Fatal(err)
			}
			return p
		}), "ignored")
		d.MemoryFork = maybe(t, rapid.SampledFrom([]MemoryFork{MemoryAllow, MemoryDeny}), "fork of memory")
		d.OnTouch = maybe(t, rapid.SampledFrom([]Touch{TouchRecord, TouchStop}), "on touch")
		d.Network = maybe(t, rapid.Custom(func(t *rapid.T) Access {
			a := Access{Mode: rapid.SampledFrom([]Net{NetOff, NetHost, NetRules, NetRules, NetRules}).Draw(t, "mode")}
			if a.Mode == NetRules {
				a.Presets = several(t, rapid.SampledFrom(PresetNames()), "presets")
				a.Allow, a.Deny = rapid.SliceOfN(rules(false), 0, 3).Draw(t, "allow"),
					rapid.SliceOfN(rules(true), 0, 2).Draw(t, "deny")
				a.Ask = maybe(t, rapid.Bool(), "ask")
			}
			return a
		}), "network")
		if rapid.Bool().Draw(t, "has limits") {
			d.Limits = map[string]Said[int64]{}
			for _, l := range limits() {
				if v := maybe(t, rapid.Int64Range(1, 5), l.name); v != nil {
					if l.name == "time" {
						v.Value *= 1e9
					}
					d.Limits[l.name] = *v
				}
			}
		}
		if rapid.Bool().Draw(t, "has evidence") {
			d.Evidence = &EvidenceSaid{
				Output:   maybe(t, rapid.Int64Range(0, MaxOutput), "kept output"),
				Redact:   several(t, rapid.SampledFrom([]string{"a+", "b(c)"}), "redact"),
				Entropy:  maybe(t, rapid.Bool(), "entropy"),
				Programs: maybe(t, rapid.SampledFrom([]Programs{ProgramsAll, ProgramsSummary}), "programs"),
				Denials:  maybe(t, rapid.SampledFrom([]FileDenials{FileDenialsAuto, FileDenialsNone}), "denials"),
			}
		}
		if rapid.Bool().Draw(t, "has env") {
			d.Env = map[string]Said[string]{}
			for _, k := range []string{"A", "B_2", "_"} {
				if v := maybe(t, rapid.OneOf(rapid.String().Filter(func(s string) bool {
					return !strings.ContainsFunc(s,
						func(c rune) bool { return c == 0 || c == 0xfffd || c > 0xffff && !visible.Rune(c) })
				}), rapid.SampledFrom([]string{"", "1", "true", "~", "<&>", " x ", "é", "\u202e", "\t\r\n"})), k); v != nil {
					d.Env[k] = *v
				}
			}
		}
		return d
	})
}

// TestDocument_RoundTrips checks that the printed form of a document is parsed as the same document.
func TestDocument_RoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := documents().Draw(t, "document")
		text, err := d.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("x.yaml", text)
		if err != nil {
			t.Fatalf("%s: %s", text, told(err))
		}
		if !reflect.DeepEqual(nowhere(d), nowhere(again)) {
			t.Fatalf("%s: %+v is parsed as %+v", text, nowhere(d), nowhere(again))
		}
	})
}

func FuzzParse(f *testing.F) {
	if a, err := txtar.ParseFile(filepath.Join("testdata", "bad.txtar")); err == nil {
		for _, one := range a.Files {
			f.Add(one.Data)
		}
	}
	if whole, err := os.ReadFile(filepath.Join("testdata", "whole.yaml")); err == nil {
		f.Add(whole)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Parse("/w/x.yaml", text)
		if err != nil {
			if len(ProblemsOf(err)) == 0 || fault.HintOf(err) == "" {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		out, err := d.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("/w/x.yaml", out)
		if err != nil {
			t.Fatalf("%q is printed as %q: %v", text, out, err)
		}
		if twice, err := again.MarshalJSON(); err != nil || !bytes.Equal(out, twice) {
			t.Fatalf("%q is printed as %q, and then as %q, %v", text, out, twice, err)
		}
	})
}

func TestSecret_DetectsKnownFormats(t *testing.T) {
	t.Parallel()
	x := strings.Repeat("aB3", 20)
	for in, want := range map[string]bool{
		"sk-ant-api03-" + x: true, "sk-proj-" + x: true, "ghp_" + x: true, "github_pat_" + x: true, "glpat-" + x: true,
		"AKIA" + strings.ToUpper(x): true,
		"AIza" + x:                  true, "xoxb-" + x: true, "npm_" + x: true, "pypi-" + x: true, "hf_" + x: true,
		"sk_live_" + x: true,
		"-----BEGIN OPENSSH PRIVATE KEY-----\n" + x: true, "eyJ" + x + ".eyJ" + x + ".x": true,
		"postgres://user:word@db/x": true, "Bearer ghp_" + x: true,
		"": false, "C.UTF-8": false, "sk-": false, "https://example.com/a:b@c": false, "https://user@example.com/": false,
		"/home/u/bin:/usr/bin": false,
	} {
		if got := secret(in) != ""; got != want {
			t.Errorf("%q: %v", in, got)
		}
	}
}
