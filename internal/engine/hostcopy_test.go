//go:build linux

package engine

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// fakeHost is a directory that host-copy imports as the host.
type fakeHost struct {
	*home
	root  string
	print string
}

func newFakeHost(t *testing.T) *fakeHost {
	f := &fakeHost{home: newHome(t), root: t.TempDir(), print: "0"}
	f.pretend()
	for i := range 20 {
		f.write("usr/lib/"+itoa(i), strings.Repeat("content", 100))
	}
	f.write("etc/conf", "one")
	return f
}

// pretend makes the engine import the directory as the host.
func (f *fakeHost) pretend() {
	f.HostRoot = f.root
	f.HostPrint = func() string { return f.print }
	f.HostImport = func() (layer.ImportOptions, error) { return layer.ImportOptions{}, nil }
}

func (f *fakeHost) reopen() {
	f.close()
	f.open()
	f.pretend()
}

// write writes a file of the host, and changes the fingerprint.
func (f *fakeHost) write(path, text string) {
	f.t.Helper()
	p := filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.touch()
}

// touch changes the host's fingerprint.
func (f *fakeHost) touch() { f.print += "+" }

// box makes a sandbox on the copy of the host, and returns the notes.
func (f *fakeHost) box(name string) string {
	f.t.Helper()
	sb, err := f.Create(ctx, wire.CreateRequest{Name: name, From: wire.Source{Kind: wire.SourceHostCopy}},
		func(wire.Progress) {})
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.Join(sb.Notes, "\n")
}

func (f *fakeHost) layers() []timeline.LayerID {
	f.t.Helper()
	ids, err := f.Layers.List(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// fresh returns the only layer that is not in before.
func (f *fakeHost) fresh(before []timeline.LayerID) timeline.LayerID {
	f.t.Helper()
	now := slices.DeleteFunc(f.layers(), func(id timeline.LayerID) bool { return slices.Contains(before, id) })
	if len(now) != 1 {
		f.t.Fatalf("%d new layers", len(now))
	}
	return now[0]
}

// held lists the paths in a layer.
func (f *fakeHost) held(id timeline.LayerID) (paths []string) {
	f.t.Helper()
	err := filepath.WalkDir(f.Layers.Dir(id), func(p string, _ fs.DirEntry, err error) error {
		paths = append(paths, strings.TrimPrefix(p, f.Layers.Dir(id)))
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return paths
}

func (f *fakeHost) check() {
	f.t.Helper()
	if r, err := f.Verify(ctx, "", func(wire.Progress) {}); err != nil || len(r.Damage) > 0 {
		f.t.Errorf("verify: %+v, %v", r, err)
	}
	if files, err := os.ReadDir(f.Bases.Dir()); err != nil || len(files) != 1 {
		f.t.Errorf("bases: %v, %v", files, err)
	}
}

func TestHostCopy_RefreshesByDifference(t *testing.T) {
	f := newFakeHost(t)
	if notes := f.box("a"); notes != "" {
		t.Errorf("notes of the first import: %q", notes)
	}
	before := f.layers()
	f.write("etc/conf", "two")
	f.write("usr/lib/new", "new")
	if err := os.Remove(filepath.Join(f.root, "usr/lib/3")); err != nil {
		t.Fatal(err)
	}
	f.reopen()
	if notes := f.box("b"); notes != "refreshed the copy of the host: 3 paths changed" {
		t.Errorf("notes of the refresh: %q", notes)
	}
	if in := f.held(f.fresh(before)); !slices.Equal(in,
		[]string{"", "/etc", "/etc/conf", "/usr", "/usr/lib", "/usr/lib/3", "/usr/lib/new"}) {
		t.Errorf("the layer holds %q", in)
	}
	a, b, host := f.tree("a"), f.tree("b"), readTree(t, f.root)
	if a["etc/conf"] != "one" || a["usr/lib/3"] == "" || len(a) != len(host) {
		t.Errorf("the older sandbox shows %v", a)
	}
	if b["etc/conf"] != "two" || b["usr/lib/new"] != "new" || len(b) != len(host) {
		t.Errorf("the newer sandbox shows %v", b)
	}
	f.check()
	// The older copy is below the newer one, so it stays when its sandbox is removed.
	if _, err := f.Remove(ctx, []string{"a"}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.GC(ctx, wire.GCRequest{}, func(wire.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if got := f.tree("b"); len(got) != len(host) {
		t.Errorf("after gc the newer sandbox shows %v", got)
	}
	f.check()
}

// TestGC_FreesUnusedHostCopy checks that gc removes the copy of the host after its last sandbox, and that the next
// sandbox makes another.
func TestGC_FreesUnusedHostCopy(t *testing.T) {
	f := newFakeHost(t)
	f.box("a")
	f.write("etc/conf", "two")
	f.box("b")
	gc := func(dry bool) wire.GCResult {
		t.Helper()
		res, err := f.GC(ctx, wire.GCRequest{DryRun: dry}, ignore)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := gc(false); res.Layers != 0 || len(f.layers()) != 2 {
		t.Errorf("with its sandboxes: %+v, %d layers are left", res, len(f.layers()))
	}
	if _, err := f.Remove(ctx, []string{"a", "b"}, false); err != nil {
		t.Fatal(err)
	}
	if n := len(f.layers()); n == 0 {
		t.Error("rm removed the copy, which the next sandbox could use")
	}
	if res := gc(true); res.Layers != 2 || res.Bytes < 20*700 {
		t.Errorf("a dry run: %+v", res)
	}
	if res := gc(false); res.Layers != 2 || res.Bytes < 20*700 || len(f.layers()) != 0 {
		t.Errorf("%+v, %d layers are left", res, len(f.layers()))
	}
	if files, err := os.ReadDir(f.Bases.Dir()); err != nil || len(files) != 0 {
		t.Errorf("indexes: %v, %v", files, err)
	}
	f.box("c")
	if got := f.tree("c")["etc/conf"]; got != "two" {
		t.Errorf("the sandbox on the new copy shows %q", got)
	}
	f.check()
}

// TestCreate_ReimportsBaseRemovedByGC checks that a gc between an import and the sandbox on it
// causes another import.
func TestCreate_ReimportsBaseRemovedByGC(t *testing.T) {
	for _, kind := range []string{wire.SourceHostCopy, wire.SourceDir} { // the import of a directory is not reused
		t.Run(kind, func(t *testing.T) {
			f := newFakeHost(t)
			f.box("a")
			if _, err := f.Remove(ctx, []string{"a"}, false); err != nil {
				t.Fatal(err)
			}
			req := wire.CreateRequest{Name: "b", From: wire.Source{Kind: kind}}
			if kind == wire.SourceDir {
				req.From.Path = f.HostRoot
			}
			on, err := f.Bases.For(ctx, req, tierProcess, ignore)
			if err != nil {
				t.Fatal(err)
			}
			rec, _, _, err := f.plan(ctx, &req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.GC(ctx, wire.GCRequest{}, ignore); err != nil {
				t.Fatal(err)
			}
			again := 0
			err = f.createBare(ctx, &rec, &on, true, func() error {
				again++
				on, err = f.Bases.For(ctx, req, tierProcess, ignore)
				return err
			})
			if err != nil || again != 1 {
				t.Fatalf("imported again %d times, %v", again, err)
			}
			if got := f.tree("b")["etc/conf"]; got != "one" {
				t.Errorf("the sandbox shows %q", got)
			}
		})
	}
}

// TestHostCopy_SurvivesGCDuringRefresh checks that a gc during the refresh of a host copy
// causes a complete import of the host.
func TestHostCopy_SurvivesGCDuringRefresh(t *testing.T) {
	f := newFakeHost(t)
	f.box("a")
	if _, err := f.Remove(ctx, []string{"a"}, false); err != nil {
		t.Fatal(err)
	}
	f.write("etc/conf", "two")
	f.HostImport = func() (layer.ImportOptions, error) {
		_, err := f.GC(ctx, wire.GCRequest{}, ignore)
		return layer.ImportOptions{}, err
	}
	f.box("b")
	if got := f.tree("b")["etc/conf"]; got != "two" {
		t.Errorf("the sandbox shows %q", got)
	}
	f.check()
}

// TestCreate_IsNotOlderThanItsBase covers an import that takes a while: the sandbox is not older than its base.
func TestCreate_IsNotOlderThanItsBase(t *testing.T) {
	f := newFakeHost(t)
	f.HostImport = func() (layer.ImportOptions, error) {
		time.Sleep(20 * time.Millisecond)
		return layer.ImportOptions{}, nil
	}
	f.box("a")
	rec, err := f.DB.Sandbox(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	h, err := f.DB.History(ctx, rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	first := h.Snapshots[rec.Head]
	base := h.Snapshots[first.Parent]
	if base.Created.IsZero() || first.Created.Before(base.Created) || !rec.Created.Equal(first.Created) {
		t.Errorf("base %v, first snapshot %v, sandbox %v", base.Created, first.Created, rec.Created)
	}
}

func TestHostCopy_AddsNoLayerWhenUnchanged(t *testing.T) {
	f := newFakeHost(t)
	f.box("a")
	before := f.layers()
	f.touch()
	if notes := f.box("b"); notes != "refreshed the copy of the host: 0 paths changed" {
		t.Errorf("notes of the refresh: %q", notes)
	}
	if notes := f.box("c"); notes != "" {
		t.Errorf("the fingerprint was not recorded: %q", notes)
	}
	if now := f.layers(); !slices.Equal(now, before) {
		t.Errorf("layers: %v, before %v", now, before)
	}
	f.check()
}

func TestHostCopy_ImportsInFullWithoutIndex(t *testing.T) {
	for name, damage := range map[string]func(file string) error{
		"missing": os.Remove,
		"torn":    func(file string) error { return os.Truncate(file, 100) },
		"another version": func(file string) error {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			copy(b, "coppice-index-99")
			return os.WriteFile(file, b, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeHost(t)
			f.box("a")
			files, err := filepath.Glob(filepath.Join(f.Bases.Dir(), "index.*"))
			if err != nil || len(files) != 1 {
				t.Fatalf("index files: %v, %v", files, err)
			}
			if err := damage(files[0]); err != nil {
				t.Fatal(err)
			}
			before := f.layers()
			f.write("etc/conf", "two")
			if notes := f.box("b"); notes != "" {
				t.Errorf("notes of the second import: %q", notes)
			}
			if in := readTree(t, f.Layers.Dir(f.fresh(before))); len(in) != len(readTree(t, f.root)) {
				t.Errorf("the layer holds %v", in)
			}
			if got := f.tree("b")["etc/conf"]; got != "two" {
				t.Errorf("the sandbox shows %q", got)
			}
			f.check()
		})
	}
}

// TestHostCopy_SweepsIndexWithoutBase covers an index whose base was never recorded, as after a crash between the
// two. It is removed and never used.
func TestHostCopy_SweepsIndexWithoutBase(t *testing.T) {
	f := newFakeHost(t)
	f.box("a")
	for _, n := range []string{"index.0123456789ab", "index.0123456789ab.tmp"} {
		if err := os.WriteFile(filepath.Join(f.Bases.Dir(), n), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.reopen()
	f.check()
	f.write("etc/conf", "two")
	if notes := f.box("b"); notes == "" {
		t.Error("the index of a recorded base was removed too")
	}
	f.check()
}

// TestHostCopy_StaysShallowAndIsCollected checks that years of refreshes exhaust neither the disk nor the number of
// layers of a mount.
func TestHostCopy_StaysShallowAndIsCollected(t *testing.T) {
	t.Parallel()
	f := newFakeHost(t)
	f.box("a")
	n := 40
	for i := range n {
		f.write("etc/conf", itoa(i))
		if notes := f.box("b" + itoa(i)); notes == "" {
			t.Fatalf("import %d was a complete one", i)
		}
	}
	if err := f.Merge(ctx); err != nil {
		t.Fatal(err)
	}
	last := "b" + itoa(n-1)
	rec, err := f.DB.Sandbox(ctx, last)
	if err != nil {
		t.Fatal(err)
	}
	st, _, err := f.masks.Stack(ctx, &rec, rec.Head)
	if err != nil || len(st.Layers) >= 30 {
		t.Errorf("%d refreshes are mounted through %d layers, %v", n, len(st.Layers), err)
	}
	if got := f.tree(last)["etc/conf"]; got != itoa(n-1) {
		t.Errorf("the newest sandbox shows %q", got)
	}
	if got := f.tree("a")["etc/conf"]; got != "one" {
		t.Errorf("the oldest sandbox shows %q", got)
	}
	// So much has changed that the next import is complete; then the chain is not needed any more.
	f.write("usr/lib/large", strings.Repeat("large", 3000))
	f.box("large")
	f.write("etc/conf", "whole")
	if notes := f.box("whole"); notes != "" {
		t.Errorf("notes of a complete import: %q", notes)
	}
	recs, err := f.DB.Sandboxes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if recs[i].Name != "whole" {
			if _, err := f.Remove(ctx, []string{recs[i].Name}, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := f.GC(ctx, wire.GCRequest{}, func(wire.Progress) {}); err != nil {
		t.Fatal(err)
	}
	if left := f.layers(); len(left) != 1 {
		t.Errorf("%d layers are left", len(left))
	}
	if got := f.tree("whole")["etc/conf"]; got != "whole" {
		t.Errorf("the sandbox on the complete import shows %q", got)
	}
	f.check()
}
