// Package filter chooses sandboxes by terms KEY=VALUE, as `docker ps --filter` chooses containers. The
// package is pure.
package filter

import (
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/label"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The keys of terms.
const (
	KeyLabel  = "label"  // KEY, or KEY=VALUE
	KeyName   = "name"   // a pattern, as in path.Match
	KeyState  = "state"  // a state of `coppice ls`, or running, stopped or quarantined
	KeyTier   = "tier"   // in force
	KeyDriver = "driver" // in force
	KeyOrigin = "origin" // name of the parent at the time of the fork
)

// Keys lists the keys, in the order of the documents.
func Keys() []string { return []string{KeyLabel, KeyName, KeyState, KeyTier, KeyDriver, KeyOrigin} }

// Values lists all values of a key, or nil if its values are not a fixed set.
func Values(key string) []string {
	switch key {
	case KeyState:
		return []string{"running", "paused", "stopped", "unavailable", "quarantined", wire.StateLive, wire.StateIdle}
	case KeyTier:
		return []string{"workspace", "process", "supervised", "container", "gvisor"}
	case KeyDriver:
		return []string{"overlay", "copy", "btrfs"}
	}
	return nil
}

// test reports whether a sandbox satisfies a term.
type test func(*wire.Sandbox) bool

// Filter chooses sandboxes. The zero value chooses all. It is immutable, and safe for concurrent use.
type Filter struct {
	groups map[string][]test // the terms of each key; for labels, of each key of a label
}

// Parse parses terms. A sandbox is chosen if it satisfies a term of each key; terms about different label keys are
// terms of different keys. The error is Invalid for a term that is not KEY=VALUE, has an unknown key, or a value that
// the key does not have, and TooLarge for more terms than limit.FilterTerms.
func Parse(terms []string) (Filter, error) {
	if len(terms) > limit.FilterTerms {
		return Filter{}, fault.New(fault.TooLarge, "too many filters: %d; the limit is %d", len(terms), limit.FilterTerms).
			WithHint("choose sandboxes by a label: coppice ls --filter label=KEY=VALUE")
	}
	f := Filter{groups: make(map[string][]test, len(terms))}
	for _, term := range terms {
		group, t, err := parse(term)
		if err != nil {
			return Filter{}, err
		}
		f.groups[group] = append(f.groups[group], t)
	}
	return f, nil
}

// parse parses one term. Terms of the same group are alternatives.
func parse(term string) (group string, t test, err error) {
	key, value, given := strings.Cut(term, "=")
	switch {
	case !slices.Contains(Keys(), key):
		return "", nil, fault.New(fault.Invalid, "unknown filter key %.40q: must be %s", key, listed(Keys())).
			WithHint("as in: coppice ls --filter label=team=web --filter state=running")
	case !given || value == "":
		return "", nil, fault.New(fault.Invalid, "invalid filter %q: must be %s=VALUE", key, key).
			WithHint("as in: coppice ls --filter %s=%s", key, example(key))
	case Values(key) != nil && !slices.Contains(Values(key), value):
		return "", nil, fault.New(fault.Invalid, "unknown %s %.40q: must be %s", key, value, listed(Values(key))).
			WithHint("as in: coppice ls --filter %s=%s", key, example(key))
	}
	switch key {
	case KeyLabel:
		of, want, exact := strings.Cut(value, "=")
		if err := label.CheckKey(of); err != nil {
			return "", nil, err
		}
		return key + "=" + of, func(sb *wire.Sandbox) bool {
			has, ok := sb.Labels[of]
			return ok && (!exact || has == want)
		}, nil
	case KeyName:
		if _, err := path.Match(value, ""); err != nil {
			return "", nil, fault.New(fault.Invalid, "invalid name pattern %.80q: must be a glob pattern", value).
				WithHint("as in: coppice ls --filter 'name=%s'", example(key))
		}
		return key, func(sb *wire.Sandbox) bool {
			ok, err := path.Match(value, sb.Name)
			return ok && err == nil
		}, nil
	case KeyState:
		return key, func(sb *wire.Sandbox) bool { return inState(sb, value) }, nil
	case KeyTier:
		return key, func(sb *wire.Sandbox) bool { return sb.Tier == value }, nil
	case KeyDriver:
		return key, func(sb *wire.Sandbox) bool { return sb.Driver == value }, nil
	default:
		return key, func(sb *wire.Sandbox) bool { return Origin(sb) == value }, nil
	}
}

// Match reports whether sb is chosen.
func (f Filter) Match(sb *wire.Sandbox) bool {
	for _, alternatives := range f.groups {
		if !slices.ContainsFunc(alternatives, func(t test) bool { return t(sb) }) {
			return false
		}
	}
	return true
}

// Choose returns the chosen sandboxes of list, in their order. It reuses list.
func (f Filter) Choose(list []wire.Sandbox) []wire.Sandbox {
	return slices.DeleteFunc(list, func(sb wire.Sandbox) bool { return !f.Match(&sb) })
}

// Origin returns the name, at the time of the fork, of the sandbox that sb is a fork of, or "".
func Origin(sb *wire.Sandbox) string {
	name, at, _ := strings.Cut(sb.From, "@")
	if _, err := timeline.ParseSnapshotID(at); err != nil || timeline.ValidName(name) != nil {
		return "" // From may also be a path with an "@"
	}
	return name
}

// inState reports whether sb is in a state of Values. A paused sandbox is neither live nor running, as
// `coppice ls` shows it.
func inState(sb *wire.Sandbox, state string) bool {
	switch state {
	case "quarantined":
		return sb.Quarantine != nil
	case "paused":
		return sb.Paused
	case "running":
		state = wire.StateLive
	case "stopped":
		state = wire.StateIdle
	}
	return sb.State == state && !sb.Paused
}

// example returns a value of a key, for a hint.
func example(key string) string {
	if values := Values(key); values != nil {
		return values[0]
	}
	return map[string]string{KeyLabel: "team=web", KeyName: "web-*", KeyOrigin: "box"}[key]
}

// listed joins words with commas, and "or" before the last.
func listed(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
