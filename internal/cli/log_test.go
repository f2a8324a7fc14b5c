package cli

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestLog_ListsUndrawnSnapshots checks that snapshots beyond the end of the drawing are listed after it.
func TestLog_ListsUndrawnSnapshots(t *testing.T) {
	res := wire.LogResult{Nodes: []wire.Snapshot{{ID: "aaaa"}, {ID: "bbbb"}, {ID: "cccc"}},
		Rows: []wire.LogRow{{Graph: "| *", Node: "aaaa"}, {Graph: "|/"}}, Truncated: true}
	var b strings.Builder
	a := &app{getenv: func(string) string { return "" }, stdout: os.Stdout, now: time.Now}
	if err := a.tree(&b, res); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(b.String()) {
		got = append(got, strings.TrimSpace(line[:min(len(line), 6)]))
	}
	if want := []string{"| * aa", "|/", "too ma", "* bbbb", "* cccc"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
