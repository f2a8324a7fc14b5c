package grant

import (
	"bytes"
	_ "embed"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

//go:embed presets.yaml
var presetsFile []byte

// preset is an entry of presets.yaml.
type preset struct {
	Name    string     `yaml:"name"`
	Source  string     `yaml:"source"`
	Kind    string     `yaml:"kind"`
	Hosts   []string   `yaml:"hosts"`
	Sites   []SiteItem `yaml:"sites"`
	Env     []string   `yaml:"env"`
	Refused []string   `yaml:"refused"` // see Site.Refused
	Deny    []struct {
		Methods []string `yaml:"methods"`
		Paths   []string `yaml:"paths"`
		Why     string   `yaml:"why"`
	} `yaml:"deny"`
}

// presets parses presets.yaml once. The file is part of the program, and the tests of this package fail if it cannot be
// parsed.
var presets = sync.OnceValues(func() (all []preset, err error) {
	d := yaml.NewDecoder(bytes.NewReader(presetsFile))
	d.KnownFields(true)
	err = d.Decode(&all)
	return all, err
})

// PresetNames returns the names of the presets, in order.
func PresetNames() (names []string) {
	all, err := presets()
	if err != nil {
		return nil
	}
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names
}

// fill sets what the preset of i says about g. It returns Site.Refused for the sites of g.
func (i Item) fill(g *Grant) (refused []string, err error) {
	all, err := presets()
	if err != nil {
		return nil, fault.New(fault.Internal, "read the presets").Because(err)
	}
	at := slices.IndexFunc(all, func(p preset) bool { return p.Name == i.Preset })
	if at < 0 {
		_, err = oneOf("preset", i.Preset, PresetNames())
		return nil, err
	}
	p := all[at]
	g.Kind, g.Env = Kind(p.Kind), slices.Clone(p.Env)
	for _, h := range p.Hosts {
		pattern, err := policy.ParsePattern(h)
		if err != nil {
			return nil, err
		}
		g.Hosts = append(g.Hosts, pattern)
	}
	for _, one := range p.Sites {
		s, err := one.site()
		if err != nil {
			return nil, err
		}
		g.Sites = append(g.Sites, s)
	}
	excepted := map[string]bool{}
	for _, d := range p.Deny {
		var paths []string
		for _, path := range d.Paths {
			if slices.Contains(i.Except, path) {
				excepted[path] = true
				continue
			}
			paths = append(paths, path)
		}
		if len(paths) == 0 { // without paths, it would match all
			continue
		}
		q, err := policy.ParseRequests(d.Methods, paths)
		if err != nil {
			return nil, err
		}
		g.Deny = append(g.Deny, Denied{q, d.Why})
	}
	for _, path := range i.Except {
		if !excepted[path] {
			var denied []string
			for _, d := range p.Deny {
				denied = append(denied, d.Paths...)
			}
			return nil, fault.New(fault.Invalid, "preset %s does not deny %q", i.Preset, path).
				WithHint("it denies %s", strings.Join(denied, ", "))
		}
	}
	return slices.Clone(p.Refused), nil
}

// PresetEnv returns the variables of a preset.
func PresetEnv(name string) []string {
	all, err := presets()
	if err != nil {
		return nil
	}
	for _, p := range all {
		if p.Name == name {
			return slices.Clone(p.Env)
		}
	}
	return nil
}
