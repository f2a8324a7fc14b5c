package policy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/coppice-dev/coppice/internal/fault"
)

// layer parses a file at a level.
func layer(t *testing.T, l Level, text string) Layer {
	t.Helper()
	name := []string{"/home/u/.config/coppice/coppice.yaml", "/w/p/coppice.yaml", "/w/flags.yaml"}[l]
	d, err := Parse(name, []byte("version: 1\n"+text))
	if err != nil {
		t.Fatal(told(err))
	}
	return Layer{l, d}
}

func canonical(t interface{ Fatal(...any) }, p Policy) string {
	text, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMerge_BuiltIn(t *testing.T) {
	t.Parallel()
	p, err := Merge()
	if err != nil {
		t.Fatal(err)
	}
	if p.Tier.Value != Process || p.Network.Mode != NetOff || p.Writable != nil || p.Limits != (Limits{}) ||
		len(p.Decoys) > 0 {
		t.Errorf("%+v", p)
	}
	if !slices.ContainsFunc(p.Hide,
		func(s Said[Path]) bool { return s.Value.String() == "~/.ssh" && s.At.String() == "built-in keys" }) {
		t.Error("~/.ssh is not hidden")
	}
}

func TestMerge_Examples(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		about                string
		user, project, flags string
		want                 []string // parts of the canonical text; "-" marks text that must be absent
		notes                []string
		err                  string
	}{
		{about: "a project raises the tier", user: "tier: process", project: "tier: gvisor",
			want: []string{`"tier":"gvisor"`}},
		{about: "and does not lower it", user: "tier: gvisor", project: "tier: process", want: []string{`"tier":"gvisor"`},
			notes: []string{"tier process is weaker than tier gvisor"}},
		{about: "nor below what is built in", project: "tier: workspace", want: []string{`"tier":"process"`},
			notes: []string{"weaker"}},
		{about: "flags lower it", user: "tier: gvisor", flags: "tier: process", want: []string{`"tier":"process"`}},
		{about: "strong stays", user: "strong: true", project: "strong: false", want: []string{`"strong":true`},
			notes: []string{"cannot disable strong"}},

		{about: "rules need supervision", project: "network: {allow: [a.example]}",
			want: []string{`"tier":"supervised"`, `"allow":["a.example:443"]`}},
		{about: "which a tier that was named cannot give", user: "tier: process", project: "network: {allow: [a.example]}",
			err: "cannot enforce the network rules"},
		{about: "rules of owner and project add up", user: "network: {allow: [a.example], deny: [c.example]}",
			project: "network: {allow: [b.example, c.example]}",
			want:    []string{`"allow":["a.example:443","b.example:443","c.example:443"]`, `"deny":["c.example"]`}},
		{about: "a project's rules are nothing where the network is off", user: "network: off",
			project: "network: {allow: [b.example]}", want: []string{`"network":"off"`}, notes: []string{"cannot enable the network"}},
		{about: "and flags bring back the owner's alone", user: "network: off", project: "network: {allow: [b.example]}",
			flags: "network: {allow: [f.example]}", want: []string{`"allow":["f.example:443"]`},
			notes: []string{"cannot enable the network"}},
		{about: "a project turns the network off", user: "network: {allow: [a.example]}", project: "network: off",
			want: []string{`"network":"off"`}},
		{about: "rules for nothing", user: "network: {}", want: []string{`"network":{"ask":false}`, `"tier":"supervised"`}},
		{about: "the host's network", user: "network: host", want: []string{`"network":"host"`, `"tier":"process"`}},
		{about: "a project makes rules of it", user: "network: host", project: "network: {allow: [a.example]}",
			want: []string{`"allow":["a.example:443"]`}},
		{about: "a project cannot take it", project: "network: host", err: "cannot use the host's network"},
		{about: "nor with rules that deny", user: "network: {deny: [a.example]}", flags: "network: host",
			err: "cannot be filtered"},
		{about: "nor in a stronger tier", flags: "network: host\ntier: gvisor", err: "does not support the host's network"},
		{about: "a project has nobody asked", project: "network: {ask: true}", err: "cannot request approvals"},
		{about: "and may have nobody asked", user: "network: {ask: true}", project: "network: {ask: false}",
			want: []string{`"ask":false`}},
		{about: "a project allows no address of a private network", project: "network: {allow: ['10.0.0.0/8:22']}",
			err: "cannot allow 10.0.0.0/8, which leads to a private address"},
		{about: "nor metadata", project: "network: {allow: ['169.254.169.254:80']}",
			err: "which leads to a cloud metadata address"},
		{about: "nor this machine in another form", project: "network: {allow: ['[64:ff9b::7f00:1]:80']}",
			err: "which leads to a loopback address"},
		{about: "nor lets a host lead there", project: "network: {allow: ['mirror.example:443,private']}",
			err: "a project's file cannot let mirror.example lead to private addresses"},
		{about: "nor in a mapping", project: "network: {allow: [{host: '*.example', private: true}]}",
			err: "a project's file cannot let *.example lead to private addresses"},
		{about: "its own rule widens no rule of the owner's", user: "network: {allow: ['a.example:443']}",
			project: "network: {allow: [{host: a.example, private: false}]}", want: []string{`"allow":["a.example:443"]`}},
		{about: "an owner lets a host lead there", user: "network: {allow: [{host: a.example, private: true}]}",
			project: "network: {allow: [a.example]}", want: []string{`"allow":["a.example:443","a.example:443,private"]`}},
		{about: "and a rule for everything names none of them", project: "network: {allow: ['0.0.0.0/0:80']}",
			want: []string{`"allow":["0.0.0.0/0:80"]`}},
		{about: "an owner does", user: "network: {allow: ['10.0.0.0/8:22']}", want: []string{`"allow":["10.0.0.0/8:22"]`}},
		{about: "presets become rules", project: "network: {presets: [npm]}",
			want: []string{`"allow":["registry.npmjs.org:443"]`, `-presets`}},

		{about: "hidden paths add up", user: "files: {hide: [~/a]}", project: "files: {hide: [./b, /c]}",
			want: []string{`"~/a"`, `"/w/p/b"`, `"/c"`, `"~/.ssh"`}},
		{about: "the owner shows one", user: "files: {show: [~/.ssh]}", want: []string{`-"~/.ssh"`}},
		{about: "but not what a project hides", user: "files: {show: [~/.ssh]}", project: "files: {hide: [~/.ssh]}",
			want: []string{`"~/.ssh"`}},
		{about: "a project shows none", project: "files: {show: [~/.ssh]}", err: "a project's file cannot show ~/.ssh"},
		{about: "what is not hidden is not shown", user: "files: {show: [~/.shs]}",
			err: "~/.shs is not a built-in hidden path"},
		{about: "a part of what is hidden is not shown", user: "files: {show: [~/.ssh/config]}",
			err: "~/.ssh/config is not a built-in hidden path"},
		{about: "decoys", user: "files: {decoys: true}", project: "files: {decoys: false}",
			want: []string{`"decoys":["~/.aws/credentials",`, `"~/.aws"`, "-on_touch"}, notes: []string{"cannot disable decoys"}},
		{about: "no decoy in what is shown", user: "files: {decoys: true, show: [~/.aws]}",
			want: []string{`"~/.pypirc"`, `-"~/.aws/credentials"`}},
		{about: "a project has a touched decoy stop", user: "files: {on_touch: record}", project: "files: {on_touch: stop}",
			want: []string{`"on_touch":"stop"`}},
		{about: "but not go on", user: "files: {on_touch: stop}", project: "files: {on_touch: record}",
			want: []string{`"on_touch":"stop"`}, notes: []string{"stop is required"}},
		{about: "a project denies forks with memory", user: "memory: {fork: allow}", project: "memory: {fork: deny}",
			want: []string{`"memory":{"fork":"deny"}`}},
		{about: "and cannot allow them", user: "memory: {fork: deny}", project: "memory: {fork: allow}",
			want: []string{`"memory":{"fork":"deny"}`}, notes: []string{"cannot allow forks with memory"}},
		{about: "which is the default", flags: "memory: {fork: allow}", want: []string{"-memory"}},
		{about: "flags do", user: "files: {on_touch: stop}", flags: "files: {on_touch: record}", want: []string{"-on_touch"}},
		{about: "a decoy is hidden", project: "files: {decoys: [./key]}",
			want: []string{`"decoys":["/w/p/key"]`, `"hide":["/etc/NetworkManager/system-connections"`}},
		{about: "an empty list is nothing", user: "files: {writable: []}", want: []string{`"writable":[]`}},
		{about: "no list is as the base has it", user: "files: {hide: []}", want: []string{"-writable"}},
		{about: "a project narrows", user: "files: {writable: [/w, ~/x]}", project: "files: {writable: [., /etc]}",
			want: []string{`"writable":["/w/p"]`}, notes: []string{"cannot make /etc writable"}},
		{about: "to nothing", user: "files: {writable: [~/x]}", project: "files: {writable: []}",
			want: []string{`"writable":[]`}},
		{about: "flags set", user: "files: {writable: []}", flags: "files: {writable: [/tmp]}",
			want: []string{`"writable":["/tmp"]`}},
		{about: "read-only wins", user: "files: {readonly: [/w/*]}", project: "files: {writable: [./build]}",
			want: []string{`"writable":[]`}, notes: []string{"cannot make /w/p/build writable: read-only"}},

		{about: "a mount of a project", project: "files: {mounts: [{from: ./data, to: /mnt}]}",
			want: []string{`{"from":"/w/p/data","mode":"ro","to":"/mnt"}`}},
		{about: "of what is not its own", project: "files: {mounts: [{from: ~/x, to: /mnt}]}",
			err: "which is outside the project"},
		{about: "of what only begins like its own", project: "files: {mounts: [{from: /w/pp, to: /mnt}]}",
			err: "which is outside the project"},
		{about: "of what is hidden", user: "files: {mounts: [{from: ~/.ssh/x, to: /mnt}]}",
			err: "cannot mount ~/.ssh/x: hidden by built-in keys"},
		{about: "of what is hidden and shown", user: "files: {mounts: [{from: ~/.ssh/x, to: /mnt}], show: [~/.ssh]}",
			want: []string{`"from":"~/.ssh/x"`}},
		{about: "what is hidden stays so in another place", user: `files: {mounts: [{from: "~", to: /mnt}]}`,
			want: []string{`"/mnt/.ssh"`, `"/mnt/.config/gh"`}},
		{about: "a project writes to the host", project: "files: {mounts: [{from: ./data, to: /mnt, mode: rw}]}",
			err: "of the host writable"},
		{about: "of what is hidden, spelled otherwise", user: "files: {mounts: [{from: /home/u/.ssh, to: /mnt}]}",
			err: "cannot mount /home/u/.ssh: hidden by built-in keys"},
		{about: "of what is around the home", user: "files: {mounts: [{from: /home, to: /mnt}]}",
			want: []string{`"/mnt/u/.ssh"`, `"/mnt/u/.config/gh"`}},
		{about: "of everything", user: "files: {mounts: [{from: /, to: /mnt}]}",
			want: []string{`"/mnt/home/u/.ssh"`, `"/mnt/etc/shadow"`}},
		{about: "read-only wins, spelled otherwise", user: "files: {readonly: [~/a], writable: [/home/u/a/b]}",
			want: []string{`"writable":[]`}, notes: []string{"cannot make /home/u/a/b writable: read-only"}},
		{about: "two at one place", user: "files: {mounts: [{from: ~/a, to: /mnt}]}",
			flags: "files: {mounts: [{from: ~/b, to: /mnt}]}", err: "/mnt is already mounted at ~/a"},
		{about: "read-only wins over a mount", user: "files: {readonly: [~/a], mounts: [{from: ~/a/b, to: /mnt, mode: rw}]}",
			want: []string{`"mode":"ro"`}, notes: []string{"cannot make ~/a/b writable: read-only"}},

		{about: "the smaller limit", user: "limits: {memory: 2GiB, pids: 5}",
			project: "limits: {memory: 4GiB, pids: 3, cpus: 2}", want: []string{`"limits":{"cpus":2,"memory":"2GiB","pids":3}`},
			notes: []string{"cannot raise memory"}},
		{about: "flags set limits", user: "limits: {memory: 2GiB}", flags: "limits: {memory: 4GiB}",
			want: []string{`"memory":"4GiB"`}},
		{about: "variables", user: "env: {A: u, B: u}", project: "env: {B: p, C: p}", flags: "env: {C: f}",
			want: []string{`"env":{"A":"u","B":"p","C":"f"}`}},
	} {
		var layers []Layer
		for l, text := range []string{c.user, c.project, c.flags} {
			if text != "" {
				layers = append(layers, layer(t, Level(l), text))
			}
		}
		p, err := MergeAt("/home/u", layers...)
		if c.err != "" {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.err) || len(ProblemsOf(err)) == 0 ||
				fault.HintOf(err) == "" {
				t.Errorf("%s: %v, want %s", c.about, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.about, err)
			continue
		}
		text := canonical(t, p)
		for _, w := range c.want {
			without, no := strings.CutPrefix(w, "-")
			if strings.Contains(text, without) == no {
				t.Errorf("%s: %s in\n%s", c.about, w, text)
			}
		}
		var notes []string
		for _, n := range p.Notes {
			notes = append(notes, n.String())
		}
		if len(notes) != len(c.notes) || !slices.EqualFunc(notes, c.notes, strings.Contains) {
			t.Errorf("%s: notes %q, want %q", c.about, notes, c.notes)
		}
	}
}

func TestMerge_RefusesConflictWithinLevel(t *testing.T) {
	t.Parallel()
	_, err := Merge(layer(t, Flags, "env: {A: x}"), layer(t, Flags, "env: {A: y}"))
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "A has a different value") {
		t.Error(err)
	}
	if _, err := Merge(Layer{Level: 7}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

// layersOf draws documents at levels.
func layersOf(t *rapid.T, most int) []Layer {
	var layers []Layer
	for _, l := range rapid.SliceOfN(rapid.SampledFrom([]Level{User, Project, Flags}), 0, most).Draw(t, "levels") {
		d := documents().Draw(t, "document")
		if l == Project {
			tame(&d)
		}
		for i := range d.Mounts {
			d.Mounts[i].Value.To = Path{fmt.Sprintf("/m%d/%d", len(layers), i)} // unique: two at one path are refused
		}
		d.Mounts = slices.DeleteFunc(d.Mounts, func(s Said[Mount]) bool { return strings.HasSuffix(s.Value.From.text, "*") })
		layers = append(layers, Layer{l, d})
	}
	return layers
}

// tame removes from a document what a project's file may not contain.
func tame(d *Document) {
	d.Name, d.Show, d.Mounts = "/w/p/coppice.yaml", nil, nil
	if d.Network == nil {
		return
	}
	d.Network.Value.Allow = slices.DeleteFunc(d.Network.Value.Allow, func(r Rule) bool {
		in, _, ok := guarded(r.Net.Addr())
		return ok && r.Net.Bits() >= in.Bits() || r.Private
	})
	if d.Network.Value.Mode == NetHost {
		d.Network = nil
	} else if ask := d.Network.Value.Ask; ask != nil && ask.Value {
		d.Network.Value.Ask = nil
	}
}

// TestMerge_IsAssociativeAndCommutative checks that neither the order of layers matters, nor whether those of one level
// were merged before.
func TestMerge_IsAssociativeAndCommutative(t *testing.T) {
	t.Parallel()
	tried, merged := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tried++
		layers := layersOf(t, 4)
		p, err := Merge(layers...)
		again, aerr := Merge(rapid.Permutation(layers).Draw(t, "order")...)
		if (err == nil) != (aerr == nil) {
			t.Fatalf("%v, but in another order %v", err, aerr)
		}
		// Join adjacent layers of one level.
		for i := 0; i+1 < len(layers); i++ {
			if layers[i].Level != layers[i+1].Level {
				continue
			}
			joined := slices.Clone(layers)
			joined[i].Document = join(layers[i].Document, layers[i+1].Document)
			joined = slices.Delete(joined, i+1, i+2)
			j, jerr := Merge(joined...)
			if err == nil && (jerr != nil || canonical(t, j) != canonical(t, p)) {
				t.Fatalf("%s, but if joined before: %v %s", canonical(t, p), jerr, canonical(t, j))
			}
		}
		if err != nil {
			return
		}
		merged++
		if canonical(t, p) != canonical(t, again) {
			t.Fatalf("%s, but in another order %s", canonical(t, p), canonical(t, again))
		}
		a, err := p.Digest()
		b, berr := again.Digest()
		if err != nil || berr != nil || a != b || !strings.HasPrefix(a, "sha256:") {
			t.Fatalf("%s %v, %s %v", a, err, b, berr)
		}
		// The canonical text is also a file, with the same canonical text.
		text := canonical(t, p)
		d, err := Parse("/x.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%s: %s", text, told(err))
		}
		if out, err := d.MarshalJSON(); err != nil || !bytes.Equal(out, []byte(text)) {
			t.Fatalf("%s is printed as %s, %v", text, out, err)
		}
	})
	if merged < tried/5 {
		t.Errorf("only %d of %d were policies", merged, tried)
	}
}

// TestMerge_ProjectOnlyTightens checks that a project's file only tightens the user's policy, except that it can allow
// hosts that are not denied.
func TestMerge_ProjectOnlyTightens(t *testing.T) {
	t.Parallel()
	tried, both := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		tried++
		var owner []Layer
		for _, l := range layersOf(t, 3) {
			if l.Level != Project {
				owner = append(owner, l)
			}
		}
		project := documents().Draw(t, "project")
		project.Name = "/w/p/coppice.yaml"
		if rapid.IntRange(0, 3).Draw(t, "tame") > 0 { // most others are refused, and test nothing
			tame(&project)
		}
		before, err := Merge(owner...)
		if err != nil {
			return
		}
		after, err := Merge(append(slices.Clone(owner), Layer{Project, project})...)
		if err != nil {
			return
		}
		both++
		switch {
		case after.Tier.Value.rank() < before.Tier.Value.rank() && before.Network.Mode != NetRules:
			t.Fatalf("tier %s, with the project %s", before.Tier.Value, after.Tier.Value)
		case before.Strong.Value && !after.Strong.Value:
			t.Fatal("no longer strong")
		case after.Network.Mode == NetHost && before.Network.Mode != NetHost:
			t.Fatal("the host's network")
		case after.Network.Ask && !before.Network.Ask:
			t.Fatal("approvals are requested")
		}
		if !slices.Equal(texts(before.Ignore), texts(after.Ignore)) {
			t.Fatalf("the history is without %s, and with the project without %s", texts(before.Ignore), texts(after.Ignore))
		}
		for what, lists := range map[string][2][]Said[Path]{"hidden": {before.Hide, after.Hide},
			"read-only": {before.ReadOnly, after.ReadOnly}} {
			for _, s := range lists[0] {
				if !slices.ContainsFunc(lists[1], func(o Said[Path]) bool { return o.Value == s.Value }) {
					t.Fatalf("%s is no longer %s", s.Value, what)
				}
			}
		}
		if before.Writable != nil {
			if after.Writable == nil {
				t.Fatal("everything is writable")
			}
			for _, s := range after.Writable {
				if (&merger{}).covering(before.Writable, s.Value) == nil {
					t.Fatalf("%s is writable", s.Value)
				}
			}
		}
		for _, m := range after.Mounts {
			if m.Value.Write && !slices.ContainsFunc(before.Mounts, func(o Said[Mount]) bool { return o.Value == m.Value }) {
				t.Fatalf("%s is mounted writable", m.Value.From)
			}
		}
		for _, l := range limits() {
			was, is := *l.in(&before.Limits), *l.in(&after.Limits)
			if was != 0 && (is == 0 || is > was) {
				t.Fatalf("%s was raised from %d to %d", l.name, was, is)
			}
		}
		q := requests().Draw(t, "request")
		if d := after.Network.Decide(q); d.Private && !before.Network.Decide(q).passes() {
			t.Fatalf("%s at %s passes: %+v", q, q.Addr, d)
		}
		if d := after.Network.Decide(q); d.passes() && before.Network.Mode == NetRules {
			for _, r := range before.Network.Deny {
				if r.covers(q) && !r.conditional() {
					t.Fatalf("%s passes although %s denies it", q, r)
				}
			}
		}
	})
	if both < tried/10 {
		t.Errorf("only %d of %d were policies", both, tried)
	}
}

func TestDigest_IgnoresOrigin(t *testing.T) {
	t.Parallel()
	digest := func(text string) string {
		p, err := Merge(layer(t, User, text))
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	same := digest("network: {allow: [a.example, b.example]}\nlimits: {memory: 1GiB}")
	if got := digest(
		"\n\nlimits: {memory: 1024MiB}\nnetwork:\n  allow:\n    - b.example:443\n    - {host: " +
			"A.example., ports: [443]}\n    - a.example"); got != same {
		t.Error("equal policies have different digests")
	}
	for _, other := range []string{"network: {allow: [a.example, b.example]}",
		"network: {allow: [a.example, b.example:80]}\nlimits: {memory: 1GiB}",
		"network: {allow: [a.example, b.example]}\nlimits: {memory: 1GiB}\nenv: {A: x}"} {
		if digest(other) == same {
			t.Errorf("%s has the same digest", other)
		}
	}
}

// TestMerge_StricterWinsWithinLevel checks that the stricter value wins within a level, in any order of the files.
func TestMerge_StricterWinsWithinLevel(t *testing.T) {
	t.Parallel()
	a := layer(t, User,
		"tier: supervised\nstrong: true\nnetwork: {allow: [a.example], ask: true}\nlimits: {pids: 5, files: 9}\nfiles: "+
			"{decoys: true, on_touch: stop}")
	b := layer(t, User,
		"tier: gvisor\nstrong: false\nnetwork: {allow: [b.example], ask: false}\nlimits: {pids: 7, files: 3}\nfiles: "+
			"{decoys: false, on_touch: record}")
	for _, layers := range [][]Layer{{a, b}, {b, a}} {
		p, err := Merge(layers...)
		if err != nil {
			t.Fatal(err)
		}
		if p.Tier.Value != GVisor || !p.Strong.Value || p.Network.Ask || len(p.Network.Allow) != 2 || p.Limits.PIDs != 5 ||
			p.Limits.OpenFiles != 3 || len(p.Decoys) == 0 || p.OnTouch.Value != TouchStop {
			t.Errorf("%s", canonical(t, p))
		}
	}
	for _, c := range []struct {
		a, b string
		want Net
	}{{"off", "host", NetOff}, {"host", "{}", NetRules}, {"{}", "off", NetOff}} {
		for _, two := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			p, err := Merge(layer(t, Flags, "network: "+two[0]), layer(t, Flags, "network: "+two[1]))
			if err != nil || p.Network.Mode != c.want {
				t.Errorf("%s: %s, %v", two, p.Network.Mode, err)
			}
		}
	}
}

// TestMerge_RootProjectMountsNothing checks that a project at the root of the file system must not mount all of it.
func TestMerge_RootProjectMountsNothing(t *testing.T) {
	t.Parallel()
	d, err := Parse("/coppice.yaml", []byte("version: 1\nfiles: {mounts: [{from: ./srv, to: /mnt}]}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Merge(Layer{Project, d}); !fault.Is(err, fault.Invalid) {
		t.Errorf("mounting /srv is allowed: %v", err)
	}
}
