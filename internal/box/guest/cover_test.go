//go:build linux && (amd64 || arm64)

package guest

import (
	"os"
	"path/filepath"
	"testing"
)

// A mount over a file fails with ENOENT where the file was removed; no other ENOENT means
// that it may be left out.
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
		t.Errorf("a file that is there: %v, %v", gone, err)
	}
	if err := os.Link(name, name+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if gone, err := removed(f); !gone || err != nil {
		t.Errorf("a file that was removed and has another name: %v, %v", gone, err)
	}
}
