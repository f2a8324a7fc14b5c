package policy

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// placing is the encoded form of an origin.
type placing struct {
	At   string   `json:"at"`
	Line int      `json:"line,omitempty"`
	Said []string `json:"said"` // the settings, each a key and its value, sorted
}

// each calls fn with the origin of each setting of p, and the name of the setting.
func (p *Policy) each(fn func(what string, at *Origin)) {
	fn("tier", &p.Tier.At)
	fn("strong", &p.Strong.At)
	if p.Confine.Value != ConfineAuto {
		fn("confine", &p.Confine.At)
	}
	if p.Runtime.Value != "" {
		fn("container.runtime", &p.Runtime.At)
	}
	fn("network", &p.NetAt)
	paths := func(key string, list []Said[Path]) {
		for i := range list {
			fn(key+" "+list[i].Value.String(), &list[i].At)
		}
	}
	paths("files.hide", p.Hide)
	paths("files.readonly", p.ReadOnly)
	paths("files.writable", p.Writable)
	paths("files.decoys", p.Decoys)
	paths("history.ignore", p.Ignore)
	if p.OnTouch.Value == TouchStop {
		fn("files.on_touch", &p.OnTouch.At)
	}
	if p.MemoryFork.Value == MemoryDeny {
		fn("memory.fork", &p.MemoryFork.At)
	}
	v := &p.Evidence
	if v.Output.Value != DefaultOutput {
		fn("evidence.output", &v.Output.At)
	}
	if v.Entropy.Value {
		fn("evidence.entropy", &v.Entropy.At)
	}
	if v.Programs.Value != ProgramsAll {
		fn("evidence.programs", &v.Programs.At)
	}
	if v.Denials.Value != FileDenialsAuto {
		fn("evidence.denials", &v.Denials.At)
	}
	for i := range v.Redact {
		fn("evidence.redact "+v.Redact[i].Value, &v.Redact[i].At)
	}
	for i := range p.Mounts {
		fn("files.mounts "+p.Mounts[i].Value.String(), &p.Mounts[i].At)
	}
	for i := range p.Network.Allow {
		fn("network.allow "+p.Network.Allow[i].String(), &p.Network.Allow[i].At)
	}
	for i := range p.Network.Deny {
		fn("network.deny "+p.Network.Deny[i].String(), &p.Network.Deny[i].At)
	}
	for name, at := range p.LimitsAt {
		fn("limits."+name, &at)
		p.LimitsAt[name] = at
	}
	for key, said := range p.Env {
		fn("env."+key, &said.At)
		p.Env[key] = said
	}
	for name, said := range p.Secrets {
		fn("secrets."+name, &said.At)
		p.Secrets[name] = said
	}
}

// clone copies what the fn of each may change.
func (p Policy) clone() Policy {
	p.Hide, p.ReadOnly, p.Writable = slices.Clone(p.Hide), slices.Clone(p.ReadOnly), slices.Clone(p.Writable)
	p.Evidence.Redact = slices.Clone(p.Evidence.Redact)
	p.Decoys, p.Mounts, p.Ignore = slices.Clone(p.Decoys), slices.Clone(p.Mounts), slices.Clone(p.Ignore)
	p.Network.Allow, p.Network.Deny = slices.Clone(p.Network.Allow), slices.Clone(p.Network.Deny)
	p.LimitsAt, p.Env = maps.Clone(p.LimitsAt), maps.Clone(p.Env)
	p.Secrets = maps.Clone(p.Secrets)
	return p
}

// Origins encodes the origins of the settings of p, which its canonical text does not have, for Placed. Origins that
// the canonical text implies are omitted; "" means none.
func (p Policy) Origins() (string, error) {
	hidden := map[string]bool{}
	for _, g := range HiddenPaths() {
		for _, h := range g.Paths {
			hidden["files.hide "+h.String()] = true
		}
	}
	by := map[Origin][]string{}
	p = p.clone()
	p.each(func(what string, at *Origin) {
		if at.Source != "" && at.Source != pinned && (!at.BuiltIn() || !hidden[what]) {
			by[*at] = append(by[*at], what)
		}
	})
	if len(by) == 0 {
		return "", nil
	}
	var all []placing
	for at, said := range by {
		slices.Sort(said)
		all = append(all, placing{at.Source, at.Line, said})
	}
	slices.SortFunc(all, func(a, b placing) int {
		if c := strings.Compare(a.At, b.At); c != 0 {
			return c
		}
		return a.Line - b.Line
	})
	text, err := json.Marshal(all)
	return string(text), fault.Wrap(err, "write the origins of a policy")
}

// Placed returns p, from ParseCanonical, with the origins that Origins encoded for an equal policy. Unknown origins
// stay as they are. No decision depends on origins.
func (p Policy) Placed(origins string) (Policy, error) {
	if origins == "" {
		return p, nil
	}
	var all []placing
	if err := json.Unmarshal([]byte(origins), &all); err != nil {
		return p, fault.New(fault.Corrupt, "read the origins of a policy").Because(err)
	}
	known := map[string]Origin{}
	for _, one := range all {
		for _, what := range one.Said {
			known[what] = Origin{one.At, one.Line}
		}
	}
	p = p.clone()
	p.each(func(what string, at *Origin) {
		if o, ok := known[what]; ok {
			*at = o
		}
	})
	return p, nil
}

// Unplaced returns p with at as the origin of a network rule, if its origin is unknown.
func (p Policy) Unplaced(rule string, denies bool, at Origin) Policy {
	key := "network.allow "
	if denies {
		key = "network.deny "
	}
	p = p.clone()
	p.each(func(what string, was *Origin) {
		if what == key+rule && was.Source == pinned {
			*was = at
		}
	})
	return p
}

// Without returns p without the given allow and deny rules of the network. A rule is named by its text, its name, or
// its destination in short form, unless another rule is about exactly that destination. removed are the removed
// rules.
func (p Policy) Without(allow, deny []string) (without Policy, removed []Rule, err error) {
	p = p.clone()
	for i, list := range []*[]Rule{&p.Network.Allow, &p.Network.Deny} {
		for _, text := range [][]string{allow, deny}[i] {
			at, err := find(*list, text, i == 1)
			if err != nil {
				return Policy{}, nil, err
			}
			removed = append(removed, (*list)[at])
			*list = slices.Delete(*list, at, at+1)
		}
		if len(*list) == 0 {
			*list = nil // as without any rule
		}
	}
	return p, removed, nil
}

// find returns the index of the rule that a text denotes.
func find(list []Rule, text string, denies bool) (int, error) {
	r, err := ParseRule(text, denies)
	short := err == nil
	for i := range list {
		if list[i].String() == text || short && list[i].String() == r.String() {
			return i, nil
		}
	}
	var fits []int
	for i := range list {
		if list[i].Name == text && text != "" || short && list[i].where() == r.where() {
			fits = append(fits, i)
		}
	}
	what := "allows"
	if denies {
		what = "denies"
	}
	switch {
	case len(fits) == 1:
		return fits[0], nil
	case len(fits) > 1:
		return 0, fault.New(fault.Conflict, "%d rules match %q: %s", len(fits), text, list[fits[0]]).
			WithHint("use the full text of one; list them: coppice policy show NAME")
	}
	var texts []string
	for _, r := range list {
		texts = append(texts, r.String(), r.where())
	}
	hint := "list the rules: coppice policy show NAME"
	if near := fault.Nearest(text, texts); near != "" {
		hint = "did you mean " + near + "? " + hint
	}
	return 0, fault.New(fault.NotFound, "no rule %s %q", what, text).WithHint("%s", hint)
}
