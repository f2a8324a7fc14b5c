package visible

import (
	"os/exec"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWord(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "''", "a": "a", "/a-b_c.d": "/a-b_c.d", "k=v@h:1,%+": "k=v@h:1,%+", "a b": "'a b'",
		"it's": `'it'\''s'`, "'": `''\'''`,
		"~": "'~'", "`x`": "'`x`'", "$x": "'$x'", "!": "'!'", "{a,b}": "'{a,b}'", "\n": "'\n'", "é": "'é'", `\`: `'\'`,
	} {
		if got := Word(in); got != want {
			t.Errorf("Word(%q) = %s, not %s", in, got, want)
		}
	}
}

// TestCommand_ParsesBackInShell checks that a shell parses a command as the original arguments.
func TestCommand_ParsesBackInShell(t *testing.T) {
	t.Parallel()
	arg := rapid.OneOf(rapid.StringMatching(`[ -~\n\t]*`),
		rapid.Map(rapid.String(), func(s string) string { return strings.ReplaceAll(s, "\x00", "") }))
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfN(arg, 0, 20).Draw(t, "args")
		line := Command(append([]string{"printf", `%s\0`, "-"}, args...))
		out, err := exec.Command("sh", "-c", line).Output()
		if want := strings.Join(append([]string{"-"}, append(args, "")...), "\x00"); err != nil || string(out) != want {
			t.Fatalf("%s: %q, %v", line, out, err)
		}
	})
}

func TestCount(t *testing.T) {
	t.Parallel()
	for want, in := range map[string]struct {
		n    int
		noun string
	}{
		"0 paths": {0, "path"}, "1 path": {1, "path"}, "2 paths": {2, "path"}, "1 process": {1, "process"},
		"3 processes": {3, "process"}, "2 sandboxes": {2, "sandbox"},
	} {
		if got := Count(in.n, in.noun); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
