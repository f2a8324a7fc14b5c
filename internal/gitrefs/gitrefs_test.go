//go:build linux

package gitrefs

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// fakeStore has one sandbox, and stores intents.
type fakeStore struct {
	Store // other methods panic

	intents []meta.Intent
	begun   func() // called when an intent was stored, before BeginIntent returns
}

func (s *fakeStore) Name(context.Context, timeline.SandboxID) (string, error) { return "a", nil }

func (s *fakeStore) BeginIntent(_ context.Context, kind string, _ any) (int64, error) {
	s.intents = append(s.intents, meta.Intent{ID: 1, Kind: kind, Body: []byte("{}")})
	s.begun()
	return 1, nil
}

func (s *fakeStore) EndIntent(context.Context, int64) error { s.intents = nil; return nil }

func (s *fakeStore) Intents(context.Context) ([]meta.Intent, error) { return s.intents, nil }

// TestLeaving_SweepKeepsIntent checks that a sweep during the removal of a sandbox keeps the intent of the
// removal. Without it, the references of the sandbox would stay if the daemon were killed afterwards.
func TestLeaving_SweepKeepsIntent(t *testing.T) {
	t.Parallel()
	store, swept := &fakeStore{}, make(chan error, 1)
	refs := New(Config{Store: store, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string) (*repo.Repo, error) { return nil, errors.New("not reached") }})
	store.begun = func() {
		go func() { swept <- refs.Sweep(t.Context()) }()
		select {
		case err := <-swept: // the sweep did not wait
			swept <- err
		case <-time.After(50 * time.Millisecond):
		}
	}
	rec := meta.Sandbox{ID: "0123456789ab", Config: meta.Config{Repo: &meta.Repo{}}}
	if _, err := refs.Leaving(t.Context(), &rec); err != nil {
		t.Fatal(err)
	}
	if err := <-swept; err != nil || len(store.intents) != 1 {
		t.Errorf("%v, and %d intents are left", err, len(store.intents))
	}
}
