package policy

import (
	"bytes"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
)

// pinned is the source of all settings of a canonical text.
const pinned = "the sandbox's policy"

// ParseCanonical parses the output of Canonical. It merges nothing with it, not even built-in rules; only built-in
// paths have a known origin. Any other text, even of an equal policy, is Corrupt.
func ParseCanonical(text []byte) (Policy, error) {
	d, err := Parse(pinned, text)
	if err != nil {
		return Policy{}, fault.New(fault.Corrupt, "read a stored policy").Because(err)
	}
	if d.Tier == nil || d.Strong == nil || d.Network == nil {
		return Policy{}, fault.New(fault.Corrupt, "a stored policy is incomplete")
	}
	net := d.Network.Value
	p := Policy{
		Tier: *d.Tier, Strong: *d.Strong, Hide: unplaced(d.Hide), ReadOnly: unplaced(d.ReadOnly),
		Writable: unplaced(d.Writable),
		Mounts:   unplaced(d.Mounts), Decoys: unplaced(d.DecoyAt), OnTouch: Said[Touch]{Value: TouchRecord},
		Confine: Said[Confine]{Value: ConfineAuto},
		Ignore:  unplaced(d.Ignore), MemoryFork: Said[MemoryFork]{Value: MemoryAllow},
		Network: Network{Mode: net.Mode, Allow: unplacedRules(net.Allow), Deny: unplacedRules(net.Deny),
			Ask: net.Ask != nil && net.Ask.Value},
		LimitsAt: map[string]Origin{}, Env: map[string]Said[string]{},
	}
	at := Origin{Source: pinned}
	if d.OnTouch != nil {
		p.OnTouch = *d.OnTouch
	}
	if d.Confine != nil {
		p.Confine = *d.Confine
	}
	if d.Runtime != nil {
		p.Runtime = *d.Runtime
	}
	if d.MemoryFork != nil {
		p.MemoryFork = *d.MemoryFork
	}
	p.Tier.At, p.Strong.At, p.OnTouch.At, p.MemoryFork.At, p.NetAt = at, at, at, at, at
	p.Confine.At, p.Runtime.At = at, at
	for _, l := range limits() {
		if v, ok := d.Limits[l.name]; ok {
			*l.in(&p.Limits), p.LimitsAt[l.name] = v.Value, at
		}
	}
	p.Evidence = unplacedEvidence(d.Evidence, at)
	for k, v := range d.Env {
		p.Env[k] = Said[string]{v.Value, at}
	}
	for k, v := range d.Secrets {
		if p.Secrets == nil {
			p.Secrets = map[string]Said[Secret]{}
		}
		p.Secrets[k] = Said[Secret]{v.Value, at}
	}
	about := map[Path]string{}
	for _, g := range HiddenPaths() {
		for _, h := range slices.Concat(g.Paths, g.Decoys) {
			about[h] = g.About
		}
	}
	for _, list := range [][]Said[Path]{p.Hide, p.Decoys} {
		for i, s := range list {
			if g, ok := about[s.Value]; ok {
				list[i].At = builtInOrigin(g)
			}
		}
	}
	if again, err := p.Canonical(); err != nil || !bytes.Equal(again, text) {
		return Policy{}, fault.New(fault.Corrupt, "a stored policy is not in canonical form").Because(err)
	}
	return p, nil
}

// unplaced removes line numbers from the origins of a canonical text, which has only one line.
func unplaced[T any](list []Said[T]) []Said[T] {
	for i := range list {
		list[i].At = Origin{Source: pinned}
	}
	return list
}

func unplacedRules(list []Rule) []Rule {
	for i := range list {
		list[i].At = Origin{Source: pinned}
	}
	return list
}

// Layer returns p as a document of a level. Merged on its own it results in p, except for built-in hidden paths that
// p shows. The default tier, process, is omitted, so that another layer can have rules.
func (p Policy) Layer(level Level) Layer {
	d := p.document()
	if p.Tier.Value == defaultTier {
		d.Tier = nil
	}
	return Layer{level, d}
}

// hasGate reports whether the tier has a gate, which enforces rules.
func (p Policy) hasGate() bool {
	return p.Tier.Value.rank() >= Supervised.rank() || p.Tier.Value == Workspace && p.Confine.Value != ConfineOff
}

// With returns p with additional network rules. If the network is off, an allow rule turns it on for its destination.
func (p Policy) With(rules ...Rule) (Policy, error) {
	if len(rules) == 0 {
		return p, nil
	}
	switch {
	case p.Network.Mode == NetHost:
		return Policy{}, fault.New(fault.Unsupported, "cannot use rules with the host's network").
			WithHint("create a sandbox with rules: coppice create --net rules")
	case !p.hasGate():
		return Policy{}, fault.New(fault.Unsupported, "tier %s cannot enforce network rules", p.Tier.Value).
			WithHint("create a sandbox with rules: coppice create --net rules")
	}
	allow, deny := slices.Clone(p.Network.Allow), slices.Clone(p.Network.Deny)
	for _, r := range rules {
		if r.Denies {
			deny = append(deny, r)
		} else {
			allow = append(allow, r)
		}
	}
	if p.Network.Mode == NetOff && len(allow) == 0 {
		return p, nil // nothing is left to deny
	}
	p.Network = Network{Mode: NetRules, Allow: ordered(allow), Deny: ordered(deny), Ask: p.Network.Ask}
	return p, nil
}
