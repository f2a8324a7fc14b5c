//go:build linux

package message

import (
	"path"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Commands returns the command lines that are of interest, each once, oldest first.
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

// roots returns the programs that no other program of the list started, except interactive shells.
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
				typed[p.PID] = false // exec replaced the shell
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

// programLine returns a program's arguments as a command line: X for sh -c X, and without wrappers that only prepare
// the start of another command.
func programLine(args []string) string {
	args = unwrap(args)
	if len(args) == 0 {
		return ""
	}
	if x, ok := script(args); ok {
		return oneLine(evaluated(x))
	}
	if len(args) > 1 && path.IsAbs(args[1]) && command(args[1]) != args[1] {
		args = args[1:] // omit the interpreter of a script in a directory of PATH
	}
	words := make([]string, len(args))
	for i, w := range args {
		if i == 0 {
			w = command(w)
		}
		if w = Clean(w); w != "..." { // the mark of omitted arguments
			w = visible.Word(w)
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

// command removes the directory of a command if PATH contains it.
func command(word string) string {
	dir, base := path.Split(word)
	switch dir {
	case "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/usr/local/sbin/":
		return base
	}
	return word
}

// wrappers start the command that follows their options. The values list the options that take a separate argument.
var wrappers = map[string]string{
	"env": "-u -C", "nice": "-n", "ionice": "-c -n", "timeout": "-s -k", "stdbuf": "-i -o -e",
	"sudo": "-u -g", "nohup": "", "setsid": "", "time": "-f -o",
}

// unwrap returns the command that a wrapper starts, or args unchanged.
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

// script returns the X of sh -c X.
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

// evaluated returns the X of a script that prepares a shell and then runs eval X, as agents do.
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

// shellWord returns the first word of s, unquoted, or "" if the word is not plain.
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
				return "" // the word is truncated
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

// oneLine returns the first line of a script that is not empty or a comment.
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

// lookers are commands that change nothing, which agents and prompts start very often.
var lookers = map[string]bool{
	"[": true, "basename": true, "cat": true, "clear": true, "date": true, "df": true, "dircolors": true,
	"dirname": true, "du": true, "file": true, "grep": true, "groups": true, "head": true, "hostname": true,
	"id": true, "less": true, "lesspipe": true, "locale": true, "ls": true, "ps": true, "pwd": true,
	"readlink": true, "realpath": true, "rg": true, "sleep": true, "stat": true, "stty": true, "tail": true,
	"test": true, "tput": true, "true": true, "tty": true, "uname": true, "wc": true, "which": true, "whoami": true,
	"git status": true, "git log": true, "git diff": true, "git show": true, "git rev-parse": true,
	"git ls-files": true,
}

// looks reports whether a command line is only one of lookers.
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
