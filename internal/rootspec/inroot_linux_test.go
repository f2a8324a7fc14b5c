package rootspec_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/rootspec"
)

func TestOpenInRoot_SurvivesRenames(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, d := range []string{"etc", "run", "storm"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"etc/link": "../run/../run/file", "etc/out": "/../../run/file"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "run/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	var storm sync.WaitGroup
	storm.Go(func() {
		a, b := filepath.Join(root, "storm/a"), filepath.Join(root, "storm/b")
		_ = os.WriteFile(a, nil, 0o644)
		for {
			select {
			case <-end:
				return
			default:
				_, _ = os.Rename(a, b), os.Rename(b, a)
			}
		}
	})
	defer storm.Wait()
	defer close(end)
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	for range 20_000 {
		for _, name := range []string{"etc/link", "etc/out"} {
			fd, err := rootspec.OpenInRoot(dir, name, unix.O_PATH)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			unix.Close(fd)
		}
	}
}
