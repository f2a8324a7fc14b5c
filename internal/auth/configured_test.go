package auth

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

func TestConfigured_IsValidOnlyWhileConfigured(t *testing.T) {
	t.Parallel()
	ctx, now := t.Context(), time.Unix(1000, 0)
	stored := &shelf{}
	c := &Configured{Store: stored}
	var dropped []string
	tokens := &Tokens{Store: c, Revoked: []func(string){func(id string) { dropped = append(dropped, id) }}}
	first, id := NewSecret()
	second, _ := NewSecret()

	if ended, err := c.Set(ctx, first, now); ended != "" || err != nil {
		t.Fatalf("%q, %v", ended, err)
	}
	tok, err := tokens.Verify(ctx, first)
	if err != nil || tok.Scope != Admin || tok.Sandboxes != nil || tok.ID != id || !tok.Expires.IsZero() {
		t.Errorf("%+v, %v", tok, err)
	}
	if _, err := tokens.Verify(ctx, second); !fault.Is(err, fault.Denied) {
		t.Errorf("another secret: %v", err)
	}
	if err := tokens.note(ctx, tok); err != nil {
		t.Error(err)
	}
	list, err := tokens.List(ctx)
	if err != nil || len(list) != 1 || list[0].Name != ConfiguredName || list[0].LastUsed == nil {
		t.Errorf("%+v, %v", list, err)
	}
	if err := tokens.Revoke(ctx, id); !fault.Is(err, fault.Denied) || len(dropped) > 0 {
		t.Errorf("revoke: %v, dropped %q", err, dropped)
	}
	if len(stored.all) > 0 || stored.writes > 0 {
		t.Errorf("stored: %+v", stored.all)
	}

	if ended, err := c.Set(ctx, first, now); ended != "" || err != nil {
		t.Errorf("the same again ends %q, %v", ended, err)
	}
	if ended, err := c.Set(ctx, second, now); ended != id || err != nil {
		t.Errorf("rotation ends %q, %v", ended, err)
	}
	if _, err := tokens.Verify(ctx, first); !fault.Is(err, fault.Denied) {
		t.Errorf("after rotation: %v", err)
	}
	if _, err := tokens.Verify(ctx, second); err != nil {
		t.Error(err)
	}
	if ended, err := c.Set(ctx, "", now); ended == "" || err != nil {
		t.Errorf("removal ends %q, %v", ended, err)
	}
	if _, err := tokens.Verify(ctx, second); !fault.Is(err, fault.Denied) {
		t.Errorf("after removal: %v", err)
	}
}

func TestConfigured_RefusesOthers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := &Configured{Store: &shelf{}}
	tokens := &Tokens{Store: c}
	res, err := tokens.Create(ctx, wire.TokenRequest{Name: "reader", Scope: "read"})
	if err != nil {
		t.Fatal(err)
	}
	good, id := NewSecret()
	for _, bad := range []string{res.Secret, good[:40], good + "x", "password", strings.Replace(good, "_", "-", 1)} {
		if _, err := c.Set(ctx, good, time.Now()); err != nil {
			t.Fatal(err)
		}
		ended, err := c.Set(ctx, bad, time.Now())
		if ended != id || err == nil || strings.Contains(err.Error()+fault.HintOf(err), bad) {
			t.Errorf("%.12s: ends %q, %v", bad, ended, err)
		}
		if _, err := tokens.Verify(ctx, good); err == nil {
			t.Error("the token before is still valid")
		}
	}
	if tok, err := tokens.Verify(ctx, res.Secret); err != nil || tok.Scope != Read {
		t.Errorf("the stored token: %+v, %v", tok, err)
	}
	if _, err := c.Set(ctx, good, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := c.AddToken(ctx, Token{ID: id}); !fault.Is(err, fault.Exists) {
		t.Errorf("a new token with the same ID: %v", err)
	}
	all, err := c.Tokens(ctx)
	if err != nil || !slices.ContainsFunc(all, func(x Token) bool { return x.ID == id }) || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := tokens.Revoke(ctx, res.ID); err != nil {
		t.Error(err)
	}
}
