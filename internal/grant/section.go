package grant

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/policy"
)

// The bounds of what a project's file can request: its owner must be able to read all of it.
const (
	maxRequests = 16 // grants
	maxListed   = 16 // entries of a list
)

// ownerHint is the hint about what a project's file cannot say.
const ownerHint = "if intended, put the grant in your own file; a project's file may be untrusted"

// Section is the merged section secrets of policy files.
type Section struct {
	// Given are the grants, by name. Those of Requested are among them.
	Given map[string]policy.Said[policy.Secret]
	// Requested are the grants that only a project's file names, by name. They must not be given without the consent of
	// the owner.
	Requested []Request
	// Notes are settings without effect.
	Notes policy.Problems
}

// Merge merges the sections secrets of layers, whose order does not matter. A user's file gives grants, and flags
// replace them. A project's file requests grants; it narrows those that the user's file gives, and never widens them.
func Merge(layers ...policy.Layer) (Section, error) {
	var said [policy.Flags + 1]map[string]policy.Said[policy.Secret]
	m := merger{}
	for _, l := range layers {
		if said[l.Level] == nil {
			said[l.Level] = map[string]policy.Said[policy.Secret]{}
		}
		maps.Copy(said[l.Level], l.Document.Secrets)
	}
	all := map[string]bool{}
	for _, level := range said {
		for name := range level {
			all[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		user, given := said[policy.User][name]
		project, asked := said[policy.Project][name]
		switch flags, ok := said[policy.Flags][name]; {
		case ok:
			m.give(name, flags)
		case given && asked:
			m.narrow(name, user, project)
		case given:
			m.give(name, user)
		default:
			m.request(name, project)
		}
	}
	if len(m.out.Requested) > maxRequests {
		at := m.out.Requested[maxRequests].At
		m.wrong(at, ownerHint, "a project's file can request at most %d grants", maxRequests)
	}
	if err := m.problems.Fault(); err != nil {
		return Section{}, err
	}
	return m.out, nil
}

// MergePolicy is policy.MergeAt with the grants of the layers. requested are those of Section.
func MergePolicy(home string, layers ...policy.Layer) (p policy.Policy, requested []Request, err error) {
	if p, err = policy.MergeAt(home, layers...); err != nil {
		return p, nil, err
	}
	s, err := Merge(layers...)
	if err != nil {
		return policy.Policy{}, nil, err
	}
	p.Secrets, p.Notes = s.Given, append(p.Notes, s.Notes...).Sorted()
	return p, s.Requested, nil
}

// ItemOf parses a grant of a section secrets. optional means that its sandbox may be created without it.
func ItemOf(name string, s policy.Secret) (i Item, optional bool, err error) {
	e, err := parse(name, s)
	return e.Item, e.Optional, err
}

// DefaultPreset returns the preset of a grant that names none: the one of its name; "" if there is none.
func DefaultPreset(name string) string {
	// The preset bearer has no hosts: a grant that is called so has its own sites.
	if name != "bearer" && slices.Contains(PresetNames(), name) {
		return name
	}
	return ""
}

// entry is a grant in a section secrets.
type entry struct {
	Item
	Optional bool `json:"optional,omitempty"`
}

func parse(name string, s policy.Secret) (e entry, err error) {
	d := json.NewDecoder(strings.NewReader(string(s)))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return entry{}, fault.New(fault.Invalid, "grant %s: malformed", name).Because(err)
	}
	if e.Preset == "" {
		e.Preset = DefaultPreset(name)
	}
	return e, nil
}

// merger holds the state of one merge.
type merger struct {
	out      Section
	problems policy.Problems
}

func (m *merger) wrong(at policy.Origin, hint, format string, args ...any) {
	m.problems = append(m.problems,
		policy.Problem{File: at.Source, Line: at.Line, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (m *merger) note(at policy.Origin, format string, args ...any) {
	m.out.Notes = append(m.out.Notes,
		policy.Problem{File: at.Source, Line: at.Line, Message: fmt.Sprintf(format, args...)})
}

// checked parses a grant, and reports what is wrong with it.
func (m *merger) checked(name string, s policy.Said[policy.Secret]) (e entry, g Grant, ok bool) {
	e, err := parse(name, s.Value)
	if err == nil {
		g, err = e.Grant(name, time.Time{})
	}
	if err != nil {
		m.wrong(s.At, fault.HintOf(err), "%s", err)
	}
	return e, g, err == nil
}

// put adds a grant to the result.
func (m *merger) put(name string, e entry, at policy.Origin) {
	text, err := policy.SecretOf(e)
	if err != nil {
		m.wrong(at, "", "grant %s: %s", name, err)
		return
	}
	if m.out.Given == nil {
		m.out.Given = map[string]policy.Said[policy.Secret]{}
	}
	m.out.Given[name] = policy.Said[policy.Secret]{Value: text, At: at}
}

// give adds a grant of the owner.
func (m *merger) give(name string, s policy.Said[policy.Secret]) {
	if e, _, ok := m.checked(name, s); ok {
		m.put(name, e, s.At)
	}
}

// request adds a grant of a project's file.
func (m *merger) request(name string, s policy.Said[policy.Secret]) {
	e, g, ok := m.checked(name, s)
	switch {
	case !ok:
		return
	case e.Insecure:
		m.wrong(s.At, ownerHint, "grant %s: a project's file cannot send a secret without TLS", name)
		return
	case e.Except != nil:
		m.wrong(s.At, ownerHint, "grant %s: a project's file cannot allow what a preset refuses", name)
		return
	}
	if !m.bounded(name, e, s.At) {
		return
	}
	m.put(name, e, s.At)
	m.out.Requested = append(m.out.Requested,
		Request{Name: name, Root: path.Dir(s.At.Source), At: s.At, Optional: e.Optional, For: e.For, Grant: g})
}

// bounded reports whether the lists of a grant of a project's file are short enough.
func (m *merger) bounded(name string, e entry, at policy.Origin) bool {
	lists := [][]string{e.Hosts, e.Methods, e.Paths, e.Env, e.HostKeys, slices.Collect(maps.Keys(e.Query))}
	for _, site := range e.Sites {
		lists = append(lists, site.Methods, site.Paths, site.Services, site.Regions)
	}
	for _, list := range append(lists, make([]string, len(e.Sites)), make([]string, len(e.Ports))) {
		if len(list) > maxListed {
			m.wrong(at, ownerHint, "grant %s: a list of a project's file has %d entries; the limit is %d", name, len(list),
				maxListed)
			return false
		}
	}
	return true
}
