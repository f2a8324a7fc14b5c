// Package vaulttest starts a real Vault (scripts/vault) and a PostgreSQL for its dynamic roles. It serves tests.
package vaulttest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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
)

// Server is a real Vault. Its engines are kv, of version 2, and one, of version 1.
type Server struct {
	t                     testing.TB
	Address, Root, Unseal string
	CA                    string // the file of its certificate
	client                *http.Client
}

// Start starts a server that runs until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	program := filepath.Join(os.Getenv("COPPICE_EXEC_PATH"), "vault-server")
	if _, err := os.Stat(program); err != nil || os.Getenv("COPPICE_EXEC_PATH") == "" {
		t.Skip("needs vault-server: a real Vault, which scripts/vault/build builds")
	}
	s := &Server{t: t}
	cert, key := Certificate(t)
	s.CA = cert
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
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(b)
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(s.client.CloseIdleConnections)
	s.Must("POST", "sys/mounts/kv", map[string]any{"type": "kv", "options": map[string]any{"version": "2"}})
	s.Must("POST", "sys/mounts/one", map[string]any{"type": "kv", "options": map[string]any{"version": "1"}})
	// Version 2 is set up in the background.
	await(t, func() bool {
		return s.Call("POST", "kv/data/ready", map[string]any{"data": map[string]any{"a": "b"}}, nil) == 200
	})
	return s
}

// Certificate writes the certificate of a server on 127.0.0.1, which is its own authority, and its key.
func Certificate(t testing.TB) (cert, key string) {
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
	for path, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: of},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Call is a request of the server's owner. It returns the status, and parses the answer into into.
func (s *Server) Call(method, path string, body, into any) int {
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

// Must is a request that succeeds. It returns the data of the answer.
func (s *Server) Must(method, path string, body map[string]any) map[string]any {
	s.t.Helper()
	var a struct {
		Data map[string]any
		Auth map[string]any
	}
	var into any
	if method == "GET" || path == "auth/approle/role/coppice/secret-id" || path == "auth/token/create" {
		into = &a
	}
	if code := s.Call(method, path, body, into); code >= 300 {
		s.t.Fatalf("%s %s: status %d", method, path, code)
	}
	if a.Auth != nil {
		return a.Auth
	}
	return a.Data
}

// Policy lets a role read kv/team, one and database roles, and handle its leases.
func (s *Server) Policy() {
	s.t.Helper()
	s.Must("PUT", "sys/policies/acl/coppice", map[string]any{"policy": `
		path "kv/data/team/*" { capabilities = ["read"] }
		path "one/team/*" { capabilities = ["read"] }
		path "database/creds/*" { capabilities = ["read"] }
		path "sys/leases/renew" { capabilities = ["update"] }
		path "sys/leases/revoke" { capabilities = ["update"] }`})
}

// AppRole sets up AppRole with tokens of the given times, and returns what to log in with.
func (s *Server) AppRole(ttl, most string) (role, secret string) {
	s.t.Helper()
	s.Policy()
	s.Must("POST", "sys/auth/approle", map[string]any{"type": "approle"})
	s.Must("POST", "auth/approle/role/coppice", map[string]any{"token_policies": "coppice",
		"token_ttl": ttl, "token_max_ttl": most})
	role = s.Must("GET", "auth/approle/role/coppice/role-id", nil)["role_id"].(string)
	return role, s.Must("POST", "auth/approle/role/coppice/secret-id", map[string]any{})["secret_id"].(string)
}

// Postgres starts a PostgreSQL for roles of a database engine, and returns a function that lists its dynamic roles.
func (s *Server) Postgres(ttl, most string) (roles func() []string) {
	s.t.Helper()
	p := startPostgres(s.t)
	s.Must("POST", "sys/mounts/database", map[string]any{"type": "database"})
	s.Must("POST", "database/config/pg", map[string]any{"plugin_name": "postgresql-database-plugin", "allowed_roles": "r",
		"connection_url": fmt.Sprintf("postgresql://{{username}}:{{password}}@127.0.0.1:%d/postgres?sslmode=disable", p.port),
		"username":       "owner", "password": "x"})
	s.Must("POST", "database/roles/r", map[string]any{"db_name": "pg", "default_ttl": ttl, "max_ttl": most,
		"creation_statements": []string{`CREATE ROLE "{{name}}" WITH LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'`}})
	return p.roles
}

// await waits for a condition.
func await(t testing.TB, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(2 * time.Minute); !is(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it did not happen")
		}
	}
}
