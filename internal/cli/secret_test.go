package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestTypedSecret_EditsALine(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"value\r": "value", "value\nrest": "value", "vax\x7flue\r": "value", "wrong\x15value\r": "value", "\x7f\x08v\r": "v",
		"\r": "cancelled", "val\x03ue\r": "cancelled", "\x04": "cancelled", "no end": "cancelled",
		strings.Repeat("v", 16<<10) + "\r": strings.Repeat("v", 16<<10), strings.Repeat("v", 16<<10+1) + "\r": "too_large",
	} {
		got, err := typedSecret(strings.NewReader(typed))
		if err != nil {
			got = []byte(fault.KindOf(err))
		}
		if string(got) != want {
			t.Errorf("%.20q: %.20q, want %.20q", typed, got, want)
		}
	}
}

func TestAbsoluteSource_ResolvesFiles(t *testing.T) {
	t.Parallel()
	here, err := filepath.Abs("a")
	if err != nil {
		t.Fatal(err)
	}
	for from, want := range map[string]string{
		"": "", "age": "age", "file:/a/b": "file:/a/b", "file:a": "file:" + here, "file:a#/b/c": "file:" + here + "#/b/c",
		"file:": "file:", "command:cat a": "command:cat a",
	} {
		if got, err := absoluteSource(from); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", from, got, err, want)
		}
	}
}

func TestCredential_WarnsWithCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		variable, sandbox string
		exported          bool
		want              string
	}{
		{"ANTHROPIC_API_KEY", "", true,
			"coppice secret set anthropic --from env:ANTHROPIC_API_KEY; then replace -e by --grant anthropic"},
		{"GH_TOKEN", "box", false, "coppice secret set github; then: coppice grant box github"},
		{"MY_TOKEN", "box", true, "coppice grant box NAME --host HOST --bearer --env MY_TOKEN"},
	} {
		if got := credentialWarning(c.variable, c.sandbox, c.exported); !strings.HasSuffix(got, c.want) ||
			!credential(c.variable) {
			t.Errorf("%s: %s", c.variable, got)
		}
	}
	for _, v := range []string{"PATH", "TOKEN_FILE", "API_KEYS", ""} {
		if credential(v) {
			t.Errorf("%q counts as a credential", v)
		}
	}
}
