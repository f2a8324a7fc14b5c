package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Line is one setting of a policy, for people, with its origin.
type Line struct {
	Key   string `json:"key"` // as in a file: "files.hide"
	Value string `json:"value"`
	From  string `json:"from"`
}

// Explain describes a policy in lines, in the order of a file. Built-in hidden paths of a kind share a line.
func Explain(p Policy) []Line {
	var out []Line
	say := func(key, value string, at Origin) { out = append(out, Line{key, value, at.String()}) }
	say("tier", string(p.Tier.Value), p.Tier.At)
	say("strong", strconv.FormatBool(p.Strong.Value), p.Strong.At)
	out = append(out, grouped("files.hide", p.Hide)...)
	out = append(out, grouped("files.decoys", p.Decoys)...)
	if len(p.Decoys) > 0 {
		say("files.on_touch", string(p.OnTouch.Value), p.OnTouch.At)
	}
	out = append(out, grouped("files.readonly", p.ReadOnly)...)
	switch {
	case p.Writable == nil:
		out = append(out, Line{"files.writable", "paths that the base makes writable", "built-in"})
	case len(p.Writable) == 0:
		out = append(out, Line{"files.writable", "nothing", ""})
	}
	out = append(out, grouped("files.writable", p.Writable)...)
	for _, m := range p.Mounts {
		say("files.mounts", m.Value.String(), m.At)
	}
	out = append(out, grouped("history.ignore", p.Ignore)...)
	say("network", string(p.Network.Mode), p.NetAt)
	for _, r := range p.Network.Deny {
		say("network.deny", r.String(), r.At)
	}
	for _, r := range p.Network.Allow {
		say("network.allow", r.String(), r.At)
	}
	if p.Network.Mode == NetRules {
		rest := "are denied"
		if p.Network.Ask {
			rest = "require approval"
		}
		out = append(out, Line{"network", "destinations without a rule " + rest, ""})
	}
	for _, l := range limits() {
		if v := *l.in(&p.Limits); v != 0 {
			say("limits."+l.name, fmt.Sprint(l.write(v)), p.LimitsAt[l.name])
		}
	}
	if p.Confine.Value != ConfineAuto {
		say("confine", string(p.Confine.Value), p.Confine.At)
	}
	if p.Runtime.Value != "" {
		say("container.runtime", p.Runtime.Value, p.Runtime.At)
	}
	if p.MemoryFork.Value == MemoryDeny {
		say("memory.fork", string(p.MemoryFork.Value), p.MemoryFork.At)
	}
	p.Evidence.explain(say)
	for _, k := range names(p.Env) {
		say("env."+k, strconv.Quote(p.Env[k].Value), p.Env[k].At)
	}
	for _, k := range names(p.Secrets) {
		say("secrets."+k, string(p.Secrets[k].Value), p.Secrets[k].At)
	}
	return out
}

// String returns text such as "~/a at /b, ro".
func (m Mount) String() string { return m.From.String() + " at " + m.To.String() + ", " + m.mode() }

func names[T any](m map[string]T) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// grouped returns a line for each path, but one for all paths of a built-in kind.
func grouped(key string, list []Said[Path]) (out []Line) {
	at := map[string]int{}
	for _, s := range list {
		from := s.At.String()
		if i, ok := at[from]; ok && strings.HasPrefix(from, "built-in") {
			out[i].Value += " " + s.Value.String()
			continue
		}
		at[from] = len(out)
		out = append(out, Line{key, s.Value.String(), from})
	}
	slices.SortStableFunc(out, func(a, b Line) int {
		if x, y := strings.HasPrefix(a.From, "built-in"), strings.HasPrefix(b.From, "built-in"); x != y {
			if x {
				return 1
			}
			return -1
		}
		return 0
	})
	return out
}
