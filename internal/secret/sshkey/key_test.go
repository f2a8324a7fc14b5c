package sshkey

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// file returns the file of a key.
func file(t testing.TB, key any, passphrase string) []byte {
	t.Helper()
	var block *pem.Block
	var err error
	if passphrase == "" {
		block, err = ssh.MarshalPrivateKey(key, "comment")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "comment", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

func fresh(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestValue_RoundTrip(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []any{fresh(t), ec, big} {
		f := file(t, key, "")
		v, err := Value(f)
		if err != nil || !IsFile(f) || !IsValue(v) || bytes.ContainsAny(v, "\n ") {
			t.Fatalf("%T: %v", key, err)
		}
		s, err := Parse(v)
		if err != nil || Algorithms(s.PublicKey()) == nil {
			t.Errorf("%T: %v", key, err)
		}
		for _, a := range Algorithms(s.PublicKey()) {
			sig, err := s.SignWithAlgorithm(rand.Reader, []byte("data"), a)
			if err != nil || sig.Format != a || s.PublicKey().Verify([]byte("data"), sig) != nil {
				t.Errorf("%s: %v", a, err)
			}
		}
	}
}

func TestValue_Refuses(t *testing.T) {
	t.Parallel()
	for why, f := range map[string][]byte{
		"has a passphrase": file(t, fresh(t), "secret"),
		"cannot be read":   []byte("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"),
	} {
		if _, err := Value(f); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("want %q: %v", why, err)
		}
	}
	for _, v := range []string{"", "token", prefix, prefix + "!", prefix + "AAAA"} {
		if _, err := Parse([]byte(v)); err == nil {
			t.Errorf("%q is a key", v)
		}
	}
}

// request is what a client signs.
type request struct {
	Session   []byte
	Type      byte
	User      string
	Service   string
	Method    string
	Signs     bool
	Algorithm string
	Key       []byte
}

func loginOf(key ssh.PublicKey) request {
	return request{make([]byte, 32), 50, "git", "ssh-connection", "publickey", true, key.Type(), key.Marshal()}
}

func TestCheckLogin(t *testing.T) {
	t.Parallel()
	key, err := ssh.NewPublicKey(fresh(t).Public())
	if err != nil {
		t.Fatal(err)
	}
	other, err := ssh.NewPublicKey(fresh(t).Public())
	if err != nil {
		t.Fatal(err)
	}
	good := ssh.Marshal(loginOf(key))
	if a, err := CheckLogin(good, "git", key); err != nil || a != ssh.KeyAlgoED25519 {
		t.Fatalf("%s, %v", a, err)
	}
	for what, change := range map[string]func(*request){
		"no session":   func(r *request) { r.Session = nil },
		"long session": func(r *request) { r.Session = make([]byte, 65) },
		"message":      func(r *request) { r.Type = 51 },
		"user":         func(r *request) { r.User = "root" },
		"service":      func(r *request) { r.Service = "ssh-userauth" },
		"method":       func(r *request) { r.Method = "hostbased" },
		"query":        func(r *request) { r.Signs = false },
		"algorithm":    func(r *request) { r.Algorithm = "ssh-rsa" },
		"key":          func(r *request) { r.Key = other.Marshal() },
	} {
		r := loginOf(key)
		change(&r)
		if _, err := CheckLogin(ssh.Marshal(r), "git", key); err == nil {
			t.Errorf("another %s is accepted", what)
		}
	}
	// The signature of a commit (PROTOCOL.sshsig).
	sshsig := append([]byte("SSHSIG"), ssh.Marshal(struct{ Namespace, Reserved, Hash, Sum string }{"git", "", "sha512",
		strings.Repeat("x", 64)})...)
	for _, data := range [][]byte{nil, sshsig, append(bytes.Clone(good), 0), good[:len(good)-1], good[1:],
		bytes.Replace(good, []byte{50}, []byte{50, 50}, 1)} {
		if _, err := CheckLogin(data, "git", key); err == nil {
			t.Errorf("%q is accepted", data)
		}
	}
}

func FuzzCheckLogin(f *testing.F) {
	key, err := ssh.NewPublicKey(fresh(f).Public())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ssh.Marshal(loginOf(key)))
	f.Add([]byte("SSHSIG"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := CheckLogin(data, "git", key); err != nil {
			return
		}
		// Only the session may differ.
		var r request
		if err := ssh.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		want := loginOf(key)
		want.Session = r.Session
		if !bytes.Equal(ssh.Marshal(want), data) {
			t.Errorf("%q is accepted", data)
		}
	})
}
