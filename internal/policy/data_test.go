package policy

import (
	"slices"
	"strings"
	"testing"
)

// TestBuiltInData_IsValid checks that the embedded files can be parsed like any other, and are sorted without
// duplicates.
func TestBuiltInData_IsValid(t *testing.T) {
	t.Parallel()
	d := builtIn()
	for _, p := range d.problems {
		t.Error(p)
	}
	if len(d.presets) < 15 || len(d.hidden) < 8 {
		t.Fatalf("only %d presets and %d groups of hidden paths", len(d.presets), len(d.hidden))
	}
	if !slices.IsSorted(PresetNames()) || len(slices.Compact(PresetNames())) != len(d.presets) {
		t.Errorf("the presets are not sorted, or not unique: %v", PresetNames())
	}
	at := map[string]string{}
	for _, p := range d.presets {
		var texts []string
		for _, r := range p.Rules {
			if r.Net.IsValid() || r.Protocol != TCP || r.MaxBytes != 0 || r.limited() {
				t.Errorf("%s: %s names more than hosts", p.Name, r)
			}
			if other := at[r.String()]; other != "" {
				t.Errorf("%s is in %s and in %s", r, other, p.Name)
			}
			at[r.String()] = p.Name
			texts = append(texts, r.Host.String())
		}
		if !slices.IsSorted(texts) {
			t.Errorf("%s: the rules are not sorted: %q", p.Name, texts)
		}
	}
	for _, want := range strings.Fields(
		"pypi npm debian ubuntu golang github gitlab crates rubygems maven dockerhub huggingface anthropic openai " +
			"google-ai") {
		if !slices.Contains(PresetNames(), want) {
			t.Errorf("preset %s not found", want)
		}
	}
}

func TestHiddenPaths_AreSortedAndUnique(t *testing.T) {
	t.Parallel()
	var all []Path
	last := ""
	for _, g := range HiddenPaths() {
		if g.About <= last {
			t.Errorf("%s comes after %s", g.About, last)
		}
		last = g.About
		if !slices.IsSortedFunc(g.Paths, func(a, b Path) int { return strings.Compare(a.String(), b.String()) }) {
			t.Errorf("%s: not sorted", g.About)
		}
		all = append(all, g.Paths...)
		for _, d := range g.Decoys {
			if !slices.ContainsFunc(g.Paths, d.beneath) || strings.HasSuffix(d.String(), "*") {
				t.Errorf("%s: the decoy %s is not a file in a hidden path", g.About, d)
			}
		}
	}
	for i, p := range all {
		for j, q := range all {
			if i != j && p.beneath(q) {
				t.Errorf("%s is already hidden by %s", p, q)
			}
		}
	}
	for _, want := range strings.Fields(
		"~/.ssh ~/.aws ~/.config/gh ~/.kube ~/.mozilla ~/.config/google-chrome ~/.local/share/keyrings ~/.gnupg ~/.docker " +
			"~/.netrc ~/.npmrc ~/.pypirc ~/.git-credentials ~/.cargo/credentials.toml ~/.bash_history /run/docker.sock " +
			"/run/podman /run/user/* /var/run/docker.sock") {
		if !slices.ContainsFunc(all, func(p Path) bool { return p.String() == want }) {
			t.Errorf("%s is not hidden", want)
		}
	}
}
