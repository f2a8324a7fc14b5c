package daemon

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// tokenStore implements auth.Store with the database.
type tokenStore struct{ db *meta.DB }

// AddToken implements auth.Store.
func (s tokenStore) AddToken(ctx context.Context, t auth.Token) error {
	return s.db.AddToken(ctx, meta.Token{ID: t.ID, Name: t.Name, Scope: t.Scope.String(), Sandboxes: t.Sandboxes,
		Created: t.Created, Expires: t.Expires, Used: t.Used, Hash: t.Hash[:]})
}

// Token implements auth.Store.
func (s tokenStore) Token(ctx context.Context, id string) (auth.Token, error) {
	rec, err := s.db.Token(ctx, id)
	if err != nil {
		return auth.Token{}, err
	}
	return tokenOf(rec)
}

// Tokens implements auth.Store.
func (s tokenStore) Tokens(ctx context.Context) ([]auth.Token, error) {
	recs, err := s.db.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]auth.Token, 0, len(recs))
	for _, rec := range recs {
		t, err := tokenOf(rec)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// RemoveToken implements auth.Store.
func (s tokenStore) RemoveToken(ctx context.Context, id string) error {
	return s.db.RemoveToken(ctx, id)
}

// TokenUsed implements auth.Store.
func (s tokenStore) TokenUsed(ctx context.Context, id string, at time.Time) error {
	return s.db.TokenUsed(ctx, id, at)
}

// WidenToken implements auth.Store.
func (s tokenStore) WidenToken(ctx context.Context, id string, sandboxes []string) error {
	return s.db.WidenToken(ctx, id, sandboxes)
}

// tokenOf converts a record. An invalid record is Corrupt.
func tokenOf(rec meta.Token) (auth.Token, error) {
	t := auth.Token{ID: rec.ID, Name: rec.Name, Sandboxes: rec.Sandboxes, Created: rec.Created, Expires: rec.Expires,
		Used: rec.Used}
	scope, err := auth.ParseScope(rec.Scope)
	if err != nil || len(rec.Hash) != len(t.Hash) {
		return auth.Token{}, fault.New(fault.Corrupt, "invalid record of token %s", rec.ID).
			WithHint("remove it: coppice token rm %s", rec.ID)
	}
	t.Scope = scope
	copy(t.Hash[:], rec.Hash)
	return t, nil
}

// newTokens returns the tokens in the engine's database, and the configured one.
func newTokens(eng backend, configured *auth.Configured) *auth.Tokens {
	return &auth.Tokens{Store: configured, Find: func(ctx context.Context, name string) (string, error) {
		sb, err := eng.Sandbox(ctx, name)
		return sb.ID, err
	}}
}
