package layer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// crowded returns a view of a directory with n files, one with another layer of more files on top, and the tree in
// which they differ.
func crowded(t *testing.T, n, more int) (a, b *View, touched []rootspec.Part) {
	t.Helper()
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, files := range []int{n, more} {
		if err := os.Mkdir(filepath.Join(dirs[i], "d"), 0o755); err != nil {
			t.Fatal(err)
		}
		for k := range files {
			if err := os.WriteFile(filepath.Join(dirs[i], "d", fmt.Sprintf("%d-%d", i, k)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := new(Store)
	return s.View(rootspec.Stack{Layers: dirs[:1]}), s.View(rootspec.Stack{Layers: []string{dirs[1], dirs[0]}}),
		[]rootspec.Part{{Dir: dirs[1], Path: "/"}}
}

func TestDiff_BoundsDirectory(t *testing.T) {
	t.Parallel()
	a, b, touched := crowded(t, 20, 20)
	if list, _, err := Some(t.Context(), a, b, touched, DiffOptions{names: 20}); err != nil || len(list) < 20 {
		t.Errorf("the maximum number of entries: %d changes, %v", len(list), err)
	}
	if _, _, err := Some(t.Context(), a, b, touched, DiffOptions{names: 19}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("one entry too many that can differ: %v", err)
	}
	_, none, _ := crowded(t, 0, 0)
	if _, _, err := Some(t.Context(), none, b, touched, DiffOptions{names: 19}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("one new entry too many: %v", err)
	}
	plain := new(Store).PlainView(touched)
	if _, _, err := Some(t.Context(), a, plain, touched, DiffOptions{names: 19}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("one entry too many, where any entry can differ: %v", err)
	}
}

func TestDiff_DirectoryCostsOnlyWhatCanDiffer(t *testing.T) {
	t.Parallel()
	a, b, touched := crowded(t, 2000, 3)
	ctx := looptest.Counts(t)
	list, _, err := Some(ctx, a, b, touched, DiffOptions{names: 10})
	if calls := ctx.Calls(); err != nil || len(list) < 3 || calls > 50 {
		t.Errorf("%d changes, in %d steps, %v", len(list), calls, err)
	}
}

func TestList_StopsOnCancel(t *testing.T) {
	t.Parallel()
	_, b, _ := crowded(t, 100, 100)
	if _, err := b.ReadDir(looptest.EndsAfter(t, 50), "/d"); !errors.Is(err, context.Canceled) {
		t.Errorf("a list of 200 entries with a context that ends after 50: %v", err)
	}
	list, err := b.ReadDir(t.Context(), "/d")
	if err != nil || len(list) != 200 {
		t.Errorf("%d entries, %v", len(list), err)
	}
	d := &delta{}
	for _, e := range list {
		d.kids = append(d.kids, &delta{name: filepath.Base(e.Path)})
	}
	if err := (trees{{path: "/d", fd: -1, delta: d}}).
		compare(looptest.EndsAfter(t, 50), func() *View { return b }); !errors.Is(err, context.Canceled) {
		t.Errorf("a comparison of 200 entries with a context that ends after 50: %v", err)
	}
}
