package broker

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secret/client"
)

// privateKey returns a new key, its file, and its public key.
func privateKey(t *testing.T) (ed25519.PrivateKey, string, ssh.PublicKey) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(block)), public
}

// loginAs returns what a client signs to log in.
func loginAs(user string, key ssh.PublicKey) []byte { return loginWith(key.Type(), user, key) }

func loginWith(algorithm, user string, key ssh.PublicKey) []byte {
	return ssh.Marshal(struct {
		Session         []byte
		Type            byte
		User            string
		Service, Method string
		Signs           bool
		Algorithm       string
		Key             []byte
	}{make([]byte, 32), 50, user, "ssh-connection", "publickey", true, algorithm, key.Marshal()})
}

// signs checks that a gate gets a signature of a login for a grant, and of nothing else.
func (g gate) signs(grant string, key ssh.PublicKey) {
	g.t.Helper()
	sign := func(host string, data []byte) ([]byte, error) {
		return g.Sign(g.t.Context(), grant, host, "GIT-UPLOAD-PACK", "/acme/repo.git", data)
	}
	if blob, err := sign("a.example", nil); err != nil || string(blob) != string(key.Marshal()) {
		g.t.Errorf("the public key: %v", err)
	}
	data := loginAs("git", key)
	blob, err := sign("a.example", data)
	var s ssh.Signature
	if err != nil || ssh.Unmarshal(blob, &s) != nil || key.Verify(data, &s) != nil {
		g.t.Errorf("the signature: %v", err)
	}
	for what, data := range map[string][]byte{"another user": loginAs("root", key),
		"a commit": []byte("SSHSIG\x00\x00\x00\x03git")} {
		if blob, err := sign("a.example", data); !fault.Is(err, fault.Denied) || blob != nil {
			g.t.Errorf("%s is signed: %v", what, err)
		}
	}
	if blob, err := sign("other.example", data); !fault.Is(err, fault.Denied) || blob != nil {
		g.t.Errorf("another host: %v", err)
	}
	if v, err := g.get(grant, "a.example"); !fault.Is(err, fault.Denied) || v != "" {
		g.t.Errorf("the value is given: %v", err)
	}
}

func TestBroker_Signs(t *testing.T) {
	t.Parallel()
	h := start(t)
	_, file, key := privateKey(t)
	s := h.set("deploy", file)
	if s.Kind != "ssh" || s.Fingerprint != ssh.FingerprintSHA256(key) {
		t.Errorf("%+v", s)
	}
	h.clean(strings.Split(file, "\n")[2])
	h.set("hub", token)
	g := h.gate(h.register("box", nil, client.Granted{Name: "git", Secret: "deploy", User: "git"},
		client.Granted{Name: "wrong", Secret: "deploy"}, client.Granted{Name: "hub", Secret: "hub"},
		client.Granted{Name: "other", Secret: "hub", User: "git"}))
	g.signs("git", key)
	if v, err := g.get("wrong", "a.example"); !fault.Is(err, fault.Denied) || v != "" {
		t.Errorf("a private key is given: %v", err)
	}
	for _, name := range []string{"wrong", "hub", "other", "none"} {
		if _, err := g.Sign(t.Context(), name, "a.example", "", "", loginAs("git", key)); err == nil {
			t.Errorf("grant %s signs", name)
		}
	}
	g.want("hub", token)
	if _, err := h.Set(t.Context(), "hub", "", "ssh", []byte(token)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a token is a private key: %v", err)
	}
	if _, err := h.Set(t.Context(), "hub", "", "github", []byte(file)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a private key is a token: %v", err)
	}
}

// serveAgent serves an SSH agent, and returns its socket.
func (h *testHome) serveAgent(a agent.Agent) string {
	h.t.Helper()
	socket := filepath.Join(h.user, "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		h.t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				_ = agent.ServeAgent(a, conn)
			})
		}
	})
	h.t.Cleanup(func() { l.Close(); all.Wait() })
	return socket
}

func TestBroker_SignsByAgent(t *testing.T) {
	t.Parallel()
	h := start(t)
	raw, _, key := privateKey(t)
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: raw, Comment: "user key"}); err != nil {
		t.Fatal(err)
	}
	socket := h.serveAgent(ring)
	if _, err := h.Set(t.Context(), "deploy", "ssh-agent:user key", "", nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without an agent: %v", err)
	}
	owner := h.With([]string{"SSH_AUTH_SOCK=" + socket})
	if _, err := owner.Set(t.Context(), "deploy", "ssh-agent:another", "", nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("another key: %v", err)
	}
	s, err := owner.Set(t.Context(), "deploy", "ssh-agent:user key", "", nil)
	sum := ssh.FingerprintSHA256(key)
	if err != nil || s.From != "ssh-agent:"+sum || s.Fingerprint != sum || s.Kind != "ssh" {
		t.Fatalf("%+v, %v", s, err)
	}
	if shape, err := h.Shape(t.Context(), "deploy"); err != nil || shape.Kind != "ssh" {
		t.Errorf("%+v, %v", shape, err)
	}
	g := h.gate(h.register("box", nil, client.Granted{Name: "git", Secret: "deploy", User: "git"}))
	g.signs("git", key)
	if err := ring.RemoveAll(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Sign(t.Context(), "git", "a.example", "", "", nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("without the key: %v", err)
	}
}

// oldAgent signs with SHA-1, whatever it is asked for, as agents did before 2018.
type oldAgent struct{ agent.ExtendedAgent }

func (a oldAgent) SignWithFlags(key ssh.PublicKey, data []byte, _ agent.SignatureFlags) (*ssh.Signature, error) {
	return a.Sign(key, data)
}

func TestBroker_SignsWithoutSHA1(t *testing.T) {
	t.Parallel()
	h := start(t)
	raw, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(raw.Public())
	if err != nil {
		t.Fatal(err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: raw, Comment: "user key"}); err != nil {
		t.Fatal(err)
	}
	owner := h.With([]string{"SSH_AUTH_SOCK=" + h.serveAgent(oldAgent{ring.(agent.ExtendedAgent)})})
	if _, err := owner.Set(t.Context(), "deploy", "ssh-agent:user key", "", nil); err != nil {
		t.Fatal(err)
	}
	g := h.gate(h.register("box", nil, client.Granted{Name: "git", Secret: "deploy", User: "git"}))
	for _, algorithm := range []string{ssh.KeyAlgoRSA, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512} {
		if blob, err := g.Sign(t.Context(), "git", "a.example", "", "", loginWith(algorithm, "git", key)); err == nil {
			t.Errorf("%s: %q", algorithm, blob)
		}
	}
}
