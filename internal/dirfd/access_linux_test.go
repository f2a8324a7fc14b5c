package dirfd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestOwnAccess(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	mode := func(name string) fs.FileMode {
		st, err := os.Lstat(at(name))
		if err != nil {
			t.Fatal(err)
		}
		return st.Mode()
	}
	for _, dir := range []string{"a", "a/b"} {
		if err := os.Mkdir(at(dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"a/b/c", "target"} {
		if err := os.WriteFile(at(file), nil, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("target"), at("a/link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/b/c", "a/b", "a", "target"} {
		if err := os.Chmod(at(name), mode(name).Perm()&0o077); err != nil {
			t.Fatal(err)
		}
	}
	changed, err := OwnAccess(root, "a/b/c")
	if err != nil || !slices.Equal(changed, []string{at("a"), at("a/b"), at("a/b/c")}) {
		t.Errorf("%q, %v", changed, err)
	}
	for name, want := range map[string]fs.FileMode{"a": fs.ModeDir | 0o750, "a/b": fs.ModeDir | 0o750, "a/b/c": 0o640} {
		if got := mode(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, name := range []string{"a/b/c", "a/link", "a/link/x", "a/none", "a/none/x", "target/x"} {
		before := mode("target")
		if name == "target/x" {
			before = 0o640
		}
		changed, err := OwnAccess(root, name)
		if err != nil || mode("target") != before || name != "target/x" && len(changed) != 0 {
			t.Errorf("%s: %q, %v, the target is %v", name, changed, err, mode("target"))
		}
	}
	if err := errors.Join(os.Chmod(at("a/b/c"), 0), os.Symlink(root, root+".link")); err != nil {
		t.Fatal(err)
	}
	if changed, err := OwnAccess(root+".link", "a/b/c"); err != nil || len(changed) != 1 || mode("a/b/c") != 0o600 {
		t.Errorf("below a root that is a link: %q, %v", changed, err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(at("a/b"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at("a/b"), 0); err != nil {
			t.Fatal(err)
		}
		if changed, err := OwnAccess(root, "a/b/c"); err != nil || len(changed) != 0 || mode("a/b").Perm() != 0 {
			t.Errorf("another user's: %q, %v", changed, err)
		}
	}
}
