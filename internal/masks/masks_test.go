//go:build linux

package masks

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/stacks"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// hides implements Policies with the same hidden paths for every sandbox.
type hides struct {
	covered policies.Covered
	err     error
}

func (h hides) Hides(context.Context, *meta.Sandbox) (policies.Covered, error) {
	return h.covered, h.err
}

// two implements the records of snapshot b on snapshot a, each with a layer of its name.
type two struct{}

func (two) Lineage(context.Context, timeline.SnapshotID) (timeline.Lineage, error) {
	return timeline.Lineage{
		Parents: map[timeline.SnapshotID]timeline.SnapshotID{"b": "a", "a": ""},
		Routes: map[timeline.SnapshotID][]timeline.Route{
			"b": {{Layer: "b", Top: "b", Below: "a"}}, "a": {{Layer: "a", Top: "a"}},
		},
	}, nil
}

func (two) Ground(
	_ context.Context, id timeline.SnapshotID,
) (parent timeline.SnapshotID, routes []timeline.Route, err error) {
	if id == "b" {
		return "a", []timeline.Route{{Layer: "b", Top: "b", Below: "a"}}, nil
	}
	return "", []timeline.Route{{Layer: "a", Top: "a"}}, nil
}

func newMasks(t *testing.T, p Policies) (*Masks, string) {
	t.Helper()
	home := t.TempDir()
	return New(Config{
		Policies: p, Home: home, FS: vfs.OS(), Log: slog.New(slog.DiscardHandler),
		Stacks:  stacks.New(two{}, func(id timeline.LayerID) string { return "/layers/" + string(id) }),
		Discard: func(_ context.Context, dir string) error { return os.RemoveAll(dir) },
	}), home
}

func TestStack_WithoutAMaskIsTheLayers(t *testing.T) {
	t.Parallel()
	m, _ := newMasks(t, hides{})
	st, ids, err := m.Stack(t.Context(), &meta.Sandbox{ID: "0123456789ab"}, "b")
	if err != nil || st.Mask != "" || !slices.Equal(st.Layers, []string{"/layers/b", "/layers/a"}) || len(ids) != 2 {
		t.Errorf("%+v, %v, %v", st, ids, err)
	}
}

func TestStack_FailsOnDamagedPolicy(t *testing.T) {
	t.Parallel()
	m, _ := newMasks(t, hides{err: fault.New(fault.Corrupt, "the policy is damaged")})
	rec := meta.Sandbox{ID: "0123456789ab", Config: meta.Config{Host: true}}
	if st, _, err := m.Stack(t.Context(), &rec, "b"); !fault.Is(err, fault.Corrupt) {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestOf_ReadsMaskFileOfSandbox checks that the paths that the mask of a mounted sandbox hides stay hidden until it
// is mounted again, regardless of its current policy.
func TestOf_ReadsMaskFileOfSandbox(t *testing.T) {
	t.Parallel()
	m, home := newMasks(t, hides{})
	rec := meta.Sandbox{ID: "0123456789ab"}
	note := filepath.Join(home, "sandboxes", string(rec.ID), "mask")
	for _, dir := range []string{filepath.Dir(note), filepath.Join(home, "masks", "m")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	named := filepath.Join(home, "masks", "m")
	for text, want := range map[string]string{"m": named, "gone": "", "../masks/m": "", "": ""} {
		if err := os.WriteFile(note, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if dir, err := m.Of(t.Context(), &rec); err != nil || dir != want {
			t.Errorf("with the file %q: %q, %v; want %q", text, dir, err, want)
		}
		m.Forget(rec.ID)
	}
}

func TestSweep_KeepsMasksThatMayBeMounted(t *testing.T) {
	t.Parallel()
	m, home := newMasks(t, hides{})
	if err := m.Sweep(t.Context(), false); err != nil {
		t.Fatalf("without a directory: %v", err)
	}
	used, unused := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for _, dir := range []string{
		"sandboxes/0123456789ab", "masks/" + used + "/d", "masks/" + unused + "/d", "masks/.removed-X",
	} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	note := filepath.Join(home, "sandboxes", "0123456789ab", "mask")
	left := func() (names []string) {
		all, err := os.ReadDir(filepath.Join(home, "masks"))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range all {
			names = append(names, d.Name())
		}
		return names
	}
	if err := os.Mkdir(note, 0o700); err != nil { // cannot be read
		t.Fatal(err)
	}
	if err := m.Sweep(t.Context(), false); err != nil || len(left()) != 3 {
		t.Errorf("with an unreadable mask file, %q are left, %v", left(), err)
	}
	if err := os.Remove(note); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(note, []byte(used), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Sweep(t.Context(), false); err != nil || !slices.Equal(left(), []string{used}) {
		t.Errorf("%q are left, %v", left(), err)
	}
	if err := m.Sweep(t.Context(), true); err != nil || len(left()) != 0 {
		t.Errorf("after a reboot %q are left, %v", left(), err)
	}
}
