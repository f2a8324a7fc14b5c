//go:build linux

package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
)

func started(pid, parent int, args ...string) wire.Program {
	return wire.Program{PID: pid, Parent: parent, Args: args}
}

func TestSnapshotLabel_NamesStartedProgram(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx := t.Context()
	sb := h.onDir("box")
	h.run("box", "true")
	h.boxes.mu.Lock()
	var b *fakeBox
	for _, b = range h.boxes.boxes {
	}
	h.boxes.mu.Unlock()
	b.programs = []wire.Program{started(5, 0, "bash", "-lc", "npm ci"), started(6, 5, "node")}
	for _, want := range []string{"npm ci", "/b"} {
		name := map[string]string{"npm ci": "a", "/b": "b"}[want]
		if err := os.WriteFile(filepath.Join(b.root, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		res, err := h.Commit(ctx, sb.Name, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.Show(ctx, sb.Name, res.Head)
		if err != nil || got.Message != want {
			t.Errorf("%q, %v: want %q", got.Message, err, want)
		}
		b.programs = nil
	}
}
