package layer

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// chained returns a view of two layers that have n nested directories with a file in each, and the paths of the
// files. Another directory has some files as well.
func chained(t *testing.T, n int) (*View, []string) {
	t.Helper()
	s, err := Open(t.Context(), vfs.OS(), filepath.Join(t.TempDir(), "layers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	var dirs, files []string
	for _, id := range []timeline.LayerID{"00000000000000a1", "00000000000000a2"} {
		src := t.TempDir()
		for i := range n {
			files = append(files, strings.Repeat("/d", i+1)+"/f-"+string(id))
		}
		for i := range 10 {
			files = append(files, strings.Repeat("/e", i+1)+"/f-"+string(id))
		}
		for _, f := range files {
			if !strings.HasSuffix(f, string(id)) {
				continue
			}
			if err := os.MkdirAll(filepath.Join(src, filepath.Dir(f)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(src, f), []byte(f), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.ImportDir(t.Context(), id, src, ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, s.Dir(id))
	}
	return s.View(rootspec.Stack{Layers: dirs}), files
}

func TestCursor_MatchesView(t *testing.T) {
	t.Parallel()
	v, files := chained(t, 3*viewHeld)
	more := append(files, "/d/none", "/none/d/d", "/d/f-00000000000000a1/below", strings.Repeat("/d", 4*viewHeld),
		"/d", "/e/e")
	r := rand.New(rand.NewPCG(3, 4))
	c := v.Cursor()
	defer c.Close()
	for range 500 {
		p := more[r.IntN(len(more))]
		want, errWant := v.Lookup(p)
		got, err := c.Lookup(t.Context(), p)
		if got != want || fault.Is(err, fault.NotFound) != fault.Is(errWant, fault.NotFound) ||
			(err == nil) != (errWant == nil) {
			t.Fatalf("%s: %+v, %v; want %+v, %v", p, got, err, want, errWant)
		}
		if !slices.Contains(files, p) {
			continue
		}
		f, err := c.Open(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(text) != p {
			t.Fatalf("%s has %q, %v", p, text, err)
		}
	}
}

// steps returns how many directories a cursor enters and leaves for those paths, in order.
func steps(t *testing.T, v *View, paths []string) int64 {
	t.Helper()
	ctx := looptest.Counts(t)
	c := v.Cursor()
	defer c.Close()
	for _, p := range slices.Sorted(slices.Values(paths)) {
		if _, err := c.Lookup(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	return ctx.Calls()
}

func TestCursor_EntersEachDirectoryOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{30, 60, 120} {
		v, files := chained(t, n)
		// The files of a directory come before and after those of its subdirectory.
		if got := steps(t, v, files); got > int64(4*(n+10)) {
			t.Errorf("%d directories: %d steps", n+10, got)
		}
	}
}

func TestCursor_StopsOnCancel(t *testing.T) {
	t.Parallel()
	v, files := chained(t, 40)
	c := v.Cursor()
	defer c.Close()
	deep := files[39]
	if _, err := c.Lookup(looptest.EndsAfter(t, 20), deep); err == nil || fault.Is(err, fault.NotFound) {
		t.Errorf("a lookup of 40 steps with a context that ends after 20: %v", err)
	}
	if _, err := c.Lookup(context.Background(), deep); err != nil {
		t.Errorf("the next lookup: %v", err)
	}
}
