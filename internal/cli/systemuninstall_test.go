package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestRemoveTrees_CanBeRepeated(t *testing.T) {
	t.Parallel()
	home := filepath.Join(t.TempDir(), "home")
	for _, dir := range []string{home, filepath.Join(home, "a"), filepath.Join(home, "z")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"format", "a/f", "b", "z/f"} {
		if err := os.WriteFile(filepath.Join(home, name), []byte("coppice home 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := removeTrees(ctx, home); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
	if _, err := homeDir(home); err != nil {
		t.Errorf("an interrupted removal cannot be repeated: %v", err)
	}
	if _, err := removeTrees(t.Context(), home); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(home); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the home is still there: %v", err)
	}
}
