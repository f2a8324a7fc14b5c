package audit

import (
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/redact"
)

// LeftOut replaces a text if no redactor could be made.
const LeftOut = "[not redacted, left out]"

// Cleaner redacts secrets from texts of a sandbox before they are stored; see docs/redaction.md. The methods that
// start with Record also bound a text, for a record of the audit log. The zero Cleaner has no redactor: it replaces
// each text by LeftOut, and keeps no output. The methods are safe for concurrent use.
type Cleaner struct {
	redactor *redact.Redactor
}

func (c Cleaner) bytes(b []byte) []byte {
	if c.redactor == nil {
		return []byte(LeftOut)
	}
	return c.redactor.Bytes(b)
}

// Redact returns a text of any length with secrets redacted.
func (c Cleaner) Redact(text string) string { return string(c.bytes([]byte(text))) }

// RedactAll is Redact for each text of a list.
func (c Cleaner) RedactAll(texts []string) []string {
	out := make([]string, len(texts))
	for i, s := range texts {
		out[i] = c.Redact(s)
	}
	return out
}

// RedactPrograms returns programs whose arguments are redacted, and bounded as by RecordArgs.
func (c Cleaner) RedactPrograms(programs []wire.Program) []wire.Program {
	out := slices.Clone(programs)
	for i := range out {
		out[i].Args = c.RecordArgs(out[i].Args)
	}
	return out
}

// CheckName refuses a name that contains a secret, since names are shown wherever a sandbox is mentioned.
// what is the kind of the name, for the error.
func (c Cleaner) CheckName(what, name string) error {
	if c.Redact(name) == name {
		return nil
	}
	return fault.New(fault.Invalid, "the %s contains a secret", what).WithHint("choose another one")
}

// RecordText returns a text from outside for a record: redacted, valid UTF-8, and at most limit.RecordText bytes
// long.
func (c Cleaner) RecordText(s string) string {
	s = strings.ToValidUTF8(string(c.bytes([]byte(s))), "\ufffd")
	if len(s) > limit.RecordText {
		s = strings.ToValidUTF8(s[:limit.RecordText-len("...")], "") + "..."
	}
	return s
}

// RecordArgs is RecordText for the arguments of a command. It keeps limit.RecordArgs bytes of them; the last element
// then counts the omitted ones. An argument that follows a flag is redacted as the value of the flag.
func (c Cleaner) RecordArgs(args []string) []string {
	var out []string
	room := limit.RecordArgs
	for i, w := range args {
		said := c.RecordText(w)
		if i > 0 && strings.HasPrefix(args[i-1], "-") {
			flag := strings.TrimLeft(args[i-1], "-") + "="
			if value, same := strings.CutPrefix(c.RecordText(flag+w), flag); same {
				said = value
			}
		}
		if room -= EncodedLen(said); room < 0 {
			return append(out, andMore(len(args)-i))
		}
		out = append(out, said)
	}
	return out
}

// RecordEnvNames returns the sorted, distinct names of variables without their values. It keeps limit.RecordNames
// bytes of them; the last element then counts the omitted ones.
func (c Cleaner) RecordEnvNames(env ...string) []string {
	var names []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, c.RecordText(name))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	room := limit.RecordNames
	for i, name := range names {
		if room -= EncodedLen(name); room < 0 {
			return append(names[:i:i], andMore(len(names)-i))
		}
	}
	return names
}

// RecordChanges returns the changed paths for a record, sorted: at most limit.RecordChanges of them, in
// limit.RecordPaths bytes. change returns how a path changed, as in format.Change.
func (c Cleaner) RecordChanges(paths []string, change func(path string) string) (out []format.Change) {
	room := limit.RecordPaths
	for i, p := range paths {
		text := c.RecordText(p)
		if room -= EncodedLen(text); i == limit.RecordChanges || room < 0 {
			break
		}
		out = append(out, format.Change{Change: change(p), Path: text})
	}
	slices.SortFunc(out, func(a, b format.Change) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// EncodedLen returns how many bytes a text takes at most as an element of a JSON list.
func EncodedLen(s string) int {
	n := len(`"",`)
	for i := range len(s) {
		if n++; s[i] < ' ' || s[i] == '"' || s[i] == '\\' {
			n += len(`\u001`)
		}
	}
	return n
}

// andMore returns the last element of a list from which n elements are omitted.
func andMore(n int) string { return "... and " + strconv.Itoa(n) + " more" }
