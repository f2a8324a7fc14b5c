package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/visible"
)

// MaxSize is the maximum size of a file, in bytes.
const MaxSize = 256 << 10

// reader parses one file, and collects its problems.
type reader struct {
	name     string
	dir      string
	problems Problems
	warnings Problems
}

// wrong reports a problem at n.
func (r *reader) wrong(n *yaml.Node, hint, format string, args ...any) {
	r.problems = append(r.problems, Problem{r.name, n.Line, n.Column, fmt.Sprintf(format, args...), hint})
}

// because reports err as a problem at n.
func (r *reader) because(n *yaml.Node, err error) { r.wrong(n, fault.HintOf(err), "%s", err) }

// warn reports a possible mistake at n.
func (r *reader) warn(n *yaml.Node, format string, args ...any) {
	r.warnings = append(r.warnings, Problem{r.name, n.Line, n.Column, fmt.Sprintf(format, args...), ""})
}

// at returns the origin of n.
func (r *reader) at(n *yaml.Node) Origin { return Origin{r.name, n.Line} }

// root returns the top node of a file, or nil after reporting problems. The node is plain: no aliases, no tags, no
// invisible characters.
func (r *reader) root(text []byte) *yaml.Node {
	top := &yaml.Node{Line: 1, Column: 1}
	if len(text) > MaxSize {
		r.wrong(top, "", "the file is larger than %d bytes", MaxSize)
		return nil
	}
	if r.characters(text); r.problems != nil {
		return nil
	}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		r.wrong(top, form, "the file is empty")
		return nil
	} else if err != nil {
		r.syntax(text, err)
		return nil
	}
	if err := dec.Decode(&more); err == nil {
		r.wrong(&more, "", "the file has more than one document")
		return nil
	} else if !errors.Is(err, io.EOF) {
		r.syntax(text, err)
		return nil
	}
	var lines [][]rune
	for l := range strings.SplitSeq(string(text), "\n") {
		lines = append(lines, []rune(l))
	}
	if r.plain(&doc, lines); r.problems != nil {
		return nil
	}
	return doc.Content[0]
}

// form is the hint about the form of a file.
const form = "for example: {version: 1, network: {presets: [pypi], allow: [example.com]}}"

// characters refuses bytes that are not UTF-8, and characters that are invisible or have a special meaning.
func (r *reader) characters(text []byte) {
	line, column := 1, 0
	for i := 0; i < len(text) && len(r.problems) <= maxProblems; {
		c, size := utf8.DecodeRune(text[i:])
		column++
		at := &yaml.Node{Line: line, Column: column}
		switch {
		case c == utf8.RuneError && size == 1:
			r.wrong(at, "encode the file in UTF-8", "the file is not UTF-8")
			return
		case c == '\n':
			line, column = line+1, 0
		case c == '\r' && i+1 < len(text) && text[i+1] == '\n':
		case c == '\t':
			r.wrong(at, "use spaces", "a tab")
		case column == 1 && c == '%':
			r.wrong(at, "", "a directive: not supported in this file")
		case !visible.Rune(c):
			r.wrong(at, fmt.Sprintf("in double quotes it can be written as \\u%04x", c),
				"an invisible character, U+%04X", c)
		}
		i += size
	}
}

// syntax reports an error of the YAML parser, which has a line at most.
func (r *reader) syntax(text []byte, err error) {
	m := regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`).FindStringSubmatch(err.Error())
	at := &yaml.Node{Line: 1, Column: 1}
	what := strings.TrimPrefix(err.Error(), m[0])
	if n, err := strconv.Atoi(m[1]); err == nil {
		at.Line = n
		// The parser counts lines from 0, unlike the scanner below it.
		for _, missing := range []string{"key", "node content", "'", "<"} {
			if strings.HasPrefix(what, "did not find expected "+missing) {
				at.Line++
			}
		}
	}
	if lines := strings.Split(string(text), "\n"); at.Line <= len(lines) {
		l := lines[at.Line-1]
		at.Column = len(l) - len(strings.TrimLeft(l, " ")) + 1
	}
	r.wrong(at, "put a text with any of * : # [ ] { } & ! % @ in quotes", "invalid YAML: %s", what)
}

// plain refuses YAML features that give a file another meaning than it appears to have. lines are the lines of the
// file: a lone ! leaves no trace in n except that n begins with it, and "! x" may be meant as a denial.
func (r *reader) plain(n *yaml.Node, lines [][]rune) {
	bang := n.Line > 0 && n.Line <= len(lines) && n.Column > 0 && n.Column <= len(lines[n.Line-1]) &&
		lines[n.Line-1][n.Column-1] == '!'
	switch {
	case n.Kind == yaml.AliasNode:
		r.wrong(n, "write it out; a text that begins with * goes in quotes", "an alias")
	case n.Anchor != "":
		r.wrong(n, "write it out where it is needed", "an anchor, &%s", n.Anchor)
	case n.Style&yaml.TaggedStyle != 0, bang:
		r.wrong(n, "leave it out; a text that begins with ! goes in quotes", "a tag")
	case !utf8.ValidString(n.Value),
		strings.ContainsFunc(n.Value, func(c rune) bool { return c > 0xffff && !visible.Rune(c) || c == utf8.RuneError }):
		// JSON has no four-digit escape for these.
		r.wrong(n, "", "an escape that is not a character")
	}
	for _, c := range n.Content {
		r.plain(c, lines)
	}
}

// kind describes a node, for users.
func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "a truth value"
	case "!!int", "!!float":
		return "a number"
	case "!!timestamp":
		return "a date"
	}
	return "a text"
}
