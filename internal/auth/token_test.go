package auth

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// shelf is a Store in memory.
type shelf struct {
	mu     sync.Mutex
	all    map[string]Token // guarded by mu
	writes int              // guarded by mu; of TokenUsed
	err    error            // of Token
}

func (s *shelf) AddToken(_ context.Context, t Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]Token{}
	}
	s.all[t.ID] = t
	return nil
}

func (s *shelf) Token(_ context.Context, id string) (Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.all[id]
	if s.err != nil {
		return Token{}, s.err
	}
	if !ok {
		return Token{}, fault.New(fault.NotFound, "no token")
	}
	return t, nil
}

func (s *shelf) Tokens(context.Context) (out []Token, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.all {
		out = append(out, t)
	}
	return out, nil
}

func (s *shelf) RemoveToken(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
	return nil
}

func (s *shelf) TokenUsed(_ context.Context, id string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.all[id]
	t.Used = at
	s.all[id] = t
	s.writes++
	return nil
}

func (s *shelf) WidenToken(context.Context, string, []string) error { return nil }

func find(_ context.Context, name string) (string, error) {
	if name == "none" {
		return "", fault.New(fault.NotFound, "no sandbox")
	}
	return "id-of-" + name, nil
}

func TestTokens_CreateAndVerify(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	store := &shelf{}
	tokens := &Tokens{Store: store, Find: find, Now: func() time.Time { return now }}
	ctx := t.Context()
	res, err := tokens.Create(ctx, wire.TokenRequest{Name: "ci", Scope: "read", Sandboxes: []string{"a"}, TTLMS: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := ParseSecret(res.Secret); err != nil || id != res.ID || len(res.Secret) != 56 {
		t.Errorf("%q: %q %v", res.Secret, id, err)
	}
	for id, tok := range store.all {
		if strings.Contains(id+tok.Name+string(tok.Hash[:]), res.Secret[13:]) {
			t.Error("the secret is stored")
		}
	}
	tok, err := tokens.Verify(ctx, res.Secret)
	if p := tok.Principal(); err != nil || p.Scope != Read || !slices.Equal(p.Sandboxes, []string{"id-of-a"}) ||
		p.TokenID != res.ID {
		t.Errorf("%+v %v", p, err)
	}
	other, err := tokens.Create(ctx, wire.TokenRequest{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	flipped := []byte(res.Secret)
	flipped[20] ^= 1
	for _, wrong := range []string{"", "x", res.Secret + "x", res.Secret[:55], string(flipped),
		strings.ToUpper(res.Secret),
		res.Secret[:13] + other.Secret[13:], "cpc_00000000_" + res.Secret[13:], res.Secret + "\n"} {
		if _, err := tokens.Verify(ctx, wrong); !fault.Is(err, fault.Denied) ||
			!strings.Contains(err.Error(), "invalid or was revoked") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	now = now.Add(time.Minute)
	if _, err := tokens.Verify(ctx, res.Secret); !fault.Is(err, fault.Denied) ||
		!strings.Contains(err.Error(), "expired") {
		t.Errorf("expired: %v", err)
	}
	gone := ""
	tokens.Revoked = []func(string){func(id string) { gone = id }}
	if err := tokens.Revoke(ctx, other.ID); err != nil || gone != other.ID {
		t.Errorf("revoke: %v, %q", err, gone)
	}
	if _, err := tokens.Verify(ctx, other.Secret); !fault.Is(err, fault.Denied) {
		t.Errorf("revoked: %v", err)
	}
}

func TestTokens_RejectInvalidRequests(t *testing.T) {
	t.Parallel()
	tokens := &Tokens{Store: &shelf{}, Find: find}
	for name, req := range map[string]wire.TokenRequest{
		"requires a name":        {},
		"the limit is 64":        {Name: strings.Repeat("x", 65)},
		"unprintable":            {Name: "a\x1b[2J"},
		"unknown scope \"root\"": {Name: "a", Scope: "root"},
		"lifetime -1 ms":         {Name: "a", TTLMS: -1},
		"lifetime 9":             {Name: "a", TTLMS: 9e18},
		"cannot have the scope":  {Name: "a", Scope: "admin", Sandboxes: []string{"a"}},
		"no sandbox":             {Name: "a", Sandboxes: []string{"a", "none"}},
		"unknown scope \"none":   {Name: "a", Scope: "none"},
	} {
		if _, err := tokens.Create(t.Context(), req); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if all, _ := tokens.List(t.Context()); len(all) != 0 {
		t.Errorf("stored tokens: %v", all)
	}
	if err := tokens.Revoke(t.Context(), "../../x"); !fault.Is(err, fault.Invalid) {
		t.Errorf("revoke: %v", err)
	}
}

func TestScopesAndPrincipals(t *testing.T) {
	t.Parallel()
	if Owner().Check(Admin, "") != nil || Owner().Check(Read, "a") != nil || !Owner().Sees("a") {
		t.Error("the owner lacks rights")
	}
	if From(t.Context()).Scope != 0 || From(With(t.Context(), Owner())).Scope != Admin {
		t.Error("the context has another principal")
	}
	for _, c := range []struct {
		p    Principal
		need Scope
		box  string
		want fault.Kind // "" is allowed
	}{
		{Principal{}, Read, "", fault.Denied},
		{Principal{}, Read, "a", fault.Denied},
		{Principal{Sandboxes: []string{"a"}}, Read, "a", fault.Denied},
		{Principal{Scope: Read}, Read, "", ""},
		{Principal{Scope: Read}, Operate, "a", fault.Denied},
		{Principal{Scope: Operate}, Read, "a", ""},
		{Principal{Scope: Operate}, Admin, "", fault.Denied},
		{Principal{Scope: Admin}, 0, "", fault.Denied},
		{Principal{Scope: Admin}, Admin + 1, "", fault.Denied},
		{Principal{Scope: Operate, Sandboxes: []string{"a"}}, Operate, "a", ""},
		{Principal{Scope: Operate, Sandboxes: []string{"a"}}, Read, "b", fault.NotFound},
		{Principal{Scope: Read, Sandboxes: []string{"a"}}, Operate, "b", fault.NotFound},
		{Principal{Scope: Read, Sandboxes: []string{"a"}}, Operate, "a", fault.Denied},
		{Principal{Scope: Admin, Sandboxes: []string{"a"}}, Read, "", fault.Denied},
		{Principal{Scope: Admin, Sandboxes: []string{}}, Read, "a", fault.NotFound},
	} {
		if got := fault.KindOf(c.p.Check(c.need, c.box)); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	for _, s := range []string{"", "none", "Read", "read ", "4"} {
		if _, err := ParseScope(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q is a scope: %v", s, err)
		}
	}
}

// FuzzParseSecret checks that a secret has only one spelling, and contains a valid ID.
func FuzzParseSecret(f *testing.F) {
	s, _ := NewSecret()
	f.Add(s)
	f.Add("cpc_0123abcd_" + strings.Repeat("A", 43))
	f.Add("cpc_0123abcd_" + strings.Repeat("A", 42) + "\n")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseSecret(s)
		if err != nil {
			if id != "" || len(s) > 8 && strings.Contains(err.Error(), s) {
				t.Errorf("%q: %q %v", s, id, err)
			}
			return
		}
		if !IsTokenID(id) || !strings.HasPrefix(s, "cpc_"+id+"_") || strings.ContainsAny(s, " \r\n\t=+/") {
			t.Errorf("%q: %q", s, id)
		}
	})
}
