//go:build linux

package message

import (
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Commands gives the command lines that a reader cares for, each once, oldest
// first.
func Commands(programs []wire.Program) []string {
	var out []string
	for _, p := range roots(programs) {
		line := programLine(p.Args)
		if line != "" && !looks(line) && !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}

// roots leaves the details out: what was started by a program of the same list,
// unless that is a shell that somebody types into.
func roots(programs []wire.Program) []wire.Program {
	typed := map[int]bool{0: true}
	var out []wire.Program
	for _, p := range programs {
		switch own := p.Parent == p.PID; {
		case !typed[p.Parent]:
		case interactive(p.Args):
			typed[p.PID] = true
		default:
			if own {
				typed[p.PID] = false // exec took the shell's place
			}
			out = append(out, p)
		}
	}
	return out
}

var shells = []string{"sh", "bash", "dash", "zsh", "ash", "ksh", "fish"}

func isShell(word string) bool {
	return slices.Contains(shells, strings.TrimPrefix(path.Base(word), "-")) // a login shell's name begins with "-"
}

// interactive reports whether args are a shell without a script.
func interactive(args []string) bool {
	if len(args) == 0 || !isShell(args[0]) {
		return false
	}
	return !slices.ContainsFunc(args[1:], func(a string) bool {
		return !strings.HasPrefix(a, "-") || !strings.HasPrefix(a, "--") && strings.Contains(a, "c")
	})
}

// programLine writes a program's arguments on one line, as they would be typed:
// sh -c X is X, and what only prepares the start of another command is left out.
func programLine(args []string) string {
	args = unwrap(args)
	if len(args) == 0 {
		return ""
	}
	if x, ok := script(args); ok {
		return oneLine(evaluated(x))
	}
	if len(args) > 1 && path.IsAbs(args[1]) && command(args[1]) != args[1] {
		args = args[1:] // the interpreter of a script that PATH leads to
	}
	words := make([]string, len(args))
	for i, w := range args {
		if i == 0 {
			w = command(w)
		}
		if w = Clean(w); w != "..." { // what was left out
			w = visible.Word(w)
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

// command leaves out the directory of a command that PATH leads to.
func command(word string) string {
	dir, base := path.Split(word)
	switch dir {
	case "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/usr/local/sbin/":
		return base
	}
	return word
}

// wrappers start the command that follows their options. The value lists the
// options that take a word of their own.
var wrappers = map[string]string{
	"env": "-u -C", "nice": "-n", "ionice": "-c -n", "timeout": "-s -k", "stdbuf": "-i -o -e",
	"sudo": "-u -g", "nohup": "", "setsid": "", "time": "-f -o",
}

// unwrap gives the command that a wrapper starts, or args as they are.
func unwrap(args []string) []string {
	for len(args) > 0 {
		name := path.Base(args[0])
		options, ok := wrappers[name]
		if !ok {
			break
		}
		i := 1
		for i < len(args) && strings.HasPrefix(args[i], "-") {
			if slices.Contains(strings.Fields(options), args[i]) {
				i++
			}
			i++
		}
		for name == "env" && i < len(args) && strings.Contains(args[i], "=") {
			i++
		}
		if name == "timeout" {
			i++
		}
		if i >= len(args) {
			break
		}
		args = args[i:]
	}
	return args
}

// script gives the X of sh -c X.
func script(args []string) (string, bool) {
	if !isShell(args[0]) {
		return "", false
	}
	given := false
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-o" || a == "+o" || a == "-O" || a == "+O":
			i++
		case strings.HasPrefix(a, "--"):
		case strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+"):
			given = given || a[0] == '-' && strings.Contains(a, "c")
		default:
			return a, given
		}
	}
	return "", false
}

// evaluated gives the X of a script that prepares a shell and then does eval X, as
// agents do.
func evaluated(script string) string {
	_, rest, ok := strings.Cut(script, "&& eval ")
	if !ok {
		return script
	}
	if x := shellWord(rest); x != "" {
		return x
	}
	return script
}

// shellWord reads the word that s begins with, or gives "" when it is not a plain
// one.
func shellWord(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t', '\n', ';', '&', '|', '<', '>':
			return b.String()
		case '\\':
			if i++; i < len(s) {
				b.WriteByte(s[i])
			}
		case '\'':
			n := strings.IndexByte(s[i+1:], '\'')
			if n < 0 {
				return "" // it is cut off
			}
			b.WriteString(s[i+1 : i+1+n])
			i += n + 1
		case '"':
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' && i+1 < len(s) {
					i++
				}
				b.WriteByte(s[i])
			}
		case '$', '`':
			return ""
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// oneLine gives the first line of a script that says something.
func oneLine(script string) string {
	rest := strings.TrimSpace(script)
	for rest != "" {
		line, after, _ := strings.Cut(rest, "\n")
		line, rest = strings.TrimSpace(line), strings.TrimSpace(after)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if rest != "" {
			line += " ..."
		}
		return Clean(line)
	}
	return ""
}

// lookers are commands that change nothing, which agents and prompts start all the
// time.
var lookers = map[string]bool{
	"[": true, "basename": true, "cat": true, "clear": true, "date": true, "df": true, "dircolors": true,
	"dirname": true, "du": true, "file": true, "grep": true, "groups": true, "head": true, "hostname": true,
	"id": true, "less": true, "lesspipe": true, "locale": true, "ls": true, "ps": true, "pwd": true,
	"readlink": true, "realpath": true, "rg": true, "sleep": true, "stat": true, "stty": true, "tail": true,
	"test": true, "tput": true, "true": true, "tty": true, "uname": true, "wc": true, "which": true, "whoami": true,
	"git status": true, "git log": true, "git diff": true, "git show": true, "git rev-parse": true,
	"git ls-files": true,
}

// looks reports whether a command line is that of a looker, and of nothing else.
func looks(line string) bool {
	if strings.ContainsAny(line, ";&|<>$`()") {
		return false
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return true
	}
	return lookers[words[0]] || len(words) > 1 && lookers[words[0]+" "+words[1]]
}
