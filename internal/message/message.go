//go:build linux

// Package message generates the messages of snapshots that were given none: from the mark, from the programs that were
// started, or from the paths that changed. It is pure. Its input was written by the sandbox, so Clean escapes what is
// not printable; the caller redacts secrets.
//
// The engine imports it.
package message

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/visible"
)

// Max is the approximate maximum length of an automatic message, in characters.
const Max = 100

// OfCommand returns the message of a command's snapshot: that of the request, or else its command line.
func OfCommand(req wire.ExecRequest) string {
	if req.Label != "" {
		return req.Label
	}
	return visible.Command(req.Cmd)
}

// Auto returns the message of a snapshot that was given none: the mark, if there is one; else the programs that were
// started since the previous snapshot; else, if none was started that may write, the places of most changes. All but
// the mark was written by the sandbox, so what is not printable is escaped. A message that is not a mark has about Max
// characters; "" means that nothing describes the snapshot. paths are absolute, and the first layer.MaxPaths of those
// that changed.
func Auto(mark string, programs []wire.Program, paths []string) string {
	if mark != "" {
		return Clean(mark)
	}
	if cmds := Commands(programs); len(cmds) > 0 {
		more := 0
		if !slices.ContainsFunc(programs, func(p wire.Program) bool { return p.Parent != 0 }) {
			for _, p := range programs { // without parents, programs that were not listed count as commands
				more += p.Unlisted
			}
		}
		return enumerate(cmds, "; ", more)
	}
	return places(paths)
}

// enumerate joins words up to Max characters, at least one, and appends the number of the remaining words plus more.
func enumerate(words []string, sep string, more int) string {
	text := shorten(words[0], Max)
	for i, w := range words[1:] {
		if utf8.RuneCountInString(text)+len(sep)+utf8.RuneCountInString(w) > Max {
			more += len(words) - 1 - i
			break
		}
		text += sep + w
	}
	if more > 0 {
		text += sep + "and " + strconv.Itoa(more) + " more"
	}
	return text
}

func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-3]) + "..."
}

// Clean escapes characters that a terminal would not display as themselves.
func Clean(s string) string {
	var b strings.Builder
	var line visible.Line
	for _, r := range s {
		switch {
		case r == '\t':
			b.WriteByte(' ')
			line = visible.Line{}
		case !line.Shows(r):
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
