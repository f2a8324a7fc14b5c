//go:build linux

package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// nestedWork returns the snapshot of a sandbox with n new nested directories, each with rules and the last one with a
// file.
func nestedWork(t *testing.T, n int) (*home, *gitwork.Collected) {
	t.Helper()
	h := newHome(t)
	if _, err := h.makes("a", nil); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	h.nest("a", "d", n)
	root := h.rootOf("a")
	deepest := strings.Repeat("d/", n)
	for _, f := range []string{"d/.gitignore", deepest + ".gitignore", deepest + "f"} {
		if err := os.WriteFile(filepath.Join(root, f), []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	snap, err := h.Commit(t.Context(), "a", "nested")
	if err != nil {
		t.Fatal(err)
	}
	rec, err := h.DB.Sandbox(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	rec.Repo = &meta.Repo{Top: "/"}
	return h, &gitwork.Collected{Rec: rec, Snapshot: timeline.SnapshotID(snap.Node)}
}

// laysOut lays the work out in a new directory.
func laysOut(t *testing.T, h *home, c *gitwork.Collected, ctx context.Context) (dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	tree, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	_, err = gitwork.LayOut(ctx, gitLayers{h.Engine}, &c.Rec, c.Snapshot, nil, tree)
	return dir, err
}

// TestLayOut_TakesOneStepPerDirectory guards against a regression: 1,990 nested directories took 65 seconds when each
// was looked up from the root.
func TestLayOut_TakesOneStepPerDirectory(t *testing.T) {
	for _, n := range []int{100, 200, 400} {
		h, c := nestedWork(t, n)
		ctx := looptest.Counts(t)
		dir, err := laysOut(t, h, c, ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"d/.gitignore", strings.Repeat("d/", n) + ".gitignore", strings.Repeat("d/", n) + "f"} {
			if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
				t.Error(err)
			}
		}
		differ := looptest.Counts(t)
		layers := gitLayers{h.Engine}
		if _, err := layers.changedBelow(differ, &c.Rec, c.Snapshot, "/",
			func(*layer.Change) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if steps := ctx.Calls() - differ.Calls(); steps < int64(n) || steps > int64(8*n) {
			t.Errorf("%d directories are laid out in %d steps", n, steps)
		}
		most := ctx.Calls() - int64(n)
		last := looptest.EndsAfter(t, most)
		if _, err := laysOut(t, h, c, last); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that ends %d steps before the end: %v", n, err)
		}
		if over := last.Calls() - most; over > 3 {
			t.Errorf("LayOut checked its context %d times after it ended", over)
		}
	}
}
