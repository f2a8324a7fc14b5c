package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestPrintProbe_FitsOn80Columns checks that a long remedy does not widen the column of names, and that details fit
// on 80 columns.
func TestPrintProbe_FitsOn80Columns(t *testing.T) {
	t.Parallel()
	stdout, err := os.Create(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	a := &app{getenv: func(string) string { return "" }, stdout: stdout}
	remedy := "sudo apt-get install uidmap && " + strings.Repeat("x", 100)
	var b strings.Builder
	err = a.printProbe(&b, &wire.ProbeReport{Tier: "process", Driver: "overlay", Items: []wire.ProbeItem{
		{Group: "features", Name: "subordinate-ids", Detail: strings.Repeat("a detail ", 20), Remedy: remedy},
		{Group: "features", Name: "seccomp", OK: true, Detail: "installed a filter"},
	}}, 80)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if !strings.Contains(line, "->") && len(line) > 81 {
			t.Errorf("%d columns: %s", len(line)-1, line)
		}
	}
	for _, want := range []string{"\n  yes   seccomp          installed a filter\n", "\n        -> " + remedy + "\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("got %s\nwant a line %q", b.String(), want)
		}
	}
}
