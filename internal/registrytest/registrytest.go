// Package registrytest runs a registry of Debian's package docker-registry for tests.
package registrytest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// User and Password are the credentials of a registry with authentication.
const (
	User     = "alice"
	Password = "correct-horse"
)

const hashed = "$2b$04$leDPuHW6QXZk7xcwDQ9QiO0MLLoEjyOgvApggGihCFqaISLplT/8m" // bcrypt hash of Password

// Auth is the authentication method of a registry.
type Auth int

// The methods.
const (
	Nobody Auth = iota // no authentication
	Basic              // HTTP basic authentication by the registry
	Token              // tokens of a token service
)

// Start starts a registry that runs until the test ends. It returns its address and its storage directory. The
// test is skipped without docker-registry.
func Start(t testing.TB, auth Auth) (host, dir string) {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("needs docker-registry: to put layers into")
	}
	dir = t.TempDir()
	config := "version: 0.1\nlog: {level: info}\nstorage: {filesystem: {rootdirectory: " + dir +
		"/data}}\nhttp: {addr: '127.0.0.1:0', secret: x}\n"
	switch auth {
	case Basic:
		write(t, filepath.Join(dir, "htpasswd"), User+":"+hashed+"\n")
		config += "auth: {htpasswd: {realm: test, path: " + dir + "/htpasswd}}\n"
	case Token:
		realm, roots := tokens(t)
		write(t, filepath.Join(dir, "roots.pem"), roots)
		config += "auth: {token: {realm: '" + realm + "', service: test, issuer: test, rootcertbundle: " + dir +
			"/roots.pem}}\n"
	}
	write(t, filepath.Join(dir, "config.yml"), config)
	cmd := exec.Command(program, "serve", filepath.Join(dir, "config.yml"))
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait() // it was killed
	})
	found := make(chan string, 1)
	go func() {
		defer close(read)
		defer close(found)
		listening := regexp.MustCompile(`listening on (127\.0\.0\.1:[0-9]+)`)
		var all strings.Builder
		for s := bufio.NewScanner(said); s.Scan(); {
			if m := listening.FindStringSubmatch(s.Text()); m != nil {
				found <- m[1]
				_, _ = io.Copy(io.Discard, said)
				return
			}
			all.WriteString(s.Text() + "\n")
		}
		t.Log(all.String())
	}()
	host = <-found
	if host == "" {
		t.Fatal("the registry does not listen")
	}
	return host, filepath.Join(dir, "data")
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tokens starts a token service, whose certificate the registry trusts.
func tokens(t testing.TB) (realm, roots string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != User || password != Password {
			http.Error(w, "{}", http.StatusUnauthorized)
			return
		}
		type access struct {
			Type    string   `json:"type"`
			Name    string   `json:"name"`
			Actions []string `json:"actions"`
		}
		list := []access{}
		for _, scope := range r.URL.Query()["scope"] {
			p := strings.Split(scope, ":")
			list = append(list, access{p[0], p[1], strings.Split(p[2], ",")})
		}
		now := time.Now()
		head := map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(cert)}}
		body := map[string]any{"iss": "test", "sub": user, "aud": "test", "exp": now.Add(time.Minute).Unix(),
			"nbf": now.Add(-time.Minute).Unix(), "iat": now.Unix(), "jti": "1", "access": list}
		token, err := sign(key, head, body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, `{"token": %q, "expires_in": 60}`, token)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/token", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))
}

// sign creates a JSON Web Token.
func sign(key *ecdsa.PrivateKey, parts ...any) (string, error) {
	var all []string
	for _, p := range parts {
		b, err := json.Marshal(p)
		if err != nil {
			return "", err
		}
		all = append(all, base64.RawURLEncoding.EncodeToString(b))
	}
	sum := sha256.Sum256([]byte(strings.Join(all, ".")))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", err
	}
	sig := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return strings.Join(append(all, base64.RawURLEncoding.EncodeToString(sig)), "."), nil
}
