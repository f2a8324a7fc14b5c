package daemon

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHome_RegainsAccess sets the modes in a home that a process of the same user can set by path, such as a command
// in a locked workspace.
func TestHome_RegainsAccess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/home"
	h, err := openHome(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	const box = "sandboxes/0123456789ab"
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{box + "/journal", box + "/live/1/root", "memory/packs", "ledger",
		"layers/0123456789abcdef/fs"} {
		if err := os.MkdirAll(at(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"coppice.db", "seal.key", "ledger/key", box + "/index.0"} {
		if err := os.WriteFile(at(f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set := []struct {
		name   string
		at, to fs.FileMode
	}{ // what is below a directory comes first
		{box + "/live/1/root", 0, 0}, {"layers/0123456789abcdef/fs", 0o555, 0o555}, // contents of sandboxes
		{box + "/journal", 0, 0o700}, {box + "/index.0", 0o400, 0o600}, {box, 0o500, 0o700}, {"sandboxes", 0, 0o700},
		{"memory/packs", 0, 0o700}, {"memory", 0, 0o700}, {"ledger/key", 0o640, 0o600}, {"ledger", 0o600, 0o700},
		{"seal.key", 0o644, 0o600}, {"coppice.db", 0, 0o600}, {"lock", 0, 0o600}, {"format", 0, 0o600}, {"", 0o755, 0o700},
	}
	for _, s := range set {
		if err := os.Chmod(at(s.name), s.at); err != nil {
			t.Fatal(err)
		}
	}
	for again := range 2 {
		h, err = openHome(t.Context(), dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range set {
			if st, err := os.Lstat(at(s.name)); err != nil || st.Mode().Perm() != s.to {
				t.Errorf("%q: %v, %v", s.name, st, err)
			}
		}
		var out bytes.Buffer
		h.regained.tell(slog.New(slog.NewTextHandler(&out, nil)))
		h.Close()
		log := out.String()
		if again == 1 {
			if log != "" {
				t.Errorf("again: %s", log)
			}
			continue
		}
		if strings.Count(log, "level=ERROR") != 2 || !strings.Contains(log, at("seal.key")+" mode=-rw-r--r--") ||
			!strings.Contains(log, at("ledger/key")+" mode=-rw-r-----") || !strings.Contains(log, "level=WARN") ||
			!strings.Contains(log, "path="+at(box+"/journal")) {
			t.Errorf("%s", log)
		}
	}
}
