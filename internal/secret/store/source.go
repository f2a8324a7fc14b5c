package store

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Source is a secret in a store, as a user names it after --from.
type Source struct {
	Store string // "age", "file", "command", "env", "vault" or "ssh-agent"
	Ref   Ref    // for age without a name, which is that of the secret
}

// presets are commands of programs that hold secrets. A preset with an argument is written NAME:ARGUMENT, and its
// argument follows the last word.
var presets = map[string]struct {
	argv     []string // without an argument; nil: requires one
	argument []string // words before the argument; nil: takes none
	first    bool
}{
	"gh":   {argv: []string{"gh", "auth", "token"}, argument: []string{"gh", "auth", "token", "--hostname"}},
	"op":   {argument: []string{"op", "read", "--no-newline"}},
	"pass": {argument: []string{"pass", "show"}, first: true},
	"gcloud": {argv: []string{"gcloud", "auth", "print-access-token"},
		argument: []string{"gcloud", "auth", "print-access-token"}},
	"aws": {argv: []string{"aws", "configure", "export-credentials", "--format", "process"},
		argument: []string{"aws", "configure", "export-credentials", "--format", "process", "--profile"}},
}

const sourceHint = "use age, file:PATH, file:PATH#/FIELD, command:PROGRAM ARGUMENT..., env:NAME, " +
	"vault:MOUNT/PATH#FIELD, ssh-agent:COMMENT, gh, op://VAULT/ITEM/FIELD, pass:NAME, gcloud or aws"

// Parse parses what a user writes after --from:
//
//	age                      the encrypted store
//	file:PATH[#/POINTER]     a file, or a field of one in JSON (RFC 6901)
//	command:WORD...          the output of a program: see Words
//	env:NAME                 a variable
//	vault:MOUNT/PATH#FIELD   a field of a secret in Vault or OpenBao
//	ssh-agent:KEY            a key of the owner's SSH agent, by its fingerprint or comment
//	gh[:HOST]                a token of GitHub's program
//	op://VAULT/ITEM/FIELD    a field in 1Password
//	pass:NAME                the first line of an entry of pass
//	gcloud[:ACCOUNT]         an access token of Google Cloud's program
//	aws[:PROFILE]            credentials of AWS's program
//
// It returns Invalid for anything else. It reads no file. The error contains no more of the text than a path: the text
// may be a value that was pasted in the wrong place, and arguments of a command may be secret.
func Parse(from string) (Source, error) {
	name, rest, more := strings.Cut(from, ":")
	var s Source
	var err error
	switch name {
	case "age":
		if s.Store = name; more {
			err = fault.New(fault.Invalid, "must be age alone: the name is that of the secret")
		}
	case "file":
		s.Store = name
		s.Ref, err = parseFile(rest)
	case "env":
		s = Source{Store: name, Ref: Ref{Name: rest}}
		err = checkVariable(rest)
	case "vault":
		s.Store = name
		s.Ref, err = parseVault(rest)
	case "ssh-agent":
		s = Source{Store: name, Ref: Ref{Name: rest}}
		if rest == "" || hasControl(rest) {
			err = fault.New(fault.Invalid, "must be ssh-agent:FINGERPRINT or ssh-agent:COMMENT").
				WithHint("list the keys of the agent: ssh-add -l")
		}
	case "command":
		s.Store = name
		s.Ref.Argv, err = Words(rest)
	default:
		s, err = parsePreset(name, rest, more)
	}
	if err != nil {
		hint := fault.HintOf(err)
		if hint == "" {
			hint = sourceHint
		}
		return Source{}, fault.New(fault.Invalid, "invalid source of a secret").Because(err).WithHint("%s", hint)
	}
	return s, nil
}

func parsePreset(name, rest string, more bool) (Source, error) {
	p, known := presets[name]
	switch {
	case !known:
		options := []string{"age", "file", "env", "vault", "ssh-agent", "command", "gh", "op", "pass", "gcloud", "aws"}
		if near := fault.Nearest(name, options); near != "" {
			return Source{}, fault.New(fault.Invalid, "unknown store: did you mean %q?", near)
		}
		return Source{}, fault.New(fault.Invalid, "unknown store")
	case !more && p.argv != nil:
		return Source{Store: "command", Ref: Ref{Argv: slices.Clone(p.argv), First: p.first}}, nil
	case name == "op":
		rest = "op:" + rest
	}
	// An argument that begins with - would be an option of the program.
	if rest == "" || strings.HasPrefix(rest, "-") || hasControl(rest) ||
		name == "op" && !strings.HasPrefix(rest, "op://") {
		return Source{}, fault.New(fault.Invalid, "invalid argument of %s", name)
	}
	return Source{Store: "command", Ref: Ref{Argv: append(slices.Clone(p.argument), rest), First: p.first}}, nil
}

func parseFile(rest string) (Ref, error) {
	name, field, more := strings.Cut(rest, "#/")
	ref := Ref{Path: name}
	if more {
		ref.Field = "/" + field
	}
	return ref, ref.checkFile()
}

// checkFile returns Invalid if the fields for a file are wrong.
func (r Ref) checkFile() error {
	if !filepath.IsAbs(r.Path) || hasControl(r.Path) {
		return fault.New(fault.Invalid, "invalid path %.200q: must be absolute", r.Path)
	}
	if r.Field == "" {
		return nil
	}
	_, err := pointer(r.Field)
	return err
}

func parseVault(rest string) (Ref, error) {
	name, field, _ := strings.Cut(rest, "#")
	ref := Ref{Path: name, Field: field}
	return ref, ref.checkVault()
}

// checkVault returns Invalid if the fields for Vault are wrong. What sys and auth answer are not secrets of the user.
func (r Ref) checkVault() error {
	mount, rest, _ := strings.Cut(r.Path, "/")
	switch {
	case mount == "" || rest == "" || path.Clean("/"+r.Path) != "/"+r.Path || hasControl(r.Path):
		return fault.New(fault.Invalid, "invalid path %.200q: must be MOUNT/PATH", r.Path)
	case mount == "sys" || mount == "auth":
		return fault.New(fault.Invalid, "invalid path %.200q: %s has no secrets", r.Path, mount)
	case r.Field == "" || hasControl(r.Field):
		return fault.New(fault.Invalid, "no field of %.200q is named", r.Path).
			WithHint("name it: vault:%s#FIELD", r.Path)
	}
	return nil
}

// checkVariable returns Invalid if name cannot be that of a variable.
func checkVariable(name string) error {
	for i, c := range name {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return fault.New(fault.Invalid, "invalid name of a variable: position %d", i+1)
		}
	}
	if name == "" {
		return fault.New(fault.Invalid, "the name of the variable is empty")
	}
	return nil
}

// hasControl reports whether s has control characters.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// special are the characters that mean more to a shell.
const special = "$`|&;<>()*?[]{}~#!"

// Words splits a command line into words as a shell does, but expands nothing: spaces separate words; single quotes,
// double quotes and a backslash quote. Characters that mean more to a shell must be quoted; unquoted, they are Invalid,
// so that a command never differs silently from what a shell would run.
func Words(line string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	in, escaped := false, false
	for _, c := range line {
		switch {
		case c < ' ' && c != '\t' || c == 0x7f:
			return nil, fault.New(fault.Invalid, "the command has a control character")
		case escaped:
			if quote == '"' && c != '"' && c != '\\' && c != '$' && c != '`' {
				word.WriteByte('\\')
			}
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, in = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote == '"' && (c == '$' || c == '`'), quote == 0 && strings.ContainsRune(special, c):
			return nil, fault.New(fault.Invalid, "%q must be quoted: the command runs without a shell", c).
				WithHint("use a shell if you need one: command:sh -c '...'")
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t':
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			word.WriteRune(c)
			in = true
		}
	}
	if quote != 0 || escaped {
		return nil, fault.New(fault.Invalid, "a quotation in the command does not end")
	}
	if in {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, fault.New(fault.Invalid, "the command is empty")
	}
	return words, nil
}
