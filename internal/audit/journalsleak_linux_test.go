//go:build linux

package audit

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

type noSandboxes struct{ Store }

func (noSandboxes) Sandbox(context.Context, string) (meta.Sandbox, error) {
	return meta.Sandbox{}, fault.New(fault.NotFound, "removed")
}

// TestWatch_ForgetsRemovedSandbox checks that the state of a removed sandbox is dropped when the last watcher of its
// journal returns.
func TestWatch_ForgetsRemovedSandbox(t *testing.T) {
	dir := t.TempDir()
	j := NewJournals(JournalsConfig{
		Book: NewBook(BookConfig{Store: noSandboxes{}, Logger: slog.New(slog.DiscardHandler), Now: time.Now}),
		Place: func(timeline.SandboxID) journal.Place {
			return journal.Place{Dir: filepath.Join(dir, "journal"), Key: make([]byte, 32), FS: vfs.OS()}
		},
		Cursor: func(timeline.SandboxID) string { return filepath.Join(dir, "journal.told") },
	})
	j.Forget("0123456789ab") // as takeAway does
	gone := make(chan struct{})
	close(gone)
	j.Watch(t.Context(), "0123456789ab", gone, true)
	if n := len(j.all); n != 0 {
		t.Errorf("the state of %d sandboxes is left", n)
	}
}
