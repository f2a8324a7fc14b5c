package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// nest makes n nested directories called name, by descriptors, as a program does that needs no path. It returns the
// innermost.
func nest(w *world, dir, name string, n int) int {
	w.t.Helper()
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, dir)
	w.must(err)
	for range n {
		w.must(unix.Mkdirat(fd, name, 0o700))
		next, err := dirfd.OpenDir(fd, name)
		w.must(err)
		unix.Close(fd)
		fd = next
	}
	return fd
}

// allocates fails the test if fn, an operation on n nested directories, allocates more than a fixed amount for each
// of them and for its results.
func allocates(t *testing.T, what string, n int, fn func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	if looptest.Race {
		return // with it, a sync.Pool drops what it holds at random
	}
	got, most := int(after.TotalAlloc-before.TotalAlloc), 10<<20+n*5<<10
	if strings.HasPrefix(what, "diff") {
		most += 3 * limit.DiffBytes
	}
	if got > most {
		t.Errorf("%s of %d directories allocates %d MiB, more than %d", what, n, got>>20, most>>20)
	}
}

// nested are the trees of a security review, with a part of their depth: long names, which make long paths of few
// directories, and many directories. Both had cost hundreds of megabytes.
var nested = []struct {
	name string
	n    int
}{{strings.Repeat("n", 200), 1_500}, {"d", 6_000}}

func TestDeepTree_CostIsLinear(t *testing.T) {
	for _, tree := range nested {
		for _, plain := range []bool{false, true} {
			if plain && len(tree.name) == 1 {
				continue // the walks are the same, and slow
			}
			t.Run(fmt.Sprintf("%d of %d bytes, plain %v", tree.n, len(tree.name), plain), func(t *testing.T) {
				deepTree(t, tree.name, tree.n, plain)
			})
		}
	}
}

func deepTree(t *testing.T, name string, n int, plain bool) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), plain)
	defer w.close()
	live := filepath.Join(w.home, "live")
	w.must(os.Mkdir(live, 0o755))
	unix.Close(nest(w, live, name, n))
	defer func() { w.must(w.s.RemoveTree(ctx, live)) }()
	w.parts = []rootspec.Part{{Dir: live, Path: "/"}}
	empty, err := w.s.Scan(ctx, []rootspec.Part{{Dir: t.TempDir(), Path: "/"}}, plain)
	w.must(err)

	const first, merged = timeline.LayerID("00000000000000d1"), timeline.LayerID("00000000000000d3")
	var c Captured
	allocates(t, "capture", n, func() {
		c, err = w.s.Capture(ctx, first, CaptureInput{Parts: w.parts, Index: empty, Plain: plain})
		w.must(err)
	})
	if c.Stats.Paths != n {
		t.Errorf("the capture has %d paths, want %d", c.Stats.Paths, n)
	}
	size := 0
	for _, p := range c.Paths {
		size += len(p)
	}
	if size > limit.NamedBytes {
		t.Errorf("the capture names %d bytes of paths, more than %d", size, limit.NamedBytes)
	}
	before, after := w.s.View(rootspec.Stack{}), w.s.View(w.dirs([]timeline.LayerID{first}))
	w.must(os.Mkdir(filepath.Join(w.home, "nothing"), 0o755))
	before.sources = append(before.sources, source{dir: filepath.Join(w.home, "nothing"), at: "/"})
	touched := []rootspec.Part{{Dir: w.s.Dir(first), Path: "/"}}

	allocates(t, "diff", n, func() {
		list, more, err := Some(ctx, before, after, touched, DiffOptions{})
		w.must(err)
		if !more || len(list) == 0 || len(list) >= n {
			t.Errorf("diff: %d changes, more %v", len(list), more)
		}
		size = 0
		for _, c := range list {
			size += len(c.Path)
		}
		if size > limit.DiffBytes {
			t.Errorf("the diff has %d bytes of paths, more than %d", size, limit.DiffBytes)
		}
	})
	allocates(t, "diff of all", n, func() {
		if _, err := Changes(ctx, before, after, touched, DiffOptions{}); !fault.Is(err, fault.TooLarge) {
			t.Errorf("a diff that must be complete: %v, want too_large", err)
		}
	})
	allocates(t, "walk below the root", n, func() {
		levels := 0
		w.must(after.Below(ctx, "/", func(x Visit) error { levels = x.Level(); return nil }))
		if levels != n {
			t.Errorf("the walk reached level %d, want %d", levels, n)
		}
	})
	allocates(t, "diff of the bottom", n, func() {
		p := strings.Repeat("/"+name, n)
		list, more, err := Some(ctx, before, after, touched, DiffOptions{Paths: []string{p}})
		w.must(err)
		if more || len(list) != 1 || list[0].Path != p {
			t.Errorf("diff of the innermost directory alone: %d changes, more %v", len(list), more)
		}
	})
	allocates(t, "patch", n, func() { w.must(Patch(ctx, new(bytes.Buffer), before, after, touched, DiffOptions{})) })
	allocates(t, "merge", n, func() { w.must(w.s.Merge(ctx, merged, []timeline.LayerID{first})) })
	out := filepath.Join(w.home, "out")
	w.must(os.Mkdir(out, 0o755))
	allocates(t, "materialise", n, func() { w.must(w.s.Materialise(ctx, after, out)) })
	w.must(w.s.RemoveTree(ctx, out))
	entries := 0
	allocates(t, "walk", n, func() {
		w.must(after.walk(ctx, func(*mdir, *found) error { entries++; return nil }))
	})
	if entries != n {
		t.Errorf("a walk finds %d entries, want %d", entries, n)
	}
	var index bytes.Buffer
	allocates(t, "index", n, func() {
		_, err := c.Index.WriteTo(&index)
		w.must(err)
		_, err = ReadIndex(&index)
		w.must(err)
	})
	w.must(w.s.Remove(ctx, merged))
	w.must(w.s.Remove(ctx, first))
}

// TestCapture_ComparesCopiedUpChainInOneDescent covers a chain of directories that was copied up, of which only the
// times changed: comparing each with the snapshot must not begin at the root each time.
func TestCapture_ComparesCopiedUpChainInOneDescent(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	w.base(func(dir string) { unix.Close(nest(w, dir, "d", 1_500)) })
	upper := filepath.Join(w.home, "upper")
	w.must(os.Mkdir(upper, 0o755))
	fd := nest(w, upper, "d", 1_500)
	f, err := w.s.fs.Create(fd, "new", 0o600)
	w.must(err)
	closeAll(f, fd)
	head := w.s.View(w.dirs(w.stack))
	allocates(t, "capture", 1_500, func() {
		c, err := w.s.Capture(ctx, "00000000000000d1", CaptureInput{Parts: []rootspec.Part{{Dir: upper, Path: "/"}},
			Index: new(Index), Head: func() *View { return head }})
		w.must(err)
		if c.Stats.Paths != 1 {
			t.Errorf("%d paths, want only the new file", c.Stats.Paths)
		}
	})
}

func TestCapture_RefusesTooDeepTree(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	live := filepath.Join(w.home, "live")
	w.must(os.MkdirAll(filepath.Join(live, "d"), 0o755))
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, live)
	w.must(err)
	at := &place{fd: fd, depth: limit.Depth, delta: &delta{}}
	_, _, err = (&worker{walker: w.s.newWalker(ctx, CaptureInput{})}).dir(at)
	closeAll(at.fd)
	if !fault.Is(err, fault.TooLarge) || fault.HintOf(err) == "" {
		t.Errorf("a capture: %v, hint %q; want too_large", err, fault.HintOf(err))
	}
	m, err := rawView(live, true).root()
	w.must(err)
	defer m.close()
	m.depth = limit.Depth
	if err := m.walk(ctx, 0, func(*mdir, *found) error { return nil }); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a walk: %v, want too_large", err)
	}
}

func TestCapture_RefusesMoreEntriesThanItsLimit(t *testing.T) {
	ctx := t.Context()
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	live := filepath.Join(w.home, "live")
	const files = 3 * countEvery
	w.must(os.MkdirAll(filepath.Join(live, "d", "e"), 0o755))
	first := filepath.Join(live, "d", "first")
	w.must(os.WriteFile(first, nil, 0o600))
	for i := range files {
		w.must(os.Link(first, filepath.Join(live, "d", "e", strconv.Itoa(i))))
	}
	in := CaptureInput{Parts: []rootspec.Part{{Dir: live, Path: "/"}}, Index: new(Index)}
	w.s.LimitEntries(files + 2) // without d
	got, err := w.s.Capture(ctx, w.id(), in)
	if !fault.Is(err, fault.TooLarge) || !strings.Contains(err.Error(), `in "/d/e"`) ||
		!strings.Contains(fault.HintOf(err), "coppice serve --memory") {
		t.Errorf("%+v, %v, hint %q", got, err, fault.HintOf(err))
	}
	if _, err := w.s.Glance(ctx, in); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a look for changes: %v", err)
	}
	w.s.LimitEntries(files + 3)
	got, err = w.s.Capture(ctx, w.id(), in)
	w.must(err)
	if n := got.Index.Entries(); n != files+3 {
		t.Errorf("the index has %d entries, want %d", n, files+3)
	}
	// An additional name causes a walk of all names of its file, which must not count an entry twice.
	w.must(os.Remove(filepath.Join(live, "d", "e", "0")))
	w.must(os.Link(first, filepath.Join(live, "d", "another")))
	in.Index = got.Index
	_, err = w.s.Capture(ctx, w.id(), in)
	w.must(err)
}

func TestMessages_ShortenLongPaths(t *testing.T) {
	m := &mdir{}
	tr := &trail{}
	for range 10_000 {
		m, tr = &mdir{up: m, name: "dir", size: m.size + 4}, tr.down("dir")
	}
	for _, got := range []string{m.String(), (&found{m: m, name: "file"}).String(), tr.String()} {
		if len(got) > limit.MessagePath+100 || !strings.HasPrefix(got, ".../dir/dir/") {
			t.Errorf("%d bytes: %.30q", len(got), got)
		}
	}
	if p := m.path(); len(p) != 40_000 {
		t.Errorf("the path has %d bytes", len(p))
	}
}

// deepFiles makes a file in each of n nested directories, and returns their layer.
func deepFiles(w *world, name string, n int) timeline.LayerID {
	w.t.Helper()
	return captured(w, func(live string) {
		fd, err := dirfd.OpenDir(unix.AT_FDCWD, live)
		w.must(err)
		for range n {
			f, err := w.s.fs.Create(fd, "f", 0o600)
			w.must(err)
			w.must(unix.Mkdirat(fd, name, 0o700))
			next, err := dirfd.OpenDir(fd, name)
			w.must(err)
			closeAll(f, fd)
			fd = next
		}
		closeAll(fd)
	})
}

// captured returns the layer of a tree that fill makes in an empty directory.
func captured(w *world, fill func(dir string)) timeline.LayerID {
	w.t.Helper()
	live := filepath.Join(w.home, "live")
	w.must(os.Mkdir(live, 0o755))
	fill(live)
	const id = timeline.LayerID("00000000000000d1")
	_, err := w.s.Capture(context.Background(), id,
		CaptureInput{Parts: []rootspec.Part{{Dir: live, Path: "/"}}, Index: new(Index)})
	w.must(err)
	w.must(w.s.RemoveTree(context.Background(), live))
	return id
}

// TestFinalize_FlushesLayerTooLargeForManifest covers a layer that uses little space on disk and
// has a large manifest, which contains each path, target and attribute in full: attributes may
// share a block, and a hard link repeats the path of its file.
func TestFinalize_FlushesLayerTooLargeForManifest(t *testing.T) {
	for name, lay := range map[string]struct {
		fill    func(w *world) timeline.LayerID
		entries int
	}{
		"paths": {func(w *world) timeline.LayerID { return deepFiles(w, strings.Repeat("n", 200), 700) }, 1_400},
		"attributes": {func(w *world) timeline.LayerID {
			value := bytes.Repeat([]byte{0}, 3_800)
			return captured(w, func(dir string) {
				for i := range 20_000 {
					name := filepath.Join(dir, fmt.Sprint(i))
					w.must(os.WriteFile(name, nil, 0o600))
					if err := unix.Setxattr(name, "user.a", value, 0); errors.Is(err, unix.EOPNOTSUPP) {
						t.Skip("needs user-xattrs: attributes fill the manifest")
					} else {
						w.must(err)
					}
				}
			})
		}, 20_000},
		"hard links": {func(w *world) timeline.LayerID {
			return captured(w, func(dir string) {
				fd := nest(w, dir, strings.Repeat("n", 200), 400)
				f, err := w.s.fs.Create(fd, "f", 0o600)
				w.must(err)
				top, err := dirfd.OpenDir(unix.AT_FDCWD, dir)
				w.must(err)
				for i := range 1_000 {
					w.must(unix.Linkat(fd, "f", top, fmt.Sprint("z", i), 0))
				}
				closeAll(f, fd, top)
			})
		}, 1_401},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, t.TempDir(), false)
			defer w.close()
			id, ctx := lay.fill(w), context.Background()
			got, err := w.s.Finalize(ctx, id)
			if err != nil || got != (Finalized{}) {
				t.Errorf("finalize: %+v, %.300v; want no digest", got, err)
			}
			if w.s.Finalized(id) {
				t.Error("the layer has a manifest")
			}
			n := 0
			w.must(w.s.View(w.dirs([]timeline.LayerID{id})).walk(ctx, func(*mdir, *found) error { n++; return nil }))
			if n != lay.entries {
				t.Errorf("the layer has %d entries, want %d", n, lay.entries)
			}
		})
	}
	d := describer{entries: make([]*format.Entry, limit.ManifestEntries)}
	if err := d.admit(&format.Entry{}); err != nil {
		t.Errorf("the maximum number of entries of a manifest: %v", err)
	}
	d.entries = append(d.entries, nil)
	if err := d.admit(&format.Entry{}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("one entry more than the maximum of a manifest: %v, want too_large", err)
	}
}

func TestPatch_RefusesPathsBeyondItsLimit(t *testing.T) {
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	id := deepFiles(w, strings.Repeat("n", 250), 1_100)
	empty := filepath.Join(w.home, "empty")
	w.must(os.Mkdir(empty, 0o755))
	var n written
	err := Patch(context.Background(), &n, rawView(empty, true), rawView(w.s.Dir(id), true), nil, DiffOptions{})
	if !fault.Is(err, fault.TooLarge) || n == 0 || n > 4*limit.PatchBytes {
		t.Errorf("%v after %d bytes, want too_large", err, n)
	}
}

func TestCapture_NamesTheFirstPaths(t *testing.T) {
	w := newWorld(t, t.TempDir(), false)
	defer w.close()
	capture := func(id timeline.LayerID, fill func(dir string)) Captured {
		dir := t.TempDir()
		fill(dir)
		c, err := w.s.Capture(context.Background(), id,
			CaptureInput{Parts: []rootspec.Part{{Dir: dir, Path: "/"}}, Index: new(Index)})
		w.must(err)
		w.must(w.s.RemoveTree(context.Background(), dir))
		return c
	}
	c := capture("00000000000000d1", func(dir string) {
		for i := range limit.NamedPaths + 1 {
			w.must(os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
		}
	})
	if len(c.Paths) != limit.NamedPaths || c.Stats.Paths != limit.NamedPaths+1 {
		t.Errorf("%d of %d paths are named", len(c.Paths), c.Stats.Paths)
	}
	c = capture("00000000000000d2", func(dir string) { unix.Close(nest(w, dir, strings.Repeat("n", 200), 30)) })
	if want := limit.NamedPath / 201; len(c.Paths) != want || c.Stats.Paths != 30 {
		t.Errorf("%d of %d paths are named, want the %d that are short enough", len(c.Paths), c.Stats.Paths, want)
	}
}

func TestDiff_CountsNoLinesOfALargeFile(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for name, size := range map[string]int{"a": limit.DiffLines, "b": limit.DiffLines + 1} {
		w.must(os.WriteFile(filepath.Join(now, name), bytes.Repeat([]byte{'x'}, size), 0o600))
	}
	list, err := Changes(context.Background(), rawView(was, true), rawView(now, true), nil, DiffOptions{Stat: true})
	if err != nil || len(list) != 2 || list[0].Binary || list[0].Lines == nil || !list[1].Binary {
		t.Errorf("%+v, %v", list, err)
	}
}

// written counts the bytes that are written to it.
type written int

func (c *written) Write(p []byte) (int, error) { *c += written(len(p)); return len(p), nil }

func TestDiff_TruncatesAfterFirstChanges(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for i := range 100 {
		w.must(os.WriteFile(filepath.Join(now, fmt.Sprintf("f%03d", i)), nil, 0o600))
	}
	a, b := rawView(was, true), rawView(now, true)
	for _, n := range []int{1, 99, 100, 101} {
		list, more, err := Some(ctx, a, b, nil, DiffOptions{Most: n})
		w.must(err)
		if more != (n < 100) || len(list) != min(n, 100) || list[0].Path != "/f000" {
			t.Errorf("at most %d: %d changes, more %v", n, len(list), more)
		}
	}
	if _, err := Changes(ctx, a, b, nil, DiffOptions{Most: 99}); !fault.Is(err, fault.TooLarge) ||
		fault.HintOf(err) == "" {
		t.Errorf("all of them: %v, want too_large with a hint", err)
	}
}

// TestDiff_BoundsListedChanges has one change more in one directory than an answer lists.
func TestDiff_BoundsListedChanges(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "layer") // where many files are made fast
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	was, now := filepath.Join(dir, "was"), filepath.Join(dir, "now")
	for _, d := range []string{was, now} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := dirfd.OpenDir(unix.AT_FDCWD, now)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range limit.DiffEntries + 1 {
		if err := unix.Mknodat(fd, fmt.Sprint(i), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	a, b := rawView(was, true), rawView(now, true)
	list, more, err := Some(context.Background(), a, b, nil, DiffOptions{})
	if err != nil || !more || len(list) != limit.DiffEntries {
		t.Errorf("%d changes, more %v, %v; want the first %d", len(list), more, err, limit.DiffEntries)
	}
	if _, err := Changes(context.Background(), a, b, nil, DiffOptions{}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("all of them: %v, want too_large", err)
	}
}

func TestDiff_StopsOnCancel(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for i := range 1_000 {
		w.must(os.WriteFile(filepath.Join(now, fmt.Sprintf("f%03d", i)), []byte("text\n"), 0o600))
	}
	a, b := rawView(was, true), rawView(now, true)
	for _, stat := range []bool{false, true} {
		told := 0
		ctx := looptest.EndsAfter(t, 50)
		err := EachChange(ctx, a, b, nil, DiffOptions{Stat: stat}, func(*Change) error { told++; return nil })
		if !errors.Is(err, context.Canceled) || told > 51 {
			t.Errorf("with stat %v: %v after %d changes", stat, err, told)
		}
	}
	one, err := os.Open(filepath.Join(now, "f000"))
	w.must(err)
	defer one.Close()
	fd := int(one.Fd())
	if _, err := sameContent(looptest.EndsAfter(t, 0), fd, fd, 5); !errors.Is(err, context.Canceled) {
		t.Errorf("contents are compared after the context was canceled: %v", err)
	}
	walker := w.s.newWalker(looptest.EndsAfter(t, 50), CaptureInput{})
	if _, _, err := walker.walk([]rootspec.Part{{Dir: now, Path: "/"}}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("capture: %v", err)
	}
	ctx := looptest.EndsAfter(t, 50)
	seen := 0
	if err := b.walk(ctx, func(*mdir, *found) error { seen++; return nil }); !errors.Is(err, context.Canceled) ||
		seen > 51 {
		t.Errorf("walk: %v after %d entries", err, seen)
	}
}

// TestWalk_ReturnsThroughGraftedTrees covers a view that grafts trees at paths below its root: a walk that closes its
// directories on the way down, and returns by "..", must return to the same ones.
func TestWalk_ReturnsThroughGraftedTrees(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	outer, inner := filepath.Join(w.home, "outer"), filepath.Join(w.home, "inner")
	const deep = viewHeld + 10
	chain := strings.Repeat("d/", deep)
	w.must(os.MkdirAll(filepath.Join(outer, chain, "x"), 0o755))
	w.must(os.MkdirAll(filepath.Join(inner, "i", chain), 0o755))
	w.must(os.WriteFile(filepath.Join(outer, chain, "z"), nil, 0o600))
	v := &View{sources: []source{{dir: inner, at: "/" + chain + "x", raw: true, plain: true},
		{dir: outer, at: "/", raw: true, plain: true}}}
	v.sources[0].at = filepath.Clean(v.sources[0].at)
	var got []string
	w.must(v.Walk(context.Background(), func(e Entry) error { got = append(got, e.Path); return nil }))
	if last := "/" + chain + "z"; len(got) != 2*deep+3 || got[len(got)-1] != last {
		t.Errorf("%d entries, the last %q; want %d and %q", len(got), got[len(got)-1], 2*deep+3, last)
	}
}

func TestDiff_BoundsCountedLines(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	for name, n := range map[string]int{"a": limit.DiffLineCount, "b": limit.DiffLineCount + 1} {
		w.must(os.WriteFile(filepath.Join(now, name), bytes.Repeat([]byte{'\n'}, n), 0o600))
	}
	list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil, DiffOptions{Stat: true})
	if err != nil || len(list) != 2 || list[0].Lines == nil || list[0].Lines.Added != limit.DiffLineCount ||
		!list[1].Binary {
		t.Errorf("%+v, %v", list, err)
	}
	var patch bytes.Buffer
	w.must(Patch(t.Context(), &patch, rawView(was, true), rawView(now, true), nil, DiffOptions{Paths: []string{"/b"}}))
	if got := patch.String(); !strings.Contains(got, "Binary files /dev/null and b/b differ") {
		t.Errorf("the patch is %.300q", got)
	}
}

// TestDiff_HonorsIgnore checks that it is not a change when the overlay of an ordinary user copies up a directory.
func TestDiff_HonorsIgnore(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	for _, dir := range []string{"opt", "own"} {
		w.must(os.MkdirAll(filepath.Join(was, dir), 0o755))
		w.must(os.MkdirAll(filepath.Join(now, dir), 0o755))
	}
	if err := os.Chown(filepath.Join(was, "opt"), 12345, 12345); err != nil {
		t.Skip("needs real-root: to give a directory to another user")
	}
	w.must(os.Chmod(filepath.Join(was, "opt"), 0o555)) // root may still write to it
	w.must(os.Chmod(filepath.Join(now, "opt"), 0o755))
	w.must(os.Chmod(filepath.Join(now, "own"), 0o700))
	for _, tc := range []struct {
		ignore Ignored
		want   []string
	}{
		{Ignored{}, []string{"/opt", "/own"}},
		{Ignored{Roots: map[string]bool{"/opt": true}, Owners: true}, []string{"/own"}},
	} {
		opts := DiffOptions{Ignore: tc.ignore}
		list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil, opts)
		var got []string
		for _, c := range list {
			got = append(got, c.Path)
		}
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("changes of %v, %v; want %v", got, err, tc.want)
		}
		var patch bytes.Buffer
		w.must(Patch(t.Context(), &patch, rawView(was, true), rawView(now, true), nil, opts))
		if got := strings.Count(patch.String(), "new mode"); got != len(tc.want) {
			t.Errorf("the patch has %d modes, want %d: %s", got, len(tc.want), patch.String())
		}
	}
}

// TestDiff_ReportsChangesOfRoots covers the root of a part: a process can change its mode and owner like those of any
// directory.
func TestDiff_ReportsChangesOfRoots(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	roots := map[string]bool{}
	for _, dir := range []string{"same", "bits", "open", "setgid", "owner"} {
		w.must(os.MkdirAll(filepath.Join(was, dir), 0o755))
		w.must(os.MkdirAll(filepath.Join(now, dir), 0o755))
		roots["/"+dir] = true
	}
	w.must(os.Chmod(filepath.Join(now, "bits"), 0o555)) // of the same owner
	w.must(os.Chmod(filepath.Join(now, "open"), 0o777))
	w.must(os.Chmod(filepath.Join(now, "setgid"), 0o755|os.ModeSetgid))
	want := []string{"/bits", "/open", "/owner", "/setgid"}
	if err := unix.Setxattr(filepath.Join(now, "owner"), xattrOwner, []byte("5:5"), 0); err != nil {
		want = []string{"/bits", "/open", "/setgid"} // user attributes are not supported here
	}
	list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil,
		DiffOptions{Ignore: Ignored{Roots: roots, Owners: true}})
	var got []string
	for _, c := range list {
		got = append(got, c.Path)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("changes of %v, %v; want %v", got, err, want)
	}
}

func TestDiff_ReportsRemovedSize(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	w.must(os.WriteFile(filepath.Join(was, "bin"), make([]byte, 300), 0o600))
	list, err := Changes(t.Context(), rawView(was, true), rawView(now, true), nil, DiffOptions{Stat: true})
	if err != nil || len(list) != 1 || list[0].Kind != Removed || !list[0].Binary || list[0].Size != 300 {
		t.Errorf("%+v, %v", list, err)
	}
}

// endsWaiting is a context that is canceled as soon as a caller waits for it.
type endsWaiting struct {
	context.Context
	end context.CancelFunc
}

func (e endsWaiting) Done() <-chan struct{} { e.end(); return e.Context.Done() }

// TestDiff_ComparesLinesOfOneFileAtATime checks that a comparison of lines waits for its turn, and stops waiting when
// its caller cancels it.
func TestDiff_ComparesLinesOfOneFileAtATime(t *testing.T) {
	w := newWorld(t, t.TempDir(), true)
	defer w.close()
	was, now := filepath.Join(w.home, "was"), filepath.Join(w.home, "now")
	w.must(os.MkdirAll(was, 0o755))
	w.must(os.MkdirAll(now, 0o755))
	w.must(os.WriteFile(filepath.Join(now, "f"), []byte("one\n"), 0o600))
	a, b := w.s.PlainView([]rootspec.Part{{Dir: was, Path: "/"}}), w.s.PlainView([]rootspec.Part{{Dir: now, Path: "/"}})
	for name, compare := range map[string]func(ctx context.Context) error{
		"stat": func(ctx context.Context) error {
			_, err := Changes(ctx, a, b, nil, DiffOptions{Stat: true})
			return err
		},
		"patch": func(ctx context.Context) error { return Patch(ctx, io.Discard, a, b, nil, DiffOptions{}) },
	} {
		w.must(w.s.turn.take(t.Context()))
		ctx, end := context.WithCancel(t.Context())
		if err := compare(endsWaiting{ctx, end}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, during another comparison: %v", name, err)
		}
		w.s.turn.give()
		if err := compare(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
