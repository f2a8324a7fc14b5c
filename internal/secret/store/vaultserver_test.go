package store

import (
	"context"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/vaulttest"
)

// server is a real Vault.
type server struct {
	*vaulttest.Server
	t testing.TB
}

func startVault(t testing.TB) *server {
	t.Helper()
	return &server{vaulttest.Start(t), t}
}

// must is a request that succeeds. It returns the data of the answer.
func (s *server) must(method, path string, body map[string]any) map[string]any {
	s.t.Helper()
	return s.Must(method, path, body)
}

// put writes a secret to an engine.
func (s *server) put(path string, fields map[string]any) {
	s.t.Helper()
	s.Must("POST", path, fields)
}

// approle sets up AppRole with tokens of the given times, and returns how to log in.
func (s *server) approle(ttl, most string) VaultAuth {
	s.t.Helper()
	role, secret := s.AppRole(ttl, most)
	return VaultAuth{Method: VaultAppRole, Role: role, Credential: constant(secret)}
}

// constant returns a credential.
func constant(s string) func(context.Context) (Value, error) {
	return func(context.Context) (Value, error) { return newValue([]byte(s)) }
}

// store returns a client of the server.
func (s *server) store(auth VaultAuth) *Vault {
	s.t.Helper()
	v, err := NewVault(VaultOptions{Address: s.Address, CA: s.CA, Auth: auth, Now: time.Now})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(v.Close)
	return v
}

// root returns a client with the root token.
func (s *server) root() *Vault {
	return s.store(VaultAuth{Method: VaultToken, Credential: constant(s.Root)})
}

// mustGet returns a value, whose kind of error must be none.
func mustGet(t *testing.T, v *Vault, path, field string) Value {
	t.Helper()
	value, err := v.Get(t.Context(), Ref{Path: path, Field: field})
	if err != nil {
		t.Fatalf("%s#%s: %v (%s)", path, field, err, fault.HintOf(err))
	}
	return value
}
