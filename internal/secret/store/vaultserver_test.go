package store

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// server is a real Vault: scripts/vault.
type server struct {
	t                     testing.TB
	Address, Root, Unseal string
	ca                    string
	client                *http.Client
}

// startVault starts a server that runs until the test ends. Its engines: kv, version 2; one, version 1.
func startVault(t testing.TB) *server {
	t.Helper()
	program := filepath.Join(os.Getenv("COPPICE_EXEC_PATH"), "vault-server")
	if _, err := os.Stat(program); err != nil || os.Getenv("COPPICE_EXEC_PATH") == "" {
		t.Skip("needs vault-server: a real Vault, which scripts/vault/build builds")
	}
	s := &server{t: t}
	cert, key := certificate(t)
	s.ca = cert
	cmd := exec.Command(program, "-cert", cert, "-key", key)
	var said bytes.Buffer
	cmd.Stderr = &said
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop.Close()
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("vault: %v\n%s", err, said.String())
		}
	})
	if err := json.NewDecoder(out).Decode(s); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newClient(VaultOptions{Address: s.Address, CA: cert})
	if err != nil || !bytes.Contains(b, []byte("CERTIFICATE")) {
		t.Fatal(err)
	}
	s.client = c.http
	s.must("POST", "sys/mounts/kv", map[string]any{"type": "kv", "options": map[string]any{"version": "2"}})
	s.must("POST", "sys/mounts/one", map[string]any{"type": "kv", "options": map[string]any{"version": "1"}})
	// Version 2 is set up in the background.
	await(t, func() bool {
		return s.call("POST", "kv/data/ready", map[string]any{"data": map[string]any{"a": "b"}}, nil) == 200
	})
	return s
}

// certificate writes the certificate of a server on 127.0.0.1, which is its own authority, and its key.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "vault"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	of, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: of}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// call is a request of the server's owner. It returns the status, and parses the answer into into.
func (s *server) call(method, path string, body, into any) int {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	req, err := http.NewRequest(method, s.Address+"/v1/"+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Vault-Token", s.Root)
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err = io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(b, into); err != nil {
			s.t.Fatalf("%s %s: %s", method, path, b)
		}
	}
	if res.StatusCode >= 300 {
		s.t.Logf("%s %s: %d %s", method, path, res.StatusCode, b)
	}
	return res.StatusCode
}

// must is a request that succeeds. It returns the data of the answer.
func (s *server) must(method, path string, body map[string]any) map[string]any {
	s.t.Helper()
	var a struct {
		Data map[string]any
		Auth map[string]any
	}
	var into any
	if method == "GET" || path == "auth/approle/role/coppice/secret-id" || path == "auth/token/create" {
		into = &a
	}
	if code := s.call(method, path, body, into); code >= 300 {
		s.t.Fatalf("%s %s: status %d", method, path, code)
	}
	if a.Auth != nil {
		return a.Auth
	}
	return a.Data
}

// put writes a secret to an engine.
func (s *server) put(path string, fields map[string]any) {
	s.t.Helper()
	s.must("POST", path, fields)
}

// policy lets a role read kv/team, one and database roles, and handle its leases.
func (s *server) policy() {
	s.t.Helper()
	s.must("PUT", "sys/policies/acl/coppice", map[string]any{"policy": `
		path "kv/data/team/*" { capabilities = ["read"] }
		path "one/team/*" { capabilities = ["read"] }
		path "database/creds/*" { capabilities = ["read"] }
		path "sys/leases/renew" { capabilities = ["update"] }
		path "sys/leases/revoke" { capabilities = ["update"] }`})
}

// approle sets up AppRole with tokens of the given times, and returns how to log in.
func (s *server) approle(ttl, most string) VaultAuth {
	s.t.Helper()
	s.policy()
	s.must("POST", "sys/auth/approle", map[string]any{"type": "approle"})
	s.must("POST", "auth/approle/role/coppice", map[string]any{"token_policies": "coppice", "token_ttl": ttl, "token_max_ttl": most})
	id := s.must("GET", "auth/approle/role/coppice/role-id", nil)["role_id"].(string)
	secret := s.must("POST", "auth/approle/role/coppice/secret-id", map[string]any{})["secret_id"].(string)
	return VaultAuth{Method: VaultAppRole, Role: id, Credential: constant(secret)}
}

// constant returns a credential.
func constant(s string) func(context.Context) (Value, error) {
	return func(context.Context) (Value, error) { return newValue([]byte(s)) }
}

// store returns a client of the server.
func (s *server) store(auth VaultAuth) *Vault {
	s.t.Helper()
	v, err := NewVault(VaultOptions{Address: s.Address, CA: s.ca, Auth: auth, Now: time.Now})
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

// postgres starts a PostgreSQL for roles of a database engine, and returns a function that lists its dynamic roles.
func (s *server) postgres(ttl, most string) (roles func() []string) {
	s.t.Helper()
	p := startPostgres(s.t)
	s.must("POST", "sys/mounts/database", map[string]any{"type": "database"})
	s.must("POST", "database/config/pg", map[string]any{"plugin_name": "postgresql-database-plugin", "allowed_roles": "r",
		"connection_url": fmt.Sprintf("postgresql://{{username}}:{{password}}@127.0.0.1:%d/postgres?sslmode=disable", p.port),
		"username":       "owner", "password": "x"})
	s.must("POST", "database/roles/r", map[string]any{"db_name": "pg", "default_ttl": ttl, "max_ttl": most,
		"creation_statements": []string{`CREATE ROLE "{{name}}" WITH LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'`}})
	return p.roles
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
