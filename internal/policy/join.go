package policy

import (
	"cmp"
	"maps"
	"slices"
)

// join merges two documents of one level: lists are concatenated, and otherwise the stricter setting applies. The order
// of a and b only affects the origins of settings that both have.
func join(a, b Document) Document {
	d := Document{
		Name:       cmp.Or(a.Name, b.Name),
		Tier:       pick(a.Tier, b.Tier, func(x, y Tier) bool { return x.rank() > y.rank() }),
		Strong:     pick(a.Strong, b.Strong, func(x, _ bool) bool { return x }),
		Confine:    pick(a.Confine, b.Confine, stricterConfine),
		Runtime:    pick(a.Runtime, b.Runtime, func(x, y string) bool { return x < y }), // neither is stricter
		Hide:       add(a.Hide, b.Hide),
		Show:       add(a.Show, b.Show),
		ReadOnly:   add(a.ReadOnly, b.ReadOnly),
		Writable:   add(a.Writable, b.Writable),
		Mounts:     add(a.Mounts, b.Mounts),
		Decoys:     pick(a.Decoys, b.Decoys, func(x, _ bool) bool { return x }),
		DecoyAt:    add(a.DecoyAt, b.DecoyAt),
		OnTouch:    pick(a.OnTouch, b.OnTouch, func(x, _ Touch) bool { return x == TouchStop }),
		MemoryFork: pick(a.MemoryFork, b.MemoryFork, func(x, _ MemoryFork) bool { return x == MemoryDeny }),
		Ignore:     add(a.Ignore, b.Ignore),
		Network:    a.Network,
		Evidence:   joinEvidence(a.Evidence, b.Evidence),
		Warnings:   add(a.Warnings, b.Warnings),
	}
	switch {
	case a.Network == nil:
		d.Network = b.Network
	case b.Network != nil:
		rank := []Net{NetOff, NetRules, NetHost}
		x, y := a.Network.Value, b.Network.Value
		both := Said[Access]{At: a.Network.At, Value: Access{
			Mode: x.Mode, Presets: add(x.Presets, y.Presets), Allow: add(x.Allow, y.Allow), Deny: add(x.Deny, y.Deny),
			Ask: pick(x.Ask, y.Ask, func(x, _ bool) bool { return !x }),
		}}
		if slices.Index(rank, y.Mode) < slices.Index(rank, x.Mode) {
			both.Value.Mode, both.At = y.Mode, b.Network.At
		}
		d.Network = &both
	}
	if a.Limits != nil || b.Limits != nil {
		d.Limits = map[string]Said[int64]{}
		maps.Copy(d.Limits, a.Limits)
		for k, v := range b.Limits {
			if w, ok := d.Limits[k]; !ok || v.Value < w.Value {
				d.Limits[k] = v
			}
		}
	}
	if a.Env != nil || b.Env != nil {
		d.Env = map[string]Said[string]{}
		maps.Copy(d.Env, b.Env)
		maps.Copy(d.Env, a.Env)
	}
	if a.Secrets != nil || b.Secrets != nil {
		d.Secrets = map[string]Said[Secret]{}
		maps.Copy(d.Secrets, b.Secrets)
		maps.Copy(d.Secrets, a.Secrets)
	}
	return d
}

// add concatenates two lists; it returns nil if both are nil.
func add[S ~[]T, T any](a, b S) S {
	if a == nil && b == nil {
		return nil
	}
	return append(append(S{}, a...), b...)
}

// pick returns the setting that is not nil, or else the stricter one; a if both are equal.
func pick[T comparable](a, b *Said[T], stricter func(x, y T) bool) *Said[T] {
	if a == nil || b != nil && a.Value != b.Value && !stricter(a.Value, b.Value) {
		return b
	}
	return a
}
