package meta

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

var epoch = time.Date(2026, 1, 2, 15, 0, 0, 0, time.UTC)

func open(t testing.TB) *DB {
	t.Helper()
	d, err := Open(t.Context(), filepath.Join(t.TempDir(), "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Check(context.Background()); err != nil {
			t.Errorf("at the end: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newBox(t testing.TB) timeline.SandboxID { return must(timeline.NewSandboxID(rand.Reader))(t) }
func newSnap(t testing.TB) timeline.SnapshotID {
	return must(timeline.NewSnapshotID(rand.Reader))(t)
}
func newLayer(t testing.TB) timeline.LayerID { return must(timeline.NewLayerID(rand.Reader))(t) }

// box makes a sandbox whose first snapshot has this parent.
func box(t testing.TB, d *DB, name string, parent timeline.SnapshotID) Sandbox {
	t.Helper()
	s := timeline.Snapshot{ID: newSnap(t), Sandbox: newBox(t), Parent: parent, Cause: timeline.CauseImport,
		Message: "first of " + name, Created: epoch}
	rec := Sandbox{ID: s.Sandbox, Name: name, Created: epoch, Head: s.ID, MountTop: s.ID, Gen: 1, Config: Config{
		From: "the host", Base: "host", Host: true, Driver: "overlay", Tier: "process", User: "me", Net: "off",
		Env: []string{"A=1"}, Limits: wire.Limits{Pids: 512},
		Enforced: []wire.Enforcement{{Name: "seccomp", State: wire.EnforcedOn}},
	}}
	ok(t, d.CreateSandbox(t.Context(), rec, s))
	return rec
}

// snap adds a snapshot with its own layer on top of HEAD.
func snap(t testing.TB, d *DB, rec *Sandbox, message string) timeline.Route {
	t.Helper()
	s := timeline.Snapshot{
		ID: newSnap(t), Sandbox: rec.ID, Parent: rec.Head, Cause: timeline.CauseExec, Message: message,
		Created: epoch.Add(time.Minute), Stats: timeline.Stats{Paths: 3, Bytes: 4096},
	}
	r := timeline.Route{Top: s.ID, Below: rec.Head, Layer: newLayer(t)}
	ok(t, d.AddSnapshot(t.Context(), s, &r, 0, func(r *Sandbox) { r.Head, r.Redo = s.ID, nil }))
	rec.Head = s.ID
	return r
}

func stack(t testing.TB, d *DB, id timeline.SnapshotID) []timeline.LayerID {
	t.Helper()
	return must(must(d.Lineage(t.Context(), id))(t).Stack(id))(t)
}

func wantFault(t testing.TB, err error, kind fault.Kind, says string) {
	t.Helper()
	if !fault.Is(err, kind) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v (%s), want %s with %q", err, fault.KindOf(err), kind, says)
	}
	if fault.HintOf(err) == "" && kind != fault.Cancelled {
		t.Errorf("no hint with %v", err)
	}
}

func TestDatabase_PersistsSandboxes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "a b?c%d#e", "meta.db")
	ok(t, os.MkdirAll(filepath.Dir(path), 0o700))
	d := must(Open(ctx, path))(t)
	if !d.Made() {
		t.Error("a new database was not made")
	}
	rec := box(t, d, "web-1", "")
	code := 137
	odd := "printf '\x1b[2J\x00\xff' \n línea"
	s := timeline.Snapshot{
		ID: newSnap(t), Sandbox: rec.ID, Parent: rec.Head, Cause: timeline.CauseExec, Message: odd,
		Created: epoch.Add(1234567 * time.Microsecond), Exit: &code, Stats: timeline.Stats{Paths: 1 << 20, Bytes: 1 << 40},
	}
	r := timeline.Route{Top: s.ID, Below: rec.Head, Layer: newLayer(t)}
	intent := must(d.BeginIntent(ctx, "adopt", map[string]string{"layer": string(r.Layer)}))(t)
	other := must(d.BeginIntent(ctx, "other", 7))(t)
	ok(t, d.AddSnapshot(ctx, s, &r, intent,
		func(x *Sandbox) { x.Head, x.Gen, x.Redo = s.ID, 2, []timeline.SnapshotID{rec.Head} }))
	ok(t, d.SetTag(ctx, rec.ID, "good", s.ID))
	ok(t, d.SetSetting(ctx, "boot_id", "x"))
	ok(t, d.SetSetting(ctx, "boot_id", "y"))
	ok(t, d.MarkFinalized(ctx, r.Layer, "sha256:d", "sha256:e", 99))
	ok(t, d.Close())

	d = must(Open(ctx, path))(t)
	defer d.Close()
	if d.Made() {
		t.Error("an old database was made")
	}
	got := must(d.Sandbox(ctx, "web-1"))(t)
	rec.Head, rec.Gen, rec.Redo = s.ID, 2, []timeline.SnapshotID{rec.Head}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", rec) {
		t.Errorf("got  %+v\nwant %+v", got, rec)
	}
	if head := must(d.Head(ctx, "web-1"))(t); head != got.Head {
		t.Errorf("the head is %q, and not %q", head, got.Head)
	}
	if byID := must(d.Sandbox(ctx, string(rec.ID)))(t); byID.Name != "web-1" {
		t.Errorf("by id: %+v", byID)
	}
	h := must(d.History(ctx, rec.ID))(t)
	if g := h.Snapshots[s.ID]; g.Message != odd || *g.Exit != 137 || !g.Created.Equal(s.Created) || !g.Finalized ||
		g.Stats != s.Stats || g.Parent != s.Parent || g.Cause != s.Cause {
		t.Errorf("got %+v", g)
	}
	if len(h.Snapshots) != 2 || h.Head != s.ID || h.Tags["good"] != s.ID || h.Sandbox != rec.ID {
		t.Errorf("history %+v", h)
	}
	if ls := must(d.Layers(ctx))(t); len(ls) != 1 ||
		ls[0] != (Layer{ID: r.Layer, Finalized: true, Digest: "sha256:d", DiffID: "sha256:e", Size: 99}) {
		t.Errorf("layers %+v", ls)
	}
	if is := must(d.Intents(ctx))(t); len(is) != 1 || is[0].ID != other || is[0].Kind != "other" ||
		string(is[0].Body) != "7" {
		t.Errorf("intents %+v", is)
	}
	if v := must(d.Setting(ctx, "boot_id"))(t); v != "y" {
		t.Errorf("setting %q", v)
	}
	if v := must(d.Setting(ctx, "never"))(t); v != "" {
		t.Errorf("a setting that was never set: %q", v)
	}
}

func TestDatabase_RefusesInvalidChanges(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	rec := box(t, d, "web-1", "")
	before := must(d.Sandboxes(ctx))(t)

	_, err := d.Sandbox(ctx, "web-2")
	wantFault(t, err, fault.NotFound, `"web-2"`)
	if hint := fault.HintOf(err); !strings.Contains(hint, "did you mean web-1?") {
		t.Errorf("hint %q", hint)
	}
	if _, again := d.Head(ctx, "web-2"); again == nil || again.Error() != err.Error() {
		t.Errorf("the head of an unknown sandbox: %v", again)
	}
	_, err = d.Sandbox(ctx, strings.Repeat("x", 1<<20))
	wantFault(t, err, fault.NotFound, "xxx...")

	again := rec
	again.ID = newBox(t)
	first := timeline.Snapshot{ID: newSnap(t), Sandbox: again.ID, Cause: timeline.CauseImport, Created: epoch}
	wantFault(t, d.CreateSandbox(ctx, again, first), fault.Exists, "web-1")
	fresh := again
	fresh.Name = "web-9"
	wantFault(t, d.CreateSandboxes(ctx, []Sandbox{fresh, again}, []timeline.Snapshot{first, first}), fault.Exists, "web-1")

	s := timeline.Snapshot{ID: newSnap(t), Sandbox: "0123456789ab", Parent: rec.Head, Cause: timeline.CauseExec,
		Created: epoch}
	err = d.AddSnapshot(ctx, s, nil, 0, func(*Sandbox) {})
	wantFault(t, err, fault.NotFound, "sandbox 0123456789ab no longer exists")
	s.Sandbox, s.Parent = rec.ID, "ffffffffffff"
	if err = d.AddSnapshot(ctx, s, nil, 0, func(*Sandbox) {}); err == nil {
		t.Error("a snapshot with an unknown parent was recorded")
	}
	s.ID, s.Parent = rec.Head, rec.Head
	if err = d.AddSnapshot(ctx, s, nil, 0, func(*Sandbox) {}); !fault.Is(err, fault.Exists) {
		t.Errorf("a snapshot twice: %v", err)
	}
	boom := fault.New(fault.Conflict, "boom")
	if err := d.UpdateSandbox(ctx, rec.ID,
		func(r *Sandbox) error { r.Name = "gone"; return boom }); !fault.Is(err, fault.Conflict) {
		t.Errorf("error of fn: %v", err)
	}
	wantFault(t, d.SetTag(ctx, rec.ID, "t", "ffffffffffff"), fault.NotFound, "ffffffffffff")
	wantFault(t, d.AddRoute(ctx, timeline.Route{Top: rec.Head, Below: "ffffffffffff", Layer: newLayer(t), Merged: true}),
		fault.NotFound, "ffffffffffff")
	if _, err := d.DeleteSandbox(ctx, "ffffffffffff"); !fault.Is(err, fault.NotFound) {
		t.Errorf("delete an unknown sandbox: %v", err)
	}
	if err := d.MarkFinalized(ctx, "ffffffffffffffff", "", "", 0); !fault.Is(err, fault.NotFound) {
		t.Errorf("seal an unknown layer: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	wantFault(t, d.SetSetting(gone, "a", "b"), fault.Cancelled, "")

	if after := must(d.Sandboxes(ctx))(t); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("something was changed: %+v, before %+v", after, before)
	}
	if n := len(must(d.History(ctx, rec.ID))(t).Snapshots); n != 1 {
		t.Errorf("%d snapshots", n)
	}
	if n := len(must(d.Layers(ctx))(t)); n != 0 {
		t.Errorf("%d layers", n)
	}
}

func TestHistory_ResolvesTimeByHead(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	rec := box(t, d, "a", "")
	first := rec.Head
	second := snap(t, d, &rec, "two").Top // a minute after epoch
	d.Now = func() time.Time { return epoch.Add(2 * time.Minute) }
	ok(t, d.UpdateSandbox(ctx, rec.ID, func(r *Sandbox) error { r.Head = first; return nil }))
	ok(t, d.UpdateSandbox(ctx, rec.ID, func(r *Sandbox) error { r.Net = "host"; return nil }))
	h := must(d.History(ctx, rec.ID))(t)
	now := epoch.Add(10 * time.Minute)
	for ref, want := range map[string]timeline.SnapshotID{"@{10m}": first, "@{9m30s}": first, "@{9m}": second,
		"@{8m1s}": second, "@{8m}": first, "@{0s}": first} {
		if got, err := h.Resolve(ref, now); got != want || err != nil {
			t.Errorf("%s = %s, %v; want %s", ref, got, err, want)
		}
	}
	if len(h.Moves) != 1 {
		t.Errorf("moves %v", h.Moves)
	}
}

func TestForks_ShareHistory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	src := box(t, d, "src", "")
	a := snap(t, d, &src, "a")
	b := snap(t, d, &src, "b")
	fork := box(t, d, "fork", a.Top)
	c := snap(t, d, &fork, "c")
	snap(t, d, &src, "after the fork")
	h := must(d.History(ctx, fork.ID))(t)
	if _, ok := h.Snapshots[b.Top]; ok || len(h.Snapshots) != 4 {
		t.Errorf("the fork's history has %d snapshots, b: %v", len(h.Snapshots), ok)
	}
	if got := stack(t, d, fork.Head); !slices.Equal(got, []timeline.LayerID{c.Layer, a.Layer}) {
		t.Errorf("stack %v", got)
	}
	for _, l := range []timeline.LayerID{a.Layer, b.Layer, c.Layer} {
		ok(t, d.MarkFinalized(ctx, l, "d", "e", map[timeline.LayerID]int64{a.Layer: 1, b.Layer: 10, c.Layer: 100}[l]))
	}
	if u := must(d.Usage(ctx, src.ID))(t); u != (Usage{Own: 10, Shared: 1}) {
		t.Errorf("source: %+v", u)
	}
	if u := must(d.Usage(ctx, fork.ID))(t); u != (Usage{Own: 100, Shared: 1}) {
		t.Errorf("fork: %+v", u)
	}

	// The source is removed: the snapshots that the fork is built on stay.
	unused := must(d.DeleteSandbox(ctx, src.ID))(t)
	if len(unused) != 2 || slices.Contains(unused, a.Layer) {
		t.Errorf("unused %v", unused)
	}
	if got := stack(t, d, fork.Head); !slices.Equal(got, []timeline.LayerID{c.Layer, a.Layer}) {
		t.Errorf("stack %v", got)
	}
	if u := must(d.Usage(ctx, fork.ID))(t); u != (Usage{Own: 101}) {
		t.Errorf("fork alone: %+v", u)
	}
	if dead := must(d.Unreferenced(ctx, ""))(t); len(dead.Snapshots)+len(dead.Layers) != 0 {
		t.Errorf("unreferenced %+v", dead)
	}
	unused = must(d.DeleteSandbox(ctx, fork.ID))(t)
	slices.Sort(unused)
	want := []timeline.LayerID{a.Layer, c.Layer}
	slices.Sort(want)
	if !slices.Equal(unused, want) {
		t.Errorf("unused %v, want %v", unused, want)
	}
	var n int
	ok(t, d.rows(ctx, "SELECT count(*) FROM snapshots", func(s scanner) error { return s.Scan(&n) }))
	if n != 0 || len(must(d.Layers(ctx))(t)) != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}

func TestDeleteSandbox_KeepsHistoryOfForks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	src := box(t, d, "src", "")
	origin := src.Head
	a := snap(t, d, &src, "a")
	fork := box(t, d, "fork", a.Top)
	first := fork.Head
	ok(t, d.UpdateSandbox(ctx, fork.ID, func(r *Sandbox) error { r.Head, r.MountTop = a.Top, origin; return nil }))
	must(d.DeleteSnapshot(ctx, first, nil))(t)
	if unused := must(d.DeleteSandbox(ctx, src.ID))(t); len(unused) > 0 {
		t.Errorf("unused %v", unused)
	}
	if h := must(d.History(ctx, fork.ID))(t); h.Head != a.Top || len(h.Snapshots) != 2 {
		t.Errorf("history %+v", h)
	}
	if unused := must(d.DeleteSandbox(ctx, fork.ID))(t); !slices.Equal(unused, []timeline.LayerID{a.Layer}) {
		t.Errorf("unused %v", unused)
	}
}

func TestDeleteSnapshot_InMiddle(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	rec := box(t, d, "a", "")
	first := rec.Head
	a, b, c := snap(t, d, &rec, "a"), snap(t, d, &rec, "b"), snap(t, d, &rec, "c")
	fork := box(t, d, "fork", b.Top) // has no route: equals b
	across := timeline.Route{Top: c.Top, Below: a.Top, Layer: newLayer(t), Merged: true}
	ending := timeline.Route{Top: b.Top, Below: first, Layer: newLayer(t), Merged: true}
	ok(t, d.AddRoute(ctx, across))
	ok(t, d.AddRoute(ctx, ending))
	ok(t, d.SetTag(ctx, rec.ID, "t", b.Top))

	_, err := d.DeleteSnapshot(ctx, c.Top, nil)
	wantFault(t, err, fault.Conflict, "sandbox a is at")
	cut := must(d.Cut(ctx, b.Top))(t)
	if cut.Below != a.Top || cut.Own == nil || *cut.Own != b || !slices.Equal(cut.Above, []timeline.Route{c}) {
		t.Fatalf("cut %+v", cut)
	}
	_, err = d.DeleteSnapshot(ctx, b.Top, nil)
	wantFault(t, err, fault.Conflict, "now the base")

	led := timeline.Route{Top: c.Top, Below: a.Top, Layer: newLayer(t)}
	unused := must(d.DeleteSnapshot(ctx, b.Top, []timeline.Route{led}))(t)
	slices.Sort(unused)
	want := []timeline.LayerID{c.Layer, ending.Layer}
	slices.Sort(want)
	if !slices.Equal(unused, want) {
		t.Errorf("unused %v, want %v (b's layer is the fork's now)", unused, want)
	}
	h := must(d.History(ctx, rec.ID))(t)
	if h.Snapshots[c.Top].Parent != a.Top || len(h.Tags) != 0 || len(h.Snapshots) != 3 {
		t.Errorf("history %+v", h)
	}
	if got := stack(t, d, c.Top); len(got) != 2 || got[1] != a.Layer {
		t.Errorf("stack of c %v", got)
	}
	if got := stack(t, d, fork.Head); !slices.Equal(got, []timeline.LayerID{b.Layer, a.Layer}) {
		t.Errorf("the fork lost its snapshot: stack %v", got)
	}
	_, err = d.DeleteSnapshot(ctx, b.Top, nil)
	wantFault(t, err, fault.NotFound, "no longer exists")

	// A snapshot that changed nothing is deleted without a merge.
	none := timeline.Snapshot{ID: newSnap(t), Sandbox: rec.ID, Parent: rec.Head, Cause: timeline.CauseManual,
		Created: epoch}
	ok(t, d.AddSnapshot(ctx, none, nil, 0, func(r *Sandbox) { r.Head = none.ID }))
	rec.Head = none.ID
	top := snap(t, d, &rec, "d")
	cut = must(d.Cut(ctx, none.ID))(t)
	if cut.Own != nil || cut.Below != c.Top || len(cut.Above) != 1 {
		t.Fatalf("cut %+v", cut)
	}
	must(d.DeleteSnapshot(ctx, none.ID, []timeline.Route{{Top: top.Top, Below: c.Top, Layer: top.Layer}}))(t)
	if got := stack(t, d, top.Top); len(got) != 3 || got[0] != top.Layer {
		t.Errorf("stack of d %v", got)
	}
}

func TestBases(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	add := func(key string, minute int, parent timeline.SnapshotID) (Base, timeline.Route) {
		s := timeline.Snapshot{ID: newSnap(t), Parent: parent, Cause: timeline.CauseImport, Created: epoch,
			Stats: timeline.Stats{Bytes: 10 + int64(minute)}}
		b := Base{ID: string(s.ID), Key: key, Top: s.ID, Label: "host", Print: "p",
			Created: epoch.Add(time.Duration(minute) * time.Minute)}
		r := timeline.Route{Top: s.ID, Below: parent, Layer: newLayer(t)}
		ok(t, d.AddBase(ctx, b, s, r))
		return b, r
	}
	_, err := d.Base(ctx, "host-copy")
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("no base yet: %v", err)
	}
	old, oldRoute := add("host-copy", 0, "")
	used := box(t, d, "used", old.Top)
	newer, newRoute := add("host-copy", 1, old.Top)
	if whole, since, err := d.Grown(ctx, newer.Top); whole != 10 || since != 11 || err != nil {
		t.Errorf("grown from %d by %d, %v", whole, since, err)
	}
	if whole, since, err := d.Grown(ctx, old.Top); whole != 10 || since != 0 || err != nil {
		t.Errorf("grown from %d by %d, %v", whole, since, err)
	}
	newer.Print = "q"
	ok(t, d.SetBasePrint(ctx, newer.ID, newer.Print))
	if err := d.SetBasePrint(ctx, string(newSnap(t)), "q"); !fault.Is(err, fault.NotFound) {
		t.Errorf("an unknown base got a fingerprint: %v", err)
	}
	once, onceRoute := add("", 2, "")
	if got := must(d.Base(ctx, "host-copy"))(t); got != newer {
		t.Errorf("got %+v, want %+v", got, newer)
	}
	if _, err := d.Base(ctx, ""); !fault.Is(err, fault.NotFound) {
		t.Errorf("a base without a key was found: %v", err)
	}
	tar := box(t, d, "tar", once.Top)
	if dead := must(d.Unreferenced(ctx, ""))(t); len(dead.Snapshots)+len(dead.Layers) != 0 {
		t.Errorf("unreferenced %+v", dead)
	}
	if unused := must(d.DeleteSandbox(ctx, tar.ID))(t); !slices.Equal(unused, []timeline.LayerID{onceRoute.Layer}) {
		t.Errorf("unused %v", unused)
	}
	if unused := must(d.DeleteSandbox(ctx, used.ID))(t); len(unused) > 0 {
		t.Errorf("bases that will be found again are unused: %v", unused)
	}
	if got := stack(t, d, newer.Top); !slices.Equal(got, []timeline.LayerID{newRoute.Layer, oldRoute.Layer}) {
		t.Errorf("stack %v", got)
	}
	whole, _ := add("host-copy", 3, "") // supersedes both
	if dead := must(d.Unreferenced(ctx, ""))(t); len(dead.Snapshots) != 2 || len(dead.Layers) != 2 {
		t.Errorf("unreferenced %+v", dead)
	}
	if unused := must(d.DropUnreferenced(ctx, ""))(t); len(unused) != 2 {
		t.Errorf("unused %v", unused)
	}
	if got := must(d.Base(ctx, "host-copy"))(t); got != whole {
		t.Errorf("got %+v", got)
	}
}

func TestLoseLayer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := open(t)
	rec := box(t, d, "a", "")
	a, b, c := snap(t, d, &rec, "a"), snap(t, d, &rec, "b"), snap(t, d, &rec, "c")
	ok(t, d.UpdateSandbox(ctx, rec.ID, func(r *Sandbox) error { r.MountTop = c.Top; return nil }))
	merged := timeline.Route{Top: c.Top, Below: a.Top, Layer: newLayer(t), Merged: true}
	ok(t, d.AddRoute(ctx, merged))
	ok(t, d.SetTag(ctx, rec.ID, "t", c.Top))
	fork := box(t, d, "fork", c.Top)
	calm := box(t, d, "calm", a.Top)
	ok(t, d.MarkFinalized(ctx, a.Layer, "", "", 1))

	if moved := must(d.LoseLayer(ctx, merged.Layer))(t); len(moved) > 0 {
		t.Errorf("a merged layer moved %v", moved)
	}
	moved := must(d.LoseLayer(ctx, b.Layer))(t)
	if len(moved) != 2 || moved[0].Head != a.Top || moved[1].Head != a.Top {
		t.Errorf("moved %+v", moved)
	}
	for _, name := range []string{"a", "fork"} {
		got := must(d.Sandbox(ctx, name))(t)
		if got.Head != a.Top || got.MountTop != a.Top || got.Gen != 2 || len(got.Notices) != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := must(d.Sandbox(ctx, "calm"))(t); got.Head != calm.Head || got.Gen != 1 {
		t.Errorf("calm: %+v", got)
	}
	h := must(d.History(ctx, fork.ID))(t)
	if h.Head != a.Top || len(h.Snapshots) != 2 {
		t.Errorf("history %+v", h)
	}
	must(d.DropUnreferenced(ctx, ""))(t)
	if ls := must(d.Layers(ctx))(t); len(ls) != 1 || ls[0].ID != a.Layer {
		t.Errorf("layers %+v", ls)
	}

	// The loss of a base takes everything with it: the records stay, with a notice.
	s := timeline.Snapshot{ID: newSnap(t), Cause: timeline.CauseImport, Created: epoch}
	base := timeline.Route{Top: s.ID, Layer: newLayer(t)}
	ok(t, d.AddBase(ctx, Base{ID: "b", Key: "k", Top: s.ID, Created: epoch}, s, base))
	box(t, d, "doomed", s.ID)
	must(d.LoseLayer(ctx, base.Layer))(t)
	got := must(d.Sandbox(ctx, "doomed"))(t)
	if len(got.Notices) != 1 || !got.Lost {
		t.Errorf("doomed: %+v", got)
	}
	if _, err := must(d.Lineage(ctx, got.Head))(t).Stack(got.Head); !fault.Is(err, fault.Corrupt) {
		t.Errorf("its stack: %v", err)
	}
	must(d.DeleteSandbox(ctx, got.ID))(t)
}

func TestDatabase_ConcurrentUse(t *testing.T) {
	t.Parallel()
	d := open(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rec := box(t, d, fmt.Sprint("box-", i), "")
			for range 20 {
				snap(t, d, &rec, "x")
				if _, err := d.History(t.Context(), rec.ID); err != nil {
					t.Error(err)
				}
			}
			h, err := d.History(t.Context(), rec.ID)
			if err != nil || len(h.Snapshots) != 21 || h.Head != rec.Head {
				t.Errorf("%d snapshots, head %s, %v", len(h.Snapshots), h.Head, err)
			}
		})
	}
	wg.Wait()
}

// TestReaders_DoNotBlockEachOther holds every reading connection while each of them prepares a statement.
func TestReaders_DoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	d := open(t)
	var inside, done sync.WaitGroup
	inside.Add(maxReaders)
	for range maxReaders {
		done.Go(func() {
			err := d.view(t.Context(), func(v *view) {
				inside.Done()
				inside.Wait()
				v.each("SELECT gen FROM sandboxes WHERE gen=?", func(scanner) error { return nil }, 7)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
}

func TestAfterClose(t *testing.T) {
	t.Parallel()
	d := must(Open(t.Context(), filepath.Join(t.TempDir(), "meta.db")))(t)
	box(t, d, "a", "")
	must(d.Sandboxes(t.Context()))(t)
	ok(t, d.Close())
	ok(t, d.Close())
	if _, err := d.Sandboxes(t.Context()); err == nil {
		t.Error("a closed database was read")
	}
	if err := d.SetSetting(t.Context(), "a", "b"); err == nil {
		t.Error("a closed database was written")
	}
}

// TestCancelledReads checks that canceled reads leave the connections usable.
func TestCancelledReads(t *testing.T) {
	t.Parallel()
	d := open(t)
	rec := chain(t, d, 300, false)
	for i := range 400 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Microsecond)
		if _, err := d.History(ctx, rec.ID); err != nil && !fault.Is(err, fault.Timeout) && !fault.Is(err, fault.Cancelled) {
			t.Errorf("%v (%s)", err, fault.KindOf(err))
		}
		cancel()
	}
	if h := must(d.History(t.Context(), rec.ID))(t); len(h.Snapshots) != 301 {
		t.Errorf("%d snapshots", len(h.Snapshots))
	}
}

// TestTakeOver checks that snapshots that a sandbox takes over are in its history, and that its HEAD at earlier times
// is unchanged.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	ctx, d := t.Context(), open(t)
	a := box(t, d, "a", "")
	snap(t, d, &a, "one")
	one := a.Head
	fork := box(t, d, "fork", one)
	first := fork.Head
	ok(t, d.UpdateSandbox(ctx, a.ID, func(r *Sandbox) error { r.Head = one; return nil }))
	snap(t, d, &fork, "winner")
	winner := fork.Head
	snap(t, d, &fork, "test")

	ok(t, d.TakeOver(ctx, a.ID, winner))
	h := must(d.History(ctx, a.ID))(t)
	for _, id := range []timeline.SnapshotID{first, winner} {
		if s := h.Snapshots[id]; s.Sandbox != a.ID {
			t.Errorf("%s: %+v", id, s)
		}
		if at, _ := h.At(h.Snapshots[id].Created); at == id {
			t.Errorf("HEAD is reported to have been at %s", id)
		}
	}
	if _, there := h.Snapshots[fork.Head]; there || h.Head != one {
		t.Errorf("%+v", h)
	}
	if h := must(d.History(ctx, fork.ID))(t); len(h.Snapshots) != 5 || h.Head != fork.Head {
		t.Errorf("the other sandbox has %d snapshots", len(h.Snapshots))
	}
	must(d.DeleteSandbox(ctx, fork.ID))(t)
	if h := must(d.History(ctx, a.ID))(t); len(h.Snapshots) != 4 {
		t.Errorf("without the other sandbox, %d snapshots are left", len(h.Snapshots))
	}
	if err := d.TakeOver(ctx, a.ID, "ffffffffffff"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	if err := d.TakeOver(ctx, fork.ID, winner); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
}
