package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestCursor_Resumes checks that a reader that resumes at a cursor gets each event once, also after a file became
// full, and is informed of lost events.
func TestCursor_Resumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var c Cursor
	if evs, next, lost, err := From(at(dir), c); err != nil || len(evs) > 0 || lost || next != c {
		t.Fatalf("without a journal: %v %v %v %v", evs, next, lost, err)
	}
	j := opened(t, dir)
	pad := strings.Repeat("x", 1000)
	var want, got []string
	for i := range 9000 {
		name := fmt.Sprintf("h%d.example", i)
		if err := j.Append(wire.NetEvent{Time: began, Kind: wire.NetDeny, Name: name, Reason: pad}); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
		if i%700 == 0 {
			evs, next, lost, err := From(at(dir), c)
			if err != nil || lost {
				t.Fatalf("%d: lost %v, %v", i, lost, err)
			}
			got, c = append(got, names(evs)...), next
		}
	}
	evs, c, lost, err := From(at(dir), c)
	if got = append(got, names(evs)...); err != nil || lost || !slices.Equal(got, want) {
		t.Fatalf("%d events of %d, lost %v, %v", len(got), len(want), lost, err)
	}
	if evs, again, _, _ := From(at(dir), c); len(evs) > 0 || again != c {
		t.Errorf("%d events twice", len(evs))
	}
	for i := range 9000 {
		if err := j.Append(wire.NetEvent{Time: began, Kind: wire.NetDeny, Name: fmt.Sprint(i), Reason: pad}); err != nil {
			t.Fatal(err)
		}
	}
	evs, c, lost, err = From(at(dir), c)
	if err != nil || !lost || len(evs) == 0 || evs[len(evs)-1].Name != "8999" {
		t.Errorf("%d events, lost %v, %v", len(evs), lost, err)
	}
	// Another file with the same inode number is not the same file.
	name := filepath.Join(dir, current)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b[:2000] {
		b[i+int(c.At)-2000] = '\n'
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, lost, err := From(at(dir), c); err != nil || !lost {
		t.Errorf("lost %v, %v", lost, err)
	}
}
