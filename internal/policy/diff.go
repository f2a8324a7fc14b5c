package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Way is the effect of a change on what a sandbox may do.
type Way string

// The values of Way.
const (
	Wider   Way = "wider"
	Tighter Way = "tighter"
	Other   Way = "other"
)

// Change is one difference of two policies.
type Change struct {
	Way   Way    `json:"way"`
	Key   string `json:"key"`
	Value string `json:"value"` // what was added, or "was x, is y"
	Gone  bool   `json:"gone,omitempty"`
}

// Diff returns what b allows that a does not, and vice versa. A replaced rule is reported as removed and added: whether
// one includes the other is not examined.
func Diff(a, b Policy) []Change {
	var out []Change
	turned := func(key, was, is string, wider bool) {
		if was == is {
			return
		}
		way := Tighter
		if wider {
			way = Wider
		}
		out = append(out, Change{Way: way, Key: key, Value: "was " + was + ", is " + is})
	}
	lists := func(key string, was, is []string, more Way) {
		less := map[Way]Way{Wider: Tighter, Tighter: Wider, Other: Other}[more]
		for _, s := range was {
			if !slices.Contains(is, s) {
				out = append(out, Change{less, key, s, true})
			}
		}
		for _, s := range is {
			if !slices.Contains(was, s) {
				out = append(out, Change{more, key, s, false})
			}
		}
	}
	both := []Tier{a.Tier.Value, b.Tier.Value}
	if slices.Contains(both, Container) && slices.Contains(both, Supervised) {
		out = append(out, Change{Way: Other, Key: "tier", // neither is stronger
			Value: "was " + string(a.Tier.Value) + ", is " + string(b.Tier.Value)})
	} else {
		turned("tier", string(a.Tier.Value), string(b.Tier.Value), b.Tier.Value.rank() < a.Tier.Value.rank())
	}
	turned("strong", strconv.FormatBool(a.Strong.Value), strconv.FormatBool(b.Strong.Value), a.Strong.Value)
	turned("confine", string(a.Confine.Value), string(b.Confine.Value), stricterConfine(a.Confine.Value, b.Confine.Value))
	if a.Runtime.Value != b.Runtime.Value {
		out = append(out, Change{Way: Other, Key: "container.runtime",
			Value: "was " + runtimeOf(a) + ", is " + runtimeOf(b)})
	}
	lists("files.hide", texts(a.Hide), texts(b.Hide), Tighter)
	lists("files.decoys", texts(a.Decoys), texts(b.Decoys), Tighter)
	turned("files.on_touch", string(a.OnTouch.Value), string(b.OnTouch.Value), b.OnTouch.Value != TouchStop)
	turned("memory.fork", string(a.MemoryFork.Value), string(b.MemoryFork.Value), b.MemoryFork.Value != MemoryDeny)
	lists("files.readonly", texts(a.ReadOnly), texts(b.ReadOnly), Tighter)
	if (a.Writable == nil) != (b.Writable == nil) {
		say := func(list []Said[Path]) string {
			if list == nil {
				return "paths that the base makes writable"
			}
			return "[" + strings.Join(texts(list), ", ") + "]"
		}
		turned("files.writable", say(a.Writable), say(b.Writable), b.Writable == nil)
	} else {
		lists("files.writable", texts(a.Writable), texts(b.Writable), Wider)
	}
	lists("files.mounts", texts(a.Mounts), texts(b.Mounts), Wider)
	lists("history.ignore", texts(a.Ignore), texts(b.Ignore), Wider)
	rank := []Net{NetOff, NetRules, NetHost}
	turned("network", string(a.Network.Mode), string(b.Network.Mode),
		slices.Index(rank, b.Network.Mode) > slices.Index(rank, a.Network.Mode))
	lists("network.deny", ruleTexts(a.Network.Deny), ruleTexts(b.Network.Deny), Tighter)
	lists("network.allow", ruleTexts(a.Network.Allow), ruleTexts(b.Network.Allow), Wider)
	turned("network.ask", strconv.FormatBool(a.Network.Ask), strconv.FormatBool(b.Network.Ask), b.Network.Ask)
	for _, l := range limits() {
		was, is := *l.in(&a.Limits), *l.in(&b.Limits)
		say := func(v int64) string {
			if v == 0 {
				return "none"
			}
			return fmt.Sprint(l.write(v))
		}
		turned("limits."+l.name, say(was), say(is), is == 0 || was != 0 && is > was)
	}
	turned("evidence.output", outputText(a.Evidence.Output.Value), outputText(b.Evidence.Output.Value),
		b.Evidence.Output.Value < a.Evidence.Output.Value)
	lists("evidence.redact", values(a.Evidence.Redact), values(b.Evidence.Redact), Tighter)
	turned("evidence.entropy", strconv.FormatBool(a.Evidence.Entropy.Value), strconv.FormatBool(b.Evidence.Entropy.Value),
		a.Evidence.Entropy.Value)
	turned("evidence.programs", string(a.Evidence.Programs.Value), string(b.Evidence.Programs.Value),
		b.Evidence.Programs.Value.rank() < a.Evidence.Programs.Value.rank())
	turned("evidence.denials", string(a.Evidence.Denials.Value), string(b.Evidence.Denials.Value),
		b.Evidence.Denials.Value.rank() < a.Evidence.Denials.Value.rank())
	env := func(p Policy) (all []string) {
		for _, k := range names(p.Env) {
			all = append(all, k+"="+strconv.Quote(p.Env[k].Value))
		}
		return all
	}
	lists("env", env(a), env(b), Other)
	secrets := func(p Policy) (all []string) {
		for _, k := range names(p.Secrets) {
			all = append(all, k+"="+string(p.Secrets[k].Value))
		}
		return all
	}
	lists("secrets", secrets(a), secrets(b), Wider)
	return out
}

func texts[T fmt.Stringer](list []Said[T]) (all []string) {
	for _, s := range list {
		all = append(all, s.Value.String())
	}
	return all
}

func ruleTexts(rules []Rule) (all []string) {
	for _, r := range rules {
		all = append(all, r.String())
	}
	return all
}
