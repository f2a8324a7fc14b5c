package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
