package policy

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
)

// schema is a JSON Schema.
type schema map[string]any

// shape is what may be at one place of a file. The parser and the schema of a place are one value, so that they cannot
// differ.
type shape[T any] struct {
	schema schema
	want   string // for people: "a list"
	fits   func(n *yaml.Node) bool
	read   func(r *reader, n *yaml.Node) (T, bool) // n must fit
}

// in reads n, or reports a problem.
func (s shape[T]) in(r *reader, n *yaml.Node) (v T, ok bool) {
	if s.fits(n) {
		return s.read(r, n)
	}
	hint := ""
	if n.Kind == yaml.ScalarNode && n.Value == "~" {
		hint = `YAML reads ~ as null; quote it: "~"`
	} else if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" && n.ShortTag() != "!!str" && s.want == "a text" {
		hint = `to use it as text, quote it: "` + n.Value + `"`
	}
	r.wrong(n, hint, "expected %[2]s, got %[1]s", kind(n), s.want)
	return v, false
}

func scalar(tags ...string) func(*yaml.Node) bool {
	return func(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag()) }
}

// parsed is a shape whose values parse parses.
func parsed[T any](want string, s schema, parse func(string) (T, error), tags ...string) shape[T] {
	return shape[T]{s, want, scalar(tags...), func(r *reader, n *yaml.Node) (T, bool) {
		v, err := parse(n.Value)
		if err != nil {
			r.because(n, err)
		}
		return v, err == nil
	}}
}

// text is a string that parse parses.
func text[T any](want string, parse func(string) (T, error)) shape[T] {
	return parsed(want, schema{"type": "string"}, parse, "!!str")
}

// compiled compiles a pattern on first use: most files use few of the keys.
func compiled(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// matching requires the text of s to match a pattern, which is also in the schema.
func matching[T any](s shape[T], pattern string) shape[T] {
	s.schema["pattern"] = pattern
	read, match := s.read, compiled(pattern)
	s.read = func(r *reader, n *yaml.Node) (T, bool) {
		v, ok := read(r, n)
		if ok && n.ShortTag() == "!!str" && !match().MatchString(n.Value) {
			r.wrong(n, "", "%q is not %s", n.Value, s.want)
			return v, false
		}
		return v, ok
	}
	return s
}

// choice is one of the given words.
func choice[T ~string](words ...T) shape[T] {
	var all []string
	for _, w := range words {
		all = append(all, string(w))
	}
	want := "one of " + strings.Join(all, ", ")
	s := schema{"type": "string", "enum": all}
	return shape[T]{s, want, scalar("!!str"), func(r *reader, n *yaml.Node) (T, bool) {
		if slices.Contains(all, n.Value) {
			return T(n.Value), true
		}
		hint := "they are " + strings.Join(all, ", ")
		if near := fault.Nearest(n.Value, all); near != "" {
			hint = "did you mean " + near + "? " + hint
		}
		r.wrong(n, hint, "unknown value %q", n.Value)
		return "", false
	}}
}

// truth is true or false.
func truth() shape[bool] {
	return shape[bool]{schema{"type": "boolean"}, "true or false", scalar("!!bool"),
		func(r *reader, n *yaml.Node) (bool, bool) {
			if n.Value != "true" && n.Value != "false" {
				r.wrong(n, "use true or false", "invalid value %q: must be true or false", n.Value)
				return false, false
			}
			return n.Value == "true", true
		}}
}

// whole is a whole number from least to most.
func whole(least, most int64) shape[int64] {
	return shape[int64]{schema{"type": "integer", "minimum": least, "maximum": most}, "a whole number", scalar("!!int"),
		func(r *reader, n *yaml.Node) (int64, bool) {
			v, ok := number(n.Value, most)
			if ok = ok && v >= least; !ok {
				r.wrong(n, "use decimal digits only", "invalid number %s: must be a whole number from %d to "+
					"%d", n.Value, least, most)
			}
			return v, ok
		}}
}

// list is a list of items, at least as many as least.
func list[T any](item shape[T], least int) shape[[]T] {
	s := schema{"type": "array", "items": item.schema}
	if least > 0 {
		s["minItems"] = least
	}
	return shape[[]T]{s, "a list", func(n *yaml.Node) bool { return n.Kind == yaml.SequenceNode },
		func(r *reader, n *yaml.Node) ([]T, bool) {
			all, whole := []T{}, true
			for _, c := range n.Content {
				v, ok := item.in(r, c)
				if whole = whole && ok; ok {
					all = append(all, v)
				}
			}
			if len(n.Content) < least {
				r.wrong(n, "omit the key", "an empty list")
				return nil, false
			}
			return all, whole
		}}
}

// said adds the origin to a value.
func said[T any](s shape[T]) shape[Said[T]] {
	return shape[Said[T]]{s.schema, s.want, s.fits, func(r *reader, n *yaml.Node) (Said[T], bool) {
		v, ok := s.read(r, n)
		return Said[T]{v, r.at(n)}, ok
	}}
}

// words is a mapping from arbitrary keys that match a pattern to values.
func words[T any](pattern, what string, value shape[T]) shape[map[string]T] {
	match := compiled(pattern)
	s := schema{"type": "object", "additionalProperties": value.schema, "propertyNames": schema{"pattern": pattern}}
	return shape[map[string]T]{s, "a mapping", func(n *yaml.Node) bool { return n.Kind == yaml.MappingNode },
		func(r *reader, n *yaml.Node) (map[string]T, bool) {
			all, whole := map[string]T{}, true
			r.keys(n, func(key, n *yaml.Node) {
				if !match().MatchString(key.Value) {
					r.wrong(key, "", "invalid %[2]s %[1]q", key.Value, what)
					whole = false
					return
				}
				v, ok := value.in(r, n)
				all[key.Value], whole = v, whole && ok
			})
			return all, whole
		}}
}

// either is a or b, which must fit different nodes.
func either[T any](a, b shape[T]) shape[T] {
	return shape[T]{schema{"anyOf": []any{a.schema, b.schema}}, a.want + " or " + b.want,
		func(n *yaml.Node) bool { return a.fits(n) || b.fits(n) },
		func(r *reader, n *yaml.Node) (T, bool) {
			if a.fits(n) {
				return a.read(r, n)
			}
			return b.read(r, n)
		}}
}

// field is one key of an object.
type field[T any] struct {
	name   string
	needed bool
	schema schema
	set    func(r *reader, to *T, n *yaml.Node) bool
}

// key returns a field; doc describes it, for users.
func key[T, V any](name, doc string, s shape[V], set func(to *T, v V)) field[T] {
	described := schema{"description": doc}
	for k, v := range s.schema {
		described[k] = v
	}
	return field[T]{name, false, described, func(r *reader, to *T, n *yaml.Node) bool {
		v, ok := s.in(r, n)
		if ok {
			set(to, v)
		}
		return ok
	}}
}

// object is a mapping of the given keys, each at most once. start returns the initial value.
func object[T any](start func(r *reader, n *yaml.Node) T, fields ...field[T]) shape[T] {
	properties, needed, names := schema{}, []string{}, []string{}
	for _, f := range fields {
		properties[f.name] = f.schema
		names = append(names, f.name)
		if f.needed {
			needed = append(needed, f.name)
		}
	}
	s := schema{"type": "object", "additionalProperties": false, "properties": properties}
	if len(needed) > 0 {
		s["required"] = needed
	}
	return shape[T]{s, "a mapping", func(n *yaml.Node) bool { return n.Kind == yaml.MappingNode },
		func(r *reader, n *yaml.Node) (T, bool) {
			to, whole, seen := start(r, n), true, []string{}
			r.keys(n, func(key, n *yaml.Node) {
				i := slices.Index(names, key.Value)
				if i < 0 {
					hint := "the keys here are " + strings.Join(names, ", ")
					if near := fault.Nearest(key.Value, names); near != "" {
						hint = "did you mean " + near + "? " + hint
					}
					r.wrong(key, hint, "unknown key %q", key.Value)
					whole = false
					return
				}
				seen = append(seen, key.Value)
				whole = fields[i].set(r, &to, n) && whole
			})
			for _, name := range needed {
				if !slices.Contains(seen, name) {
					r.wrong(n, "", "%s is missing", name)
					whole = false
				}
			}
			return to, whole
		}}
}

// keys calls each once for every key of a mapping that is a string.
func (r *reader) keys(n *yaml.Node, each func(key, value *yaml.Node)) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.ShortTag() == "!!merge":
			r.wrong(key, "write the keys out", "merge keys are not supported")
		case !scalar("!!str")(key):
			r.wrong(key, "", "a key must be text, got %s", kind(key))
		case lines[key.Value] > 0:
			r.wrong(key, "remove one of them", "duplicate key %q, first in line %d", key.Value, lines[key.Value])
		default:
			lines[key.Value] = key.Line
			each(key, value)
		}
	}
}
