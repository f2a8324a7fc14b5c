//go:build linux

package engine

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/history"
	"github.com/coppice-dev/coppice/internal/limit"
)

// nest makes n directories, one in another, in what a sandbox sees, as a program does
// it that knows no path.
func (h *home) nest(name, dir string, n int) {
	h.t.Helper()
	fd, err := unix.Open(filepath.Join(h.rootOf(name)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range n {
		if err == nil {
			err = unix.Mkdirat(fd, dir, 0o755)
		}
		if err != nil {
			h.t.Fatal(err)
		}
		next, oerr := unix.Openat(fd, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		err = errors.Join(oerr, unix.Close(fd))
		fd = next
	}
	unix.Close(fd)
}

func (h *home) rootOf(name string) string {
	h.t.Helper()
	rec, err := h.DB.Sandbox(context.Background(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	h.boxes.mu.Lock()
	defer h.boxes.mu.Unlock()
	return h.boxes.boxes[h.runDir(rec.ID)].root
}

func sizeOf(list []wire.Change) (n int) {
	for _, c := range list {
		n += len(c.Path)
	}
	return n
}

func TestDiff_TruncatesNestedDirectories(t *testing.T) {
	ctx := context.Background()
	h := newHome(t)
	if _, err := h.makes("a", nil); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	const n = 900 // names of 200 bytes: their paths have 80 MB
	h.nest("a", strings.Repeat("n", 200), n)
	snap, err := h.Commit(ctx, "a", "nested")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ limit, bytes int }{{0, limit.DiffBytes}, {limit.LineChanges, limit.LineChangeBytes}} {
		d, err := h.Diff(ctx, "a", wire.DiffRequest{A: "HEAD~1", B: "HEAD", Limit: tc.limit})
		if size := sizeOf(d.Changes); err != nil || !d.Truncated || size > tc.bytes || size < tc.bytes/2 {
			t.Errorf("diff of at most %d: %d changes, %d bytes, truncated %v, %v", tc.limit, len(d.Changes), size,
				d.Truncated, err)
		}
		s, err := h.ShowSome(ctx, "a", snap.Node, tc.limit)
		if size := sizeOf(s.Changes); err != nil || !s.Truncated || size > tc.bytes || s.Paths != n {
			t.Errorf("show of at most %d: %d bytes, truncated %v, %d paths, %v", tc.limit, size, s.Truncated, s.Paths, err)
		}
	}
	past, err := h.OpenPast(ctx, "a", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	if l, err := past.List(ctx, "/", -1); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a list of all: %d files, %v, want too_large", len(l.Files), err)
	}
	if l, err := past.List(ctx, "/", 50); err != nil ||
		!slices.ContainsFunc(l.Files, func(f wire.FileInfo) bool { return strings.Count(f.Path, "/") == 49 }) {
		t.Errorf("a list of 50 levels: %d files, %v", len(l.Files), err)
	}
	if err := past.TarTo(ctx, "/", io.Discard); !fault.Is(err, fault.TooLarge) { // as of the files of a running sandbox
		t.Errorf("an archive of names that no program can open: %v, want too_large", err)
	}
	if _, err := past.Stat(strings.Repeat("n/", history.MaxPastSteps+1), true); !fault.Is(err, fault.TooLarge) &&
		!fault.Is(err, fault.NotFound) {
		t.Errorf("a name of too many parts: %v", err)
	}
	if err := h.Patch(ctx, "a", wire.DiffRequest{A: "HEAD~1", B: "HEAD"}, io.Discard); err != nil {
		t.Errorf("a patch, which has no directories: %v", err)
	}
	if _, err := h.Diff(ctx, "a",
		wire.DiffRequest{A: "HEAD~1", Limit: limit.DiffEntries + 1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a limit above the most: %v", err)
	}
	if _, err := h.Undo(ctx, "a", wire.UndoRequest{}); err != nil {
		t.Errorf("undo: %v", err)
	}
	if d, err := h.Diff(ctx, "a", wire.DiffRequest{A: "HEAD"}); err != nil || len(d.Changes) > 0 {
		t.Errorf("after undo %d paths differ, %v", len(d.Changes), err)
	}
}

func TestDiff_BoundsChosenPaths(t *testing.T) {
	ctx := context.Background()
	h := newHome(t)
	if _, err := h.makes("a", nil); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		paths []string
		want  bool
	}{
		{slices.Repeat([]string{"a"}, limit.ChosenPaths), true},
		{slices.Repeat([]string{"a"}, limit.ChosenPaths+1), false},
		{[]string{strings.Repeat("a", limit.ChosenBytes)}, true},
		{[]string{strings.Repeat("a", limit.ChosenBytes), "b"}, false},
	} {
		req := wire.DiffRequest{A: "HEAD", B: "HEAD", Paths: tc.paths}
		if _, err := h.Diff(ctx, "a", req); fault.Is(err, fault.TooLarge) == tc.want || tc.want && err != nil {
			t.Errorf("a diff of %d paths: %v", len(tc.paths), err)
		}
		if err := h.Patch(ctx, "a", req, io.Discard); fault.Is(err, fault.TooLarge) == tc.want || tc.want && err != nil {
			t.Errorf("a patch of %d paths: %v", len(tc.paths), err)
		}
		git := wire.GitDiffRequest{Paths: tc.paths}
		if _, err := h.Git.DiffOptions(&gitwork.Collected{}, git); fault.Is(err, fault.TooLarge) == tc.want {
			t.Errorf("a diff of %d paths of a repository: %v", len(tc.paths), err)
		}
	}
}

// TestFinalize_ContinuesPastLayerWithoutManifest checks that a layer that cannot have a
// manifest is flushed, so that it survives a power loss, and that other layers are finalized.
func TestFinalize_ContinuesPastLayerWithoutManifest(t *testing.T) {
	ctx := context.Background()
	h := newHome(t)
	for _, name := range []string{"a", "b"} {
		if _, err := h.makes(name, nil); err != nil {
			t.Fatal(err)
		}
		h.run(name, "true")
	}
	h.nest("a", strings.Repeat("n", 250), 800)
	deep, err := h.Commit(ctx, "a", "nested")
	if err != nil {
		t.Fatal(err)
	}
	h.behind("b", "f", "1")
	if _, err := h.Commit(ctx, "b", "small"); err != nil {
		t.Fatal(err)
	}
	if err := h.Finalize(ctx); err != nil {
		t.Fatal(err)
	}
	if left, err := h.DB.UnfinalizedLayers(ctx); err != nil || len(left) > 0 {
		t.Errorf("%d layers would be set aside after a power loss, %v", len(left), err)
	}
	if res, err := h.Verify(ctx, "", func(wire.Progress) {}); err != nil || res.Unfinalized != 1 || res.Unverifiable != 1 ||
		len(res.Damage) > 0 {
		t.Errorf("verify: %+v, %v; want one layer without a digest", res, err)
	}
	h.behind("a", "g", "1")
	if _, err := h.Commit(ctx, "a", "one more"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.DeleteSnapshot(ctx, "a", deep.Node); err != nil {
		t.Errorf("delete: %v", err)
	}
}
