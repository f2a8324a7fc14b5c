package cli

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// candidatesFile is the content of candidates.yaml, the file that describes a tournament:
//
//	base: HEAD~1          # all but candidates is optional
//	test: make test
//	score: ./score.sh
//	jobs: 4
//	timeout: 5m
//	candidates:
//	  - name: cautious    # optional
//	    cmd: agent --plan a
//	  - cmd: agent --plan b
//
// A field that is not in the file has its zero value.
type candidatesFile struct {
	Base       string
	Test       string
	Score      string
	Jobs       int
	Timeout    time.Duration
	Candidates []wire.Candidate
}

// maxCandidatesFile is the maximum size of the file, in bytes.
const maxCandidatesFile = 1 << 20

// parseCandidates parses a file; name is for errors. Parsing is strict: an unknown key, a duplicate key and a value
// of the wrong type are errors of kind fault.Invalid with line and column.
func parseCandidates(name string, text []byte) (f candidatesFile, err error) {
	p := candidatesParser{name}
	if len(text) > maxCandidatesFile {
		return f, fault.New(fault.Invalid, "%s is larger than %d bytes", name, maxCandidatesFile)
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return f, fault.New(fault.Invalid, "%s is empty", name).WithHint(candidatesForm)
	} else if err != nil {
		return f, p.syntax(err)
	}
	if err := dec.Decode(&more); err == nil {
		return f, p.wrong(&more, "more than one YAML document")
	} else if !errors.Is(err, io.EOF) {
		return f, p.syntax(err)
	}
	err = p.mapping(doc.Content[0], map[string]yamlField{
		"base":       p.word(&f.Base),
		"test":       p.command(&f.Test),
		"score":      p.command(&f.Score),
		"jobs":       p.number(&f.Jobs),
		"timeout":    p.duration(&f.Timeout),
		"candidates": p.list(&f.Candidates),
	})
	return f, err
}

// candidatesForm is the hint with an example of the file.
const candidatesForm = "example: {test: make test, candidates: [{name: a, cmd: agent --plan a}, " +
	"{name: b, cmd: agent --plan b}]}"

// candidatesParser reads one file.
type candidatesParser struct{ name string }

// yamlField reads the value of one key.
type yamlField func(*yaml.Node) error

// wrong returns an error with the position of a node.
func (p candidatesParser) wrong(n *yaml.Node, format string, args ...any) *fault.Error {
	e := fault.New(fault.Invalid, format, args...)
	e.Message = p.name + ":" + strconv.Itoa(n.Line) + ":" + strconv.Itoa(n.Column) + ": " + e.Message
	return e
}

func (p candidatesParser) syntax(err error) error {
	return fault.New(fault.Invalid, "%s: %s", p.name, strings.TrimPrefix(err.Error(), "yaml: ")).WithHint(candidatesForm)
}

// mapping reads the keys of a mapping, each at most once.
func (p candidatesParser) mapping(n *yaml.Node, fields map[string]yamlField) error {
	if n.Kind != yaml.MappingNode {
		return p.wrong(n, "got %s, expected a mapping", yamlKind(n)).WithHint(candidatesForm)
	}
	known := slices.Sorted(maps.Keys(fields))
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := fields[key.Value]
		if !ok || key.Kind != yaml.ScalarNode {
			hint := "valid keys: " + strings.Join(known, ", ")
			if near := fault.Nearest(key.Value, known); near != "" {
				hint = "did you mean " + near + "? " + hint
			}
			return p.wrong(key, "unknown key %q", key.Value).WithHint("%s", hint)
		}
		if seen[key.Value] {
			return p.wrong(key, "duplicate key %s", key.Value)
		}
		seen[key.Value] = true
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

// scalar fails unless the node is a scalar with one of the tags.
func (p candidatesParser) scalar(n *yaml.Node, what string, tags ...string) error {
	if n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag()) {
		return nil
	}
	e := p.wrong(n, "got %s, expected %s", yamlKind(n), what)
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return e.WithHint("to use it literally, quote it: %q", n.Value)
	}
	return e
}

// command reads a shell command, which must be a string: a number or a boolean must be quoted.
func (p candidatesParser) command(to *string) yamlField {
	return func(n *yaml.Node) error {
		*to = n.Value
		if err := p.scalar(n, "a command", "!!str"); err != nil {
			return err
		}
		if strings.TrimSpace(n.Value) == "" {
			return p.wrong(n, "command is empty")
		}
		return nil
	}
}

// word reads a name or a reference, which may look like a number.
func (p candidatesParser) word(to *string) yamlField {
	return func(n *yaml.Node) error {
		*to = n.Value
		return p.scalar(n, "a word", "!!str", "!!int", "!!float", "!!timestamp")
	}
}

func (p candidatesParser) number(to *int) yamlField {
	return func(n *yaml.Node) (err error) {
		if err := p.scalar(n, "a number", "!!int"); err != nil {
			return err
		}
		if *to, err = strconv.Atoi(n.Value); err != nil || *to < 1 {
			return p.wrong(n, "invalid number %q: must be at least 1", n.Value)
		}
		return nil
	}
}

func (p candidatesParser) duration(to *time.Duration) yamlField {
	return func(n *yaml.Node) (err error) {
		if err := p.scalar(n, "a duration such as 90s or 5m", "!!str"); err != nil {
			return err
		}
		if *to, err = time.ParseDuration(n.Value); err != nil || *to <= 0 {
			return p.wrong(n, "invalid duration %q: must be positive, as in 90s or 5m", n.Value)
		}
		return nil
	}
}

func (p candidatesParser) list(to *[]wire.Candidate) yamlField {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return p.wrong(n, "got %s, expected a list of candidates", yamlKind(n)).WithHint(candidatesForm)
		}
		names := map[string]bool{}
		for _, item := range n.Content {
			var c wire.Candidate
			if err := p.mapping(item, map[string]yamlField{"name": p.word(&c.Name), "cmd": p.command(&c.Cmd)}); err != nil {
				return err
			}
			switch {
			case c.Cmd == "":
				return p.wrong(item, "candidate has no cmd")
			case c.Name != "" && names[c.Name]:
				return p.wrong(item, "duplicate candidate name %q", c.Name)
			}
			names[c.Name] = true
			*to = append(*to, c)
		}
		return nil
	}
}

// yamlKind describes a node for error messages.
func yamlKind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "a boolean"
	case "!!int", "!!float":
		return "a number"
	case "!!str":
		return "a text"
	}
	return "a value of type " + n.ShortTag()
}
