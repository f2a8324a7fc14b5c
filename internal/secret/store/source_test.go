package store

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Source{
		"age":                             {Store: "age"},
		"file:/a/b":                       {"file", Ref{Path: "/a/b"}},
		"file:/a#b":                       {"file", Ref{Path: "/a#b"}},
		"file:/a#/x/0/~1~0":               {"file", Ref{Path: "/a", Field: "/x/0/~1~0"}},
		"env:GH_TOKEN":                    {"env", Ref{Name: "GH_TOKEN"}},
		"vault:kv/team/gh#token":          {"vault", Ref{Path: "kv/team/gh", Field: "token"}},
		"vault:database/creds/r#password": {"vault", Ref{Path: "database/creds/r", Field: "password"}},
		`command:x 'a b' "c d"`:           {"command", Ref{Argv: []string{"x", "a b", "c d"}}},
		"gh":                              {"command", Ref{Argv: []string{"gh", "auth", "token"}}},
		"gh:ghe.example.com":              {"command", Ref{Argv: []string{"gh", "auth", "token", "--hostname", "ghe.example.com"}}},
		"op://dev/gh/token":               {"command", Ref{Argv: []string{"op", "read", "--no-newline", "op://dev/gh/token"}}},
		"pass:dev/gh":                     {"command", Ref{Argv: []string{"pass", "show", "dev/gh"}, First: true}},
		"gcloud":                          {"command", Ref{Argv: []string{"gcloud", "auth", "print-access-token"}}},
		"aws:dev": {"command", Ref{Argv: []string{"aws", "configure", "export-credentials", "--format", "process",
			"--profile", "dev"}}},
	} {
		if got, err := Parse(in); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Parse(%q) = %+v, %v, expected %+v", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ":", "age:x", "age:", "file", "file:", "file:a", "file:~/a", "file:/a#/~2", "file:/a\n", "env:", "env:1A", "env:A-B",
		"vault:", "vault:kv", "vault:kv/x", "vault:kv/x#", "vault:kv/../sys/x#f", "vault:kv//x#f", "vault:/kv/x#f",
		"vault:sys/x#f", "vault:auth/x#f", "vault:kv/x/#f", "command:", "command: ", "command:a | b", "command:a $B",
		"command:'a", `command:a\`, "op", "op:x", "pass", "pass:", "pass:-x", "gh:", "gh:--help", "keyring:x", "agee",
		mark, mark + ":x", "env:" + mark + "-", "command:x $" + mark, "pass:-" + mark,
	} {
		_, err := Parse(in)
		mustFail(t, err, fault.Invalid)
		if fault.HintOf(err) == "" {
			t.Errorf("Parse(%q): no hint", in)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		"a": {"a"}, " a  b\tc ": {"a", "b", "c"}, `a''b`: {"ab"}, `a '' ""`: {"a", "", ""}, `'$x;|'`: {"$x;|"},
		`"a\"b\\c\d"`: {`a"b\c\d`}, `a\ b`: {"a b"}, `\$x`: {"$x"}, `"\$x"`: {"$x"}, `'a\'`: {`a\`}, `a="b c"`: {"a=b c"},
	} {
		if got, err := Words(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("Words(%q) = %q, %v, expected %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "''", "a `b`", `"$x"`, "a > b", "a && b", "a*", "~/x", "a\nb", "a\x00", `"a`, "a # b"} {
		if got, err := Words(in); !fault.Is(err, fault.Invalid) {
			t.Errorf("Words(%q) = %q, %v", in, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"age", "file:/a#/b", "command:a 'b' \"c\" \\d", "vault:a/b#c", "env:A", "op://a/b", "gh:x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("%v", err)
			}
			return
		}
		if s.Store == "command" && (len(s.Ref.Argv) == 0 || slices.ContainsFunc(s.Ref.Argv, hasControl) &&
			!strings.Contains(in, "\t")) {
			t.Errorf("%q: %+v", in, s)
		}
	})
}

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "0", "github-token", "a_b", strings.Repeat("a", 64)} {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "-a", "_", "A", "a.b", "a/b", "..", "a\n", "\u00e9", strings.Repeat("a", 65)} {
		mustFail(t, CheckName(name), fault.Invalid)
	}
}
