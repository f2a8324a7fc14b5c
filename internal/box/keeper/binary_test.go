//go:build linux && (amd64 || arm64)

package keeper

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestShown_RefusesOverwrittenProgram checks that an image cannot be resumed with an init file that was overwritten in
// place, and can be resumed if another file replaced it.
func TestShown_RefusesOverwrittenProgram(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "init")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	var s shown
	if err := s.set("init", name, ownProgram); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	write("another")
	f, err := s.open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "one" {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.set("init", name, ownProgram); err != nil {
		t.Fatal(err)
	}
	write("written over")
	if f, err := s.open("a"); !fault.Is(err, fault.Conflict) {
		f.Close()
		t.Errorf("an overwritten init was opened: %v", err)
	}
}
