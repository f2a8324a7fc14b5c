package redact

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/coppice-dev/coppice/internal/fault"
)

const (
	// MinSecret is the minimum length of a value, in bytes without the white space around it, that can be replaced
	// without destroying text.
	MinSecret = 6
	// MaxSecret is the maximum length of a value.
	MaxSecret = 16 << 10
	// MaxSecrets is the maximum length of all values together. Each byte costs about 0.7 KiB of memory.
	MaxSecrets = 64 << 10

	minKey = 16
)

// Secret is a value that the host knows. Several may have one name.
type Secret struct {
	Name  string // name in marks: at most 64 letters, digits, "_", "." and "-"
	Value string
}

// Options configures a Redactor. Key is required; the known formats are always redacted.
type Options struct {
	Key      []byte // of the home, for fingerprints: at least 16 bytes
	Secrets  []Secret
	Patterns []Pattern
	Entropy  bool // also redact tokens that look random, including commit ids
}

// Reason is why a secret cannot be redacted, or not in every case.
type Reason string

// The reasons.
const (
	TooShort Reason = "too short" // it is not replaced
	TooLong  Reason = "too long"  // it is not replaced, like all values beyond MaxSecrets together
	InMark   Reason = "in mark"   // it is replaced, but the text of a mark contains it
)

// Unfit is a secret that cannot be redacted. The caller must not give it to a sandbox if it is not replaced.
type Unfit struct {
	Name string
	Why  Reason
}

// Redactor knows secrets and formats. It is immutable and safe for concurrent use.
type Redactor struct {
	key      []byte
	secrets  []known
	rules    []*rule
	patterns []compiled
	entropy  bool
	base64   *class // bytes that may surround a form in base64
	token    *class // bytes of tokens that may look random
	words    *automaton
	finds    [][]find // meanings of each word of the automaton
}

// known is a secret as it appears in marks.
type known struct{ name, print string }

// find is the meaning of a found word: a form of a secret, a key of a rule, or the beginning of a mark.
type find struct {
	rule   int // index of the rule of a key; or ofForm, ofMark
	secret int
	size   int  // length of the word, in bytes
	left   bool // the byte before the word carries bits of the secret
	right  bool // the byte after the word carries bits of the secret
}

const (
	ofForm = -1
	ofMark = -2
)

var names = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`) })

// New returns a Redactor, and the secrets that it cannot redact. It returns Invalid for an invalid key, name or
// pattern.
func New(o Options) (*Redactor, []Unfit, error) {
	if len(o.Key) < minKey {
		return nil, nil, fault.New(fault.Invalid, "invalid fingerprint key: %d bytes, must be at least "+
			"%d", len(o.Key), minKey)
	}
	rules, err := builtin()
	if err != nil {
		return nil, nil, err
	}
	patterns, err := compile(o.Patterns)
	if err != nil {
		return nil, nil, err
	}
	r := &Redactor{key: slices.Clone(o.Key), rules: rules, patterns: patterns, entropy: o.Entropy,
		base64: members(`[A-Za-z0-9+/_-]`), token: members(`[A-Za-z0-9+_=-]`)}
	var b builder
	for i, l := range rules {
		for _, key := range l.keys {
			r.learn(&b, key, find{rule: i, size: len(key)})
		}
	}
	r.learn(&b, markBegin, find{rule: ofMark, size: len(markBegin)})
	unfit, err := r.learnSecrets(&b, o.Secrets)
	if err != nil {
		return nil, nil, err
	}
	r.words = b.build()
	return r, unfit, nil
}

// learnSecrets adds the forms of the secrets, each for the first secret that has it.
func (r *Redactor) learnSecrets(b *builder, secrets []Secret) (unfit []Unfit, err error) {
	seen, total := map[string]bool{}, 0
	for _, s := range secrets {
		if !names().MatchString(s.Name) {
			return nil, fault.New(fault.Invalid, "invalid secret name %q", s.Name).
				WithHint("use at most 64 letters, digits, \"_\", \".\" and \"-\"")
		}
		value := strings.TrimSpace(s.Value)
		switch {
		case len(value) < MinSecret:
			unfit = append(unfit, Unfit{s.Name, TooShort})
			continue
		case len(value) > MaxSecret || total+len(value) > MaxSecrets:
			unfit = append(unfit, Unfit{s.Name, TooLong})
			continue
		}
		total += len(value)
		r.secrets = append(r.secrets, known{s.Name, r.fingerprint([]byte(value))})
		for _, f := range forms(value) {
			if word := fold(f.text); !seen[word] {
				seen[word] = true
				r.learn(b, word, find{rule: ofForm, secret: len(r.secrets) - 1, size: len(word), left: f.left, right: f.right})
			}
		}
	}
	for _, s := range secrets {
		if value := fold(strings.TrimSpace(s.Value)); len(value) >= MinSecret && r.inMark(value) {
			unfit = append(unfit, Unfit{s.Name, InMark})
		}
	}
	return unfit, nil
}

func (r *Redactor) learn(b *builder, word string, f find) {
	n := int(b.add(word))
	if n == len(r.finds) {
		r.finds = append(r.finds, nil)
	}
	r.finds[n] = append(r.finds[n], f)
}

// inMark reports whether the text of some mark contains value, which is folded.
func (r *Redactor) inMark(value string) bool {
	in := func(name string) bool { return strings.Contains(fold(mark(name, "")), value) }
	return in(entropyName) ||
		slices.ContainsFunc(r.secrets, func(k known) bool { return in(k.name) }) ||
		slices.ContainsFunc(r.rules, func(l *rule) bool { return in(l.name) }) ||
		slices.ContainsFunc(r.patterns, func(c compiled) bool { return in(c.name) })
}

// Bytes returns b with secrets redacted. The result never shares memory with b.
func (r *Redactor) Bytes(b []byte) []byte {
	s := r.Stream()
	return s.Finish(s.Append(nil, b))
}

// String returns text with secrets redacted: an argument, a path, an address. A rule may depend on the name
// of a value: pass "Cookie: a=b" for a header, "KEY=value" for a variable.
func (r *Redactor) String(text string) string { return string(r.Bytes([]byte(text))) }
