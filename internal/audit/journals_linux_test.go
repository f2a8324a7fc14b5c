//go:build linux

package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// TestReadNetTold_AcceptsOldPositions covers the position in the journal as an earlier build stored it.
func TestReadNetTold_AcceptsOldPositions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	book, _, err := ledger.Open(filepath.Join(dir, "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	at := journal.Place{Dir: filepath.Join(dir, "journal"), Key: make([]byte, 32), FS: vfs.OS()}
	if err := os.Mkdir(at.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := journal.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(wire.NetEvent{Kind: wire.NetDeny, Name: "one.example"}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	_, place, _, err := journal.From(at, journal.Cursor{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "journal.told")
	if err := vfs.WriteFile(vfs.OS(), file, fmt.Appendf(nil,
		`{"done":{"inode":%d,"at":%d,"sum":%q},"next":{"inode":0,"at":0,"sum":""},"seq":1000}`, place.Inode, place.At,
		place.Sum)); err != nil {
		t.Fatal(err)
	}
	j := NewJournals(JournalsConfig{
		Book:   NewBook(BookConfig{Ledger: book}),
		Place:  func(timeline.SandboxID) journal.Place { return at },
		Cursor: func(timeline.SandboxID) string { return file },
	})
	got, err := j.read(t.Context(), "0123456789ab")
	if err != nil || got.Cursor != place || len(got.Owed) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
