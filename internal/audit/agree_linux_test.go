//go:build linux

package audit

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

type fullStore struct {
	Store
	set map[string]string
}

func (fullStore) Intents(context.Context) ([]meta.Intent, error) {
	return nil, fault.New(fault.NoSpace, "the disk is full")
}
func (s fullStore) SetSetting(_ context.Context, k, v string) error { s.set[k] = v; return nil }

type noCommands struct{ Commands }

func (noCommands) Open() []OpenCommand { return nil }

// TestAgree_RecordsNothingAfterFailedReconcile checks that records that could not be compared at the start of the
// daemon are compared at the next start.
func TestAgree_RecordsNothingAfterFailedReconcile(t *testing.T) {
	l, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := fullStore{set: map[string]string{}}
	b := NewBook(BookConfig{Ledger: l, Store: s, Commands: noCommands{}, Logger: slog.New(slog.DiscardHandler)})
	if _, err := b.Append(t.Context(), ledger.Draft{Sandbox: format.Host, Name: "host", Observer: format.ByDaemon,
		Body: &format.Lost{Count: 1, Reason: "x"}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconcile(t.Context()); !fault.Is(err, fault.NoSpace) {
		t.Fatal(err)
	}
	if err := b.Agree(t.Context()); err != nil { // as Engine.Close does
		t.Fatal(err)
	}
	if len(s.set) != 0 {
		t.Errorf("%q is stored although nothing was compared", s.set)
	}
}
