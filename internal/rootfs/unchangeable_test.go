//go:build linux

package rootfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// mappedByMode simulates the ID maps of an unprivileged user: g+w marks a group that is not mapped, o+w an owner.
func mappedByMode(st *unix.Stat_t) (uid, gid bool) { return st.Mode&0o002 == 0, st.Mode&0o020 == 0 }

// tree creates files with modes in a new directory of mode 755.
func tree(t *testing.T, modes map[string]os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range modes {
		p := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		if err == nil {
			err = os.WriteFile(p, nil, 0o600)
		}
		if err == nil {
			err = os.Chmod(p, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFindUnchangeable_CountsTheNearestFirst(t *testing.T) {
	dir := tree(t, map[string]os.FileMode{
		"a/deep": 0o660, "b": 0o644, "c": 0o660, "other": 0o662, "store/layer": 0o660,
	})
	if err := os.Symlink("/", filepath.Join(dir, "link")); err != nil { // mode 777: another owner
		t.Fatal(err)
	}
	got, err := findUnchangeable(t.Context(), dir, []string{filepath.Join(dir, "store")}, 100, mappedByMode)
	want := Unchangeable{First: filepath.Join(dir, "c"), Count: 3, Grouped: 2}
	if err != nil || got != want {
		t.Errorf("found %+v, %v; want %+v", got, err, want)
	}
	if err := os.Chmod(dir, 0o775); err != nil {
		t.Fatal(err)
	}
	if got, err = findUnchangeable(t.Context(), dir, nil, 100, mappedByMode); err != nil || got.First != dir {
		t.Errorf("found %+v, %v; want the directory itself first", got, err)
	}
}

func TestFindUnchangeable_IsBounded(t *testing.T) {
	dir := tree(t, map[string]os.FileMode{"a/x": 0o660, "a/y": 0o660, "a/z": 0o660, "b": 0o660})
	got, err := findUnchangeable(t.Context(), dir, nil, 3, mappedByMode)
	want := Unchangeable{First: filepath.Join(dir, "b"), Count: 2, Grouped: 2, More: true}
	if err != nil || got != want {
		t.Errorf("found %+v, %v; want %+v", got, err, want)
	}
}
