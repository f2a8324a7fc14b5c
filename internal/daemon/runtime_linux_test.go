package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

func TestFindRuntime(t *testing.T) {
	t.Parallel()
	find := func(name, search string) (string, error) { return findRuntime(name, search, false) }
	if _, err := find("no-such-runtime", "/usr/bin"); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("missing: %v", err)
	}
	if _, err := find("/no/such/runtime", ""); !fault.Is(err, fault.Unsupported) ||
		strings.Contains(fault.HintOf(err), "apt-get") {
		t.Errorf("missing: %v, %s", err, fault.HintOf(err))
	}
	// A link to crun, which starts a virtual machine under this name only.
	for _, name := range []string{"krun", "/usr/bin/krun"} {
		if _, err := find(name, "/usr/bin"); !fault.Is(err, fault.Unsupported) ||
			!strings.Contains(err.Error(), "virtual machine") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := find("env", "relative:/usr/bin"); err != nil || !filepath.IsAbs(got) {
		t.Errorf("env: %q, %v", got, err)
	}
	if _, err := find("/usr", ""); !fault.Is(err, fault.Invalid) {
		t.Errorf("a directory: %v", err)
	}
	plain := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := find(plain, ""); !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
		t.Errorf("not executable: %v", err)
	}
	// A directory that others can write: they could replace the program.
	dir := t.TempDir()
	file := filepath.Join(dir, "runtime")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := find(file, ""); !fault.Is(err, fault.Denied) {
		t.Errorf("in a directory of all users: %v", err)
	}
}

func TestWritable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		uid   uint32
		mode  uint32
		self  int
		blind bool
		ok    bool
	}{
		{0, unix.S_IFREG | 0o755, 0, false, true}, {0, unix.S_IFREG | 0o755, 1000, false, true},
		{1000, unix.S_IFREG | 0o755, 1000, false, true},
		{1001, unix.S_IFREG | 0o755, 1000, false, false}, {1001, unix.S_IFREG | 0o755, 0, false, false},
		{unmapped, unix.S_IFREG | 0o755, 0, true, true},      // root's, in the user namespace of an ordinary user
		{unmapped, unix.S_IFREG | 0o755, 0, false, false},    // an id that is mapped to no user, seen by root
		{unmapped, unix.S_IFREG | 0o755, 1000, false, false}, // likewise
		{0, unix.S_IFREG | 0o775, 0, false, false}, {0, unix.S_IFREG | 0o757, 0, false, false},
		{0, unix.S_IFDIR | 0o777, 0, false, false},
		{0, unix.S_IFDIR | unix.S_ISVTX | 0o777, 0, false, true}, // as /tmp
		{0, unix.S_IFREG | unix.S_ISVTX | 0o777, 0, false, false},
	} {
		if why := writable(unix.Stat_t{Uid: c.uid, Mode: c.mode}, c.self, c.blind); (why == "") != c.ok {
			t.Errorf("%+v: %q", c, why)
		}
	}
}
