package policy

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Level is the source of a document. Later levels take precedence, within what a level may do.
type Level int

// The levels. Built-in settings are below all of them.
const (
	User    Level = iota // the owner's own file
	Project              // a file of a project, which may not be trusted
	Flags                // what the owner requests for one sandbox
)

// Layer is a document at its level.
type Layer struct {
	Level    Level
	Document Document
}

// Policy is the result of merging documents. Lists are sorted and have no duplicates.
type Policy struct {
	Tier Said[Tier]
	// TierAtLeast says that only a project's file names Tier, so that it never replaces a stronger one. It is not part of
	// the text.
	TierAtLeast bool

	Strong     Said[bool]
	Confine    Said[Confine] // how tier workspace confines commands
	Runtime    Said[string]  // OCI runtime of tier container; "" is DefaultRuntime
	Hide       []Said[Path]
	ReadOnly   []Said[Path] // wins over Writable
	Writable   []Said[Path] // nil leaves the base as it is; otherwise only these are writable
	Mounts     []Said[Mount]
	Decoys     []Said[Path]     // hidden paths with a decoy in their place
	OnTouch    Said[Touch]      // response when a decoy is touched
	Ignore     []Said[Path]     // directories without history
	MemoryFork Said[MemoryFork] // whether forks may continue with the memory of processes
	Network    Network
	NetAt      Origin
	Limits     Limits
	LimitsAt   map[string]Origin // by the keys of the limits section
	Evidence   Evidence
	Env        map[string]Said[string]
	// Secrets are grants, by name. Merge leaves it empty: package grant merges the sections secrets of documents, as it
	// knows what a grant is.
	Secrets map[string]Said[Secret]

	// Notes are settings without effect, because another level was stricter. Equality of policies ignores them.
	Notes Problems
}

// presetSource is the prefix of the sources of preset rules.
const presetSource = "preset "

// builtIns is the prefix of the sources of built-in settings.
const builtIns = "built-in"

// builtInOrigin returns the origin of a built-in setting.
func builtInOrigin(what string) Origin {
	return Origin{Source: strings.TrimSpace(builtIns + " " + what)}
}

// Merge makes a policy from the built-in rules and from layers, whose order does not matter; within a level the
// stricter setting applies. Denials win: hidden paths, deny rules and read-only paths accumulate, and the smaller
// limit applies, unless flags set it. A project's file can allow hosts that no level denied, and otherwise only
// tighten: its other settings are errors or, if they are only weaker than the owner's, notes. Paths are compared as
// text: a caller that follows links must compare the results again.
func Merge(layers ...Layer) (Policy, error) { return MergeAt("", layers...) }

// MergeAt is Merge with a known home directory for ~, so that paths below it are recognized in either spelling. Paths
// are left as they were written.
func MergeAt(home string, layers ...Layer) (Policy, error) {
	m := merger{home: home}
	m.p = Policy{
		Tier:       Said[Tier]{defaultTier, builtInOrigin("")},
		Strong:     Said[bool]{false, builtInOrigin("")},
		Confine:    Said[Confine]{ConfineAuto, builtInOrigin("")},
		Runtime:    Said[string]{"", builtInOrigin("")},
		OnTouch:    Said[Touch]{TouchRecord, builtInOrigin("")},
		MemoryFork: Said[MemoryFork]{MemoryAllow, builtInOrigin("")},
		Network:    Network{Mode: NetOff},
		NetAt:      builtInOrigin(""),
		LimitsAt:   map[string]Origin{},
		Env:        map[string]Said[string]{},
	}
	var said [Flags + 1]Document
	for _, l := range layers {
		if l.Level < User || l.Level > Flags {
			return Policy{}, fault.New(fault.Invalid, "unknown policy level %d", l.Level)
		}
		m.sameEnv(said[l.Level], l.Document)
		m.problems = append(m.problems, sameSecrets(said[l.Level], l.Document)...)
		if l.Level == Project {
			m.fromProject(l.Document)
		}
		said[l.Level] = join(said[l.Level], l.Document)
	}
	m.confinement(said)
	m.lock(said)
	m.runtime(said)
	m.files(said)
	m.history(said)
	m.network(said)
	m.limits(said)
	m.memory(said)
	m.evidence(said)
	m.together()
	if len(m.problems) > 0 {
		return Policy{}, m.problems.fault("the policy", fault.Invalid)
	}
	m.p.Notes = m.p.Notes.sorted()
	return m.p, nil
}

// merger holds the state of one merge.
type merger struct {
	home     string // "" if unknown
	p        Policy
	problems Problems
	tierSaid bool
}

func (m *merger) wrong(at Origin, hint, format string, args ...any) {
	m.problems = append(m.problems,
		Problem{File: at.Source, Line: at.Line, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (m *merger) note(at Origin, format string, args ...any) {
	m.p.Notes = append(m.p.Notes, Problem{File: at.Source, Line: at.Line, Message: fmt.Sprintf(format, args...)})
}

// sameEnv refuses two values for one variable on one level, neither of which is stricter.
func (m *merger) sameEnv(a, b Document) {
	for k, v := range b.Env {
		if w, ok := a.Env[k]; ok && w.Value != v.Value {
			m.wrong(v.At, "remove one of them", "%s has a different value at %s", k, w.At)
		}
	}
}

// ownerHint is the hint about settings that a project's file cannot have.
const ownerHint = "if intended, put it in your own file or use a flag; a project's file may be untrusted"

// fromProject refuses settings that a project's file cannot have, because a user of the sandbox may have written it.
func (m *merger) fromProject(d Document) {
	if d.Runtime != nil {
		m.wrong(d.Runtime.At, ownerHint, "a project's file cannot choose a program of the host: %s", d.Runtime.Value)
	}
	for _, s := range d.Show {
		m.wrong(s.At, ownerHint, "a project's file cannot show %s", s.Value)
	}
	dir, err := ParsePath(".", path.Dir(d.Name))
	for _, s := range d.Mounts {
		inside := err == nil && m.beneath(s.Value.From, dir) && dir.text != "/"
		switch {
		case s.Value.Write:
			m.wrong(s.At, ownerHint, "a project's file cannot make %s of the host writable", s.Value.From)
		case !inside:
			m.wrong(s.At, ownerHint, "a project's file cannot mount %s, which is outside the project", s.Value.From)
		}
	}
	if d.Network != nil {
		for _, r := range d.Network.Value.Allow {
			if in, what, ok := guarded(r.Net.Addr()); ok && r.Net.Bits() >= in.Bits() {
				m.wrong(r.At, ownerHint, "a project's file cannot allow %s, which leads to %s", r.cidr(), what)
			}
			if r.Private {
				m.wrong(r.At, ownerHint, "a project's file cannot let %s lead to private addresses", r.Host)
			}
		}
	}
	if d.Network != nil && d.Network.Value.Mode == NetHost {
		m.wrong(d.Network.At, ownerHint, "a project's file cannot use the host's network")
	}
	if d.Network != nil && d.Network.Value.Ask != nil && d.Network.Value.Ask.Value {
		m.wrong(d.Network.Value.Ask.At, ownerHint, "a project's file cannot request approvals")
	}
}

// confinement merges tier and strong. A project's file cannot choose tier container: it is not stronger than
// supervised, a program of the host runs for it, and commands of an ordinary user are root in it.
func (m *merger) confinement(said [3]Document) {
	p := &m.p
	for level, d := range said {
		if t := d.Tier; t != nil {
			if Level(level) == Project && t.Value == Container && p.Tier.Value.rank() < Container.rank() &&
				said[Flags].Tier == nil {
				m.wrong(t.At, ownerHint, "a project's file cannot choose tier container, for which a program of the host runs")
			}
			if Level(level) == Project && t.Value.rank() < p.Tier.Value.rank() {
				m.note(t.At, "tier %s is weaker than tier %s required by %s", t.Value, p.Tier.Value, p.Tier.At)
			} else {
				p.TierAtLeast = Level(level) == Project && p.Tier.At.BuiltIn()
				p.Tier, m.tierSaid = *t, true
			}
		}
		if s := d.Strong; s != nil {
			if Level(level) == Project && !s.Value && p.Strong.Value {
				m.note(s.At, "cannot disable strong: required by %s", p.Strong.At)
			} else {
				p.Strong = *s
			}
		}
	}
}

// network merges the network sections.
func (m *merger) network(said [3]Document) {
	p, off := &m.p, false
	for level, d := range said {
		if d.Network == nil {
			continue
		}
		a := d.Network.Value
		p.Network.Deny = append(p.Network.Deny, a.Deny...)
		switch {
		case Level(level) == Project && off && a.Mode != NetOff:
			m.note(d.Network.At, "cannot enable the network: disabled by %s", p.NetAt)
			continue
		case Level(level) == Project && a.Mode == NetHost:
			continue // reported by fromProject
		}
		p.Network.Mode, p.NetAt = a.Mode, d.Network.At
		off = a.Mode == NetOff
		if off {
			continue
		}
		p.Network.Allow = append(p.Network.Allow, a.Allow...)
		for _, name := range a.Presets {
			for _, preset := range Presets() {
				if preset.Name != name.Value {
					continue
				}
				for _, r := range preset.Rules {
					r.At = Origin{presetSource + preset.Name + ", " + name.At.Source, name.At.Line}
					p.Network.Allow = append(p.Network.Allow, r)
				}
			}
		}
		if a.Ask != nil {
			p.Network.Ask = a.Ask.Value
		}
	}
	p.Network.Allow, p.Network.Deny = ordered(p.Network.Allow), ordered(p.Network.Deny)
	switch {
	case p.Network.Mode == NetOff:
		p.Network = Network{Mode: NetOff}
	case p.Network.Mode == NetHost && len(p.Network.Deny) > 0:
		m.wrong(p.NetAt, "remove the host's network or the rule",
			"the host's network cannot be filtered, but %s denies %s", p.Network.Deny[0].At, p.Network.Deny[0])
	case p.Network.Mode == NetHost:
		p.Network = Network{Mode: NetHost}
	}
}

// limits merges the limits and the environment.
func (m *merger) limits(said [3]Document) {
	merged := map[string]Said[int64]{}
	for level, d := range said {
		for name, v := range d.Limits {
			if before, ok := merged[name]; ok && Level(level) == Project && v.Value > before.Value {
				m.note(v.At, "cannot raise %s: the limit at %s is smaller", name, before.At)
				continue
			}
			merged[name] = v
		}
		maps.Copy(m.p.Env, d.Env)
	}
	for _, l := range limits() {
		if v, ok := merged[l.name]; ok {
			*l.in(&m.p.Limits) = v.Value
			m.p.LimitsAt[l.name] = v.At
		}
	}
}

// together checks combinations of settings, and raises the tier if the network rules require it.
func (m *merger) together() {
	p := &m.p
	defer func() {
		if at := p.Evidence.Programs; at.Value == ProgramsNone && (p.Tier.Value == Supervised || p.Tier.Value == Container) {
			m.wrong(at.At, "use programs: summary, or tier: process", "tier %s records programs, but %s disables it",
				p.Tier.Value, at.At)
		}
	}()
	switch p.Network.Mode {
	case NetHost:
		if p.Tier.Value.rank() > Process.rank() {
			m.wrong(p.NetAt, "use tier: process with network: host", "tier %s of %s does not support the host's network",
				p.Tier.Value, p.Tier.At)
		}
	case NetRules:
		switch {
		case m.tierSaid && p.hasGate(), p.Tier.Value.rank() >= Supervised.rank():
		case m.tierSaid && !p.TierAtLeast:
			m.wrong(p.Tier.At, "use tier: supervised", "tier %s cannot enforce the network rules of %s",
				p.Tier.Value, p.NetAt)
		default:
			p.Tier, p.TierAtLeast = Said[Tier]{Supervised, p.NetAt}, false
		}
	}
}

// unique sorts a list by text, and keeps the first of equal elements that is not built in, or else the first: what a
// document says is required of the tier, also if it is built in, too.
func unique[T any](list []Said[T], text func(T) string) []Said[T] {
	builtIn := func(s Said[T]) int {
		if s.At.BuiltIn() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b Said[T]) int {
		return cmp.Or(cmp.Compare(text(a.Value), text(b.Value)), cmp.Compare(builtIn(a), builtIn(b)))
	})
	return slices.CompactFunc(list, func(a, b Said[T]) bool { return text(a.Value) == text(b.Value) })
}

// ordered sorts rules by text, and keeps the first of equal ones.
func ordered(rules []Rule) []Rule {
	slices.SortStableFunc(rules, func(a, b Rule) int { return cmp.Compare(a.String(), b.String()) })
	return slices.CompactFunc(rules, func(a, b Rule) bool { return a.String() == b.String() })
}
