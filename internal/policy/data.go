package policy

import (
	_ "embed"
	"slices"
	"sync"
)

//go:embed presets.yaml
var presetsFile []byte

//go:embed hidden.yaml
var hiddenFile []byte

// Preset is a list of rules that comes with the program.
type Preset struct {
	Name   string
	Source string // where the rules are published
	Rules  []Rule
}

// Hidden are built-in paths of one kind that are hidden in a sandbox.
type Hidden struct {
	About  string
	Decoys []Path // files in Paths, or beneath them, that decoys may replace
	Paths  []Path
}

// data is the content of the embedded files. A test checks that they have no problems.
type data struct {
	presets  []Preset
	hidden   []Hidden
	problems Problems
}

var builtIn = sync.OnceValue(func() (d data) {
	anything := func(s string) (string, error) { return s, nil }
	paths := list(matching(text("a path", func(s string) (Path, error) { return ParsePath(s, "/") }), `^(~/|/)`), 1)
	presets := object(nothing[[]Preset], must(key("presets", "", list(object(nothing[Preset],
		must(key("name", "", matching(text("a name", anything), nameForm), func(p *Preset, s string) { p.Name = s })),
		must(key("source", "", matching(text("an address", anything), `^https://`),
			func(p *Preset, s string) { p.Source = s })),
		must(key("rules", "", list(ruleShape(false), 1), func(p *Preset, v []Rule) { p.Rules = v })),
	), 1), func(to *[]Preset, v []Preset) { *to = v })))
	hidden := object(nothing[[]Hidden], must(key("hidden", "", list(object(nothing[Hidden],
		must(key("about", "", text("a text", anything), func(h *Hidden, s string) { h.About = s })),
		key("decoys", "", paths, func(h *Hidden, v []Path) { h.Decoys = v }),
		must(key("paths", "", paths, func(h *Hidden, v []Path) { h.Paths = v })),
	), 1), func(to *[]Hidden, v []Hidden) { *to = v })))
	d.presets = load(&d, "presets.yaml", presetsFile, presets)
	d.hidden = load(&d, "hidden.yaml", hiddenFile, hidden)
	return d
})

func load[T any](d *data, name string, text []byte, s shape[T]) (v T) {
	r := &reader{name: name}
	if root := r.root(text); root != nil {
		v, _ = s.in(r, root)
	}
	d.problems = append(d.problems, append(r.problems, r.warnings...)...)
	return v
}

// Presets returns the presets, by name.
func Presets() []Preset { return slices.Clone(builtIn().presets) }

// PresetNames returns the names of the presets, in order.
func PresetNames() []string {
	var names []string
	for _, p := range builtIn().presets {
		names = append(names, p.Name)
	}
	return names
}

// HiddenPaths returns the host paths that a sandbox does not see by default.
func HiddenPaths() []Hidden { return slices.Clone(builtIn().hidden) }
