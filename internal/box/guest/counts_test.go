//go:build linux && (amd64 || arm64)

package guest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// settings returns a directory with files as in /proc/sys, and a descriptor of it.
func settings(t *testing.T, files map[string]string) (dir string, fd int) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return dir, fd
}

func TestCounts_AreAnEighthOfHostUpToLimit(t *testing.T) {
	t.Parallel()
	dir, fd := settings(t, map[string]string{
		"sys/fs/inotify/max_user_instances": "128\n", "sys/user/max_inotify_instances": "",
		"sys/fs/inotify/max_user_watches": "99999999\n", "sys/user/max_inotify_watches": "",
		"sys/user/max_user_namespaces": "", "sys/user/max_net_namespaces": "",
	})
	if weak, err := boundCounts(fd); err != nil || weak != nil {
		t.Fatalf("%v, %v", weak, err)
	}
	for name, want := range map[string]string{
		"max_inotify_instances": "16", "max_inotify_watches": "65536", "max_user_namespaces": "0", "max_net_namespaces": "8",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, "sys/user", name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, want %q: %v", name, got, want, err)
		}
	}
}

func TestCounts_FailStartOnUnknownError(t *testing.T) {
	t.Parallel()
	_, fd := settings(t, map[string]string{"sys/user/max_user_namespaces/d": ""})
	if weak, err := boundCounts(fd); err == nil {
		t.Errorf("no error, and weak is %v", weak)
	}
	_, fd = settings(t, map[string]string{"sys/fs/inotify/max_user_instances": "many"})
	if weak, err := boundCounts(fd); err == nil {
		t.Errorf("no error, and weak is %v", weak)
	}
}
