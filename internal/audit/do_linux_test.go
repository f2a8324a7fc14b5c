//go:build linux

package audit

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

type emptyStore struct {
	Store
	set map[string]string
}

func (emptyStore) Intents(context.Context) ([]meta.Intent, error)    { return nil, nil }
func (emptyStore) Setting(context.Context, string) (string, error)   { return "", nil }
func (s emptyStore) SetSetting(_ context.Context, k, v string) error { s.set[k] = v; return nil }

// TestDo_LeavesPanicToReconcile checks that records whose operation panicked are compared at the next start: net/http
// recovers the panic, and the daemon continues to run.
func TestDo_LeavesPanicToReconcile(t *testing.T) {
	l, _, err := ledger.Open(filepath.Join(t.TempDir(), "ledger"), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := emptyStore{set: map[string]string{}}
	b := NewBook(BookConfig{Ledger: l, Store: s, Commands: noCommands{}, Logger: slog.New(slog.DiscardHandler), Now: time.Now})
	if err := b.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	clear(s.set)
	func() {
		defer func() { _ = recover() }()
		_ = b.Do(t.Context(), []ledger.Draft{{Sandbox: format.Host, Name: "host", Observer: format.ByDaemon,
			Body: &format.Lost{Count: 1, Reason: "x"}}}, func(context.Context) error { panic("bug") })
	}()
	if err := b.Agree(t.Context()); err != nil { // as Engine.Close does
		t.Fatal(err)
	}
	if len(s.set) != 0 {
		t.Errorf("%q is stored although the recorded operation did not happen", s.set)
	}
}
