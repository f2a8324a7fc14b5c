//go:build linux && (amd64 || arm64)

package guest

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoved exists because a mount over a file fails with ENOENT if the file was removed. The mount must not be left
// out for any other ENOENT.
func TestRemoved(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if gone, err := removed(f); gone || err != nil {
		t.Errorf("an existing file: %v, %v", gone, err)
	}
	if err := os.Link(name, name+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if gone, err := removed(f); !gone || err != nil {
		t.Errorf("a removed name of a file that has another name: %v, %v", gone, err)
	}
}
