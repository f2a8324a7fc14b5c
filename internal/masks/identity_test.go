//go:build linux

package masks

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/stacks"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TestStack_ReplacesIDThatTheHostHasNow checks that a sandbox from the host does not see the host's machine ID if that
// was another one when the sandbox was made.
func TestStack_ReplacesIDThatTheHostHasNow(t *testing.T) {
	t.Parallel()
	m, _ := newMasks(t, hides{covered: policies.Covered{Hide: []string{"/usr"}}})
	m.config.Stacks = stacks.New(two{}, func(timeline.LayerID) string { return t.TempDir() })
	rec := meta.Sandbox{ID: "0123456789ab", Config: meta.Config{Host: true, MachineID: strings.Repeat("1", 32),
		Foreign: []string{strings.Repeat("f", 32)}}}
	ids, err := rootfs.MachineIDs(rootspec.Stack{Host: true})
	if err != nil {
		t.Fatal(err)
	}
	st, _, err := m.Stack(t.Context(), &rec, "b")
	if err != nil || (st.Identity == "") != (len(ids) == 0) { // a host without an ID has none to hide
		t.Fatalf("%+v, %v", st, err)
	}
	shown, err := rootfs.MachineIDs(st)
	if err != nil || len(ids) > 0 && !slices.Equal(shown, []string{rec.MachineID}) {
		t.Errorf("%q, %v", shown, err)
	}
}

// TestStack_HasIdentityOnTop checks where the identity layer of a sandbox is, that each sandbox with a stack has its
// own, and that a sweep keeps the one that may be mounted.
func TestStack_HasIdentityOnTop(t *testing.T) {
	t.Parallel()
	m, home := newMasks(t, hides{})
	layers := t.TempDir()
	m.config.Stacks = stacks.New(two{}, func(id timeline.LayerID) string { return filepath.Join(layers, string(id)) })
	foreign, first, second := strings.Repeat("f", 32), strings.Repeat("1", 32), strings.Repeat("2", 32)
	for _, dir := range []string{layers + "/a/etc", layers + "/b", home + "/sandboxes/0123456789ab"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(layers+"/a/etc/machine-id", []byte(foreign), 0o444); err != nil {
		t.Fatal(err)
	}
	rec := meta.Sandbox{ID: "0123456789ab", MountTop: "b"}
	if ids, err := m.MachineIDs(t.Context(), &rec, "b"); err != nil || !slices.Equal(ids, []string{foreign}) {
		t.Errorf("%q, %v", ids, err)
	}
	rec.MachineID, rec.Foreign = first, []string{foreign}
	st, ids, err := m.Stack(t.Context(), &rec, "b")
	if err != nil || len(ids) != 2 || len(st.Layers) != 3 || st.Identity == "" || st.Layers[0] != st.Identity {
		t.Fatalf("%+v, %v, %v", st, ids, err)
	}
	if text, err := os.ReadFile(st.Identity + "/etc/machine-id"); err != nil || string(text) != first {
		t.Errorf("%q, %v", text, err)
	}
	if ids, err := m.MachineIDs(t.Context(), &rec, "b"); err != nil || !slices.Equal(ids, []string{foreign}) {
		t.Errorf("with an identity: %q, %v", ids, err)
	}
	fork := rec
	fork.ID, fork.MachineID = "ba9876543210", second
	other, _, err := m.Stack(t.Context(), &fork, "b")
	if err != nil || other.Identity == "" || other.Identity == st.Identity {
		t.Errorf("%+v, %v", other, err)
	}
	rec.Foreign = []string{second} // the ID in the files is the sandbox's own
	m.Forget(rec.ID)
	if st, _, err := m.Stack(t.Context(), &rec, "b"); err != nil || st.Identity != "" || len(st.Layers) != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	rec.Foreign = []string{foreign}
	m.Forget(rec.ID)
	if _, err := m.ForMount(t.Context(), sandbox.New(rec.ID).TryLock("mounting it"), &rec); err != nil {
		t.Fatal(err)
	}
	if err := m.Sweep(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(home + "/masks/*")
	if err != nil || !slices.Equal(left, []string{st.Identity}) {
		t.Errorf("%q, %v", left, err)
	}
}

// TestRemoved_RemovesIdentity checks that the identity layer of a removed sandbox is removed, and that of another one
// with the same machine ID is not while it may be mounted. A layer that a reader needs again is made again.
func TestRemoved_RemovesIdentity(t *testing.T) {
	t.Parallel()
	m, home := newMasks(t, hides{})
	layers := t.TempDir()
	m.config.Stacks = stacks.New(two{}, func(id timeline.LayerID) string { return filepath.Join(layers, string(id)) })
	foreign := strings.Repeat("f", 32)
	for _, dir := range []string{layers + "/a/etc", layers + "/b", home + "/sandboxes/0123456789ab",
		home + "/sandboxes/ba9876543210"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(layers+"/a/etc/machine-id", []byte(foreign), 0o444); err != nil {
		t.Fatal(err)
	}
	one := meta.Sandbox{ID: "0123456789ab", MountTop: "b"}
	one.MachineID, one.Foreign = strings.Repeat("1", 32), []string{foreign}
	same := one
	same.ID = "ba9876543210"
	mount := func(rec *meta.Sandbox) {
		t.Helper()
		if _, err := m.ForMount(t.Context(), sandbox.New(rec.ID).TryLock("mounting it"), rec); err != nil {
			t.Fatal(err)
		}
	}
	left := func() int {
		t.Helper()
		all, err := os.ReadDir(home + "/masks")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	mount(&one)
	mount(&same)
	if err := m.Removed(t.Context(), &one); err != nil || left() != 1 {
		t.Errorf("mounted by another: %d layers, %v", left(), err)
	}
	if err := m.SweepIdentities(t.Context()); err != nil || left() != 1 {
		t.Errorf("mounted, after a sweep: %d layers, %v", left(), err)
	}
	m.made = map[string]string{} // as in the next daemon
	if err := os.RemoveAll(home + "/sandboxes/0123456789ab"); err != nil {
		t.Fatal(err)
	}
	if err := m.Removed(t.Context(), &same); err != nil || left() != 0 {
		t.Errorf("the last one: %d layers, %v", left(), err)
	}
	if err := os.RemoveAll(home + "/sandboxes/ba9876543210"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		st, _, err := m.Stack(t.Context(), &same, "b")
		if err != nil || left() != 1 {
			t.Errorf("%d layers, %v", left(), err)
		}
		if _, err := os.Stat(st.Identity + "/etc/machine-id"); err != nil {
			t.Error(err)
		}
		if err := m.SweepIdentities(t.Context()); err != nil || left() != 0 {
			t.Errorf("read only: %d layers, %v", left(), err)
		}
	}
}
