package proposal

import (
	"strings"

	"github.com/coppice-dev/coppice/internal/visible"
)

// Path formats a path of any bytes as git does: plain if possible, else quoted with escapes.
func Path(p string) string {
	if plain := visible.Clean(p); plain == p && !strings.ContainsAny(p, `"\`) && p != "" && strings.TrimSpace(p) == p {
		return p
	}
	return `"` + visible.Clean(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(p)) + `"`
}

// Text converts bytes to text: invalid UTF-8 is replaced, NUL bytes are removed, and long text is truncated.
func Text(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText-3], "") + "..."
	}
	return s
}

// maxCode is the maximum number of characters of a text in a report.
const maxCode = 240

// code formats untrusted text in Markdown as a code span of one line, in which there is no markup, link or
// mention. The fence is longer than every row of backticks in the text, so the text cannot close it.
func code(s string) string {
	s = strings.TrimSpace(visible.Clean(s))
	if r := []rune(s); len(r) > maxCode {
		s = string(r[:maxCode]) + "..."
	}
	if s == "" {
		return "(nothing)"
	}
	f := fence(s, 1)
	if strings.HasPrefix(s, "`") || strings.HasSuffix(s, "`") {
		s = " " + s + " "
	}
	return f + s + f
}

// block formats untrusted text of several lines in Markdown.
func block(text string) string {
	var lines []string
	for l := range strings.Lines(text) {
		lines = append(lines, visible.Clean(strings.TrimRight(l, "\r\n")))
	}
	body := strings.Join(lines, "\n")
	f := fence(body, 3)
	return f + "\n" + body + "\n" + f + "\n"
}

// fence returns at least least backticks, and more than any row of them in the text.
func fence(s string, least int) string {
	longest, row := least-1, 0
	for _, c := range s {
		if row++; c != '`' {
			row = 0
		}
		longest = max(longest, row)
	}
	return strings.Repeat("`", longest+1)
}
