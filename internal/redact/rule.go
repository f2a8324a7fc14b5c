package redact

import (
	"bytes"
	_ "embed" // the known formats
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
)

//go:embed rules.txt
var rulesText string

// rule is a known format. If one of its keys is found, and the byte before is not in left, head is matched against
// near bytes from the key on. The first group of head is the secret, or the whole match. If there is a body, the
// secret continues after the head while bytes are of that class, and over tail, if that follows.
type rule struct {
	name  string
	keys  []string // folded; no key of a rule is a prefix of another
	left  string   // a class, or ""
	sign  bool     // the word that the key is part of must be followed by ":" or "="; see assigned
	needs string   // one of these bytes must be near, or ""
	near  int      // number of bytes that head is matched against
	head  string
	body  string // a class, or ""
	tail  string // or ""
	quote bool   // in the body, a backslash also takes the next byte

	keep, drop []string // examples: with the secret between ‹ and ›, and without one

	ready func() machine // compiles the rule when it is first needed: most rules never are
}

// machine is a compiled rule.
type machine struct {
	left, body *class
	head, tail *regexp.Regexp
}

// class is a set of bytes.
type class [256]bool

// nearest is the default of near. No rule has a smaller one, and a mark is shorter.
const nearest = 128

// nearTail is the maximum length of a tail.
const nearTail = 96

// builtin reads the known formats.
func builtin() ([]*rule, error) {
	var all []*rule
	for i, line := range strings.Split(rulesText, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if word == "rule" {
			all = append(all, &rule{name: rest, near: nearest})
			continue
		}
		if len(all) == 0 || !all[len(all)-1].set(word, rest) {
			return nil, fault.New(fault.Internal, "rules.txt:%d: unexpected %q", i+1, word)
		}
	}
	for _, l := range all {
		l.ready = sync.OnceValue(l.machine)
	}
	return all, nil
}

// set parses one line of a rule.
func (l *rule) set(word, rest string) bool {
	switch word {
	case "keys":
		l.keys = append(l.keys, strings.Fields(strings.ToLower(rest))...)
	case "left":
		l.left = rest
	case "sign":
		l.sign = true
	case "needs":
		l.needs = rest
	case "near":
		l.near, _ = strconv.Atoi(rest)
	case "head":
		l.head = rest
	case "body":
		l.body = rest
	case "tail":
		l.tail = rest
	case "quote":
		l.quote = true
	case "yes":
		l.drop = append(l.drop, example(rest))
	case "no":
		l.keep = append(l.keep, example(rest))
	default:
		return false
	}
	return true
}

// example decodes an example: a "~" keeps secret scanners from taking it for a leaked secret, and `\r`, `
// ` and `\t` are as in Go.
func example(text string) string {
	return strings.NewReplacer("~", "", `\n`, "\n", `\r`, "\r", `\t`, "\t", `\\`, `\`).Replace(text)
}

// machine compiles a rule; a test checks that all rules compile.
func (l *rule) machine() machine {
	m := machine{head: regexp.MustCompile(`\A(?:` + l.head + `)`)}
	if l.left != "" {
		m.left = members(l.left)
	}
	if l.body != "" {
		m.body = members(l.body)
	}
	if l.tail != "" {
		m.tail = regexp.MustCompile(`\A(?:` + l.tail + `)`)
	}
	return m
}

// worth reports whether the head can match near.
func (l *rule) worth(near []byte) bool {
	return (!l.sign || assigned(near)) && (l.needs == "" || bytes.ContainsAny(near, l.needs))
}

// assigned reports whether ":" or "=" follows a word, its closing quote and white space.
func assigned(near []byte) bool {
	i := 0
	for i < len(near) &&
		(near[i] == '_' || near[i] == '-' || near[i] == '.' || '0' <= near[i] && near[i] <= '9' || 'a' <= lower(near[i]) &&
			lower(near[i]) <= 'z') {
		i++
	}
	for i < len(near) && strings.IndexByte("\\\"' \t\r\n\f", near[i]) >= 0 {
		i++
	}
	return i < len(near) && (near[i] == ':' || near[i] == '=')
}

// members reads a class in the syntax of RE2. It contains the non-ASCII bytes if the class matches non-ASCII
// characters.
func members(text string) *class {
	re := regexp.MustCompile(text)
	var c class
	beyond := re.MatchString("\u00e9")
	for b := range c {
		c[b] = beyond
		if b < 0x80 {
			c[b] = re.Match([]byte{byte(b)})
		}
	}
	return &c
}
