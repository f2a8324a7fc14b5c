package sshgate

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/coppice-dev/coppice/internal/grant"
)

// patience bounds what a test waits for.
const patience = time.Minute

func newKey(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pair returns the two ends of a connection.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// world is a gate between a sandbox and a server. It is the Judge, and the Session of the one allowed command.
type world struct {
	t         testing.TB
	user, key ssh.Signer // of the grant, of the host
	authority *ecdsa.PrivateKey
	pins      []grant.HostKey
	signErr   error
	rekey     uint64         // bytes after which the server exchanges keys; 0 is the default
	quick     bool           // the gate is less patient
	raw       func(net.Conn) // is the server, if not nil
	inside    net.Conn       // of the sandbox
	served    chan struct{}  // closed when Serve has returned err
	freed     chan struct{}  // closed when the gate has freed the memory
	err       error
	outside   sync.WaitGroup

	mu        sync.Mutex
	ran       []string
	refusals  []string
	failed    string
	status    []uint32
	sent, got int
}

const allowed = "git-upload-pack '/acme/repo.git'"

// begin starts a gate in front of a server that does with its session what serve does; nil is an echo.
func begin(t testing.TB, change func(*world), serve func(ssh.Channel)) *world {
	t.Helper()
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, user: newKey(t), key: newKey(t), authority: authority, served: make(chan struct{}),
		freed: make(chan struct{})}
	pin, err := grant.ParseHostKey(strings.TrimSpace(string(ssh.MarshalAuthorizedKey(w.key.PublicKey()))))
	if err != nil {
		t.Fatal(err)
	}
	w.pins = []grant.HostKey{pin}
	if change != nil {
		change(w)
	}
	client, inside := pair(t)
	out, server := pair(t)
	w.inside = client
	w.outside.Go(func() {
		if w.raw != nil {
			w.raw(server)
			return
		}
		w.serve(server, serve)
	})
	wait, freed := patience, w.freed
	if w.quick {
		wait = time.Second
	}
	go func() {
		defer close(w.served)
		w.err = Serve(context.Background(), Options{Inside: inside, Outside: out, Authority: w.authority,
			Names: []string{"git.example"}, Judge: w, Patience: wait, Freed: func() { close(freed) }})
	}()
	t.Cleanup(func() {
		client.Close()
		server.Close()
		w.outside.Wait()
		<-w.served
	})
	return w
}

// serve is the real server.
func (w *world) serve(conn net.Conn, do func(ssh.Channel)) {
	config := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() != "git" || !bytes.Equal(k.Marshal(), w.user.PublicKey().Marshal()) {
			return nil, errors.New("another key")
		}
		return nil, nil
	}}
	config.RekeyThreshold = w.rekey
	config.AddHostKey(w.key)
	c, chans, reqs, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer c.Close()
	all.Go(func() { ssh.DiscardRequests(reqs) })
	for one := range chans {
		ch, reqs, err := one.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer ch.Close()
			for r := range reqs {
				w.mu.Lock()
				w.ran = append(w.ran, r.Type+" "+string(r.Payload[4:]))
				w.mu.Unlock()
				_ = r.Reply(true, nil)
				if r.Type != "exec" {
					continue
				}
				if do != nil {
					do(ch)
					return
				}
				_, _ = io.Copy(ch, ch)
				_, _ = ch.Stderr().Write([]byte("remote: done\n"))
				_, _ = ch.SendRequest("exit-status", false, []byte{0, 0, 0, 7})
				return
			}
		})
	}
}

func (w *world) Begin(user, command string) (Session, *Denial) {
	if user != "git" || command != allowed {
		return nil, &Denial{Reason: "not granted", Hint: "coppice grant"}
	}
	return w, nil
}

func (w *world) Refused(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refusals = append(w.refusals, what)
}

func (w *world) User() string              { return "git" }
func (w *world) Command() string           { return allowed }
func (w *world) HostKeys() []grant.HostKey { return w.pins }

func (w *world) Sign(_ context.Context, data []byte) ([]byte, error) {
	if len(data) == 0 {
		return w.user.PublicKey().Marshal(), nil
	}
	if w.signErr != nil {
		return nil, w.signErr
	}
	s, err := w.user.Sign(rand.Reader, data)
	return ssh.Marshal(s), err
}

func (w *world) Sent(b []byte) error { return w.count(&w.sent, b) }
func (w *world) Got(b []byte) error  { return w.count(&w.got, b) }

func (w *world) count(n *int, b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n += len(b)
	return nil
}

func (w *world) Fail(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = reason
}

func (w *world) End(status uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = append(w.status, status)
}

// dial is the client of the sandbox, which accepts hosts that the gate's authority certifies.
func (w *world) dial() *ssh.Client {
	w.t.Helper()
	trusted, err := ssh.NewPublicKey(w.authority.Public())
	if err != nil {
		w.t.Fatal(err)
	}
	check := &ssh.CertChecker{IsHostAuthority: func(k ssh.PublicKey, _ string) bool {
		return bytes.Equal(k.Marshal(), trusted.Marshal())
	}}
	conn, chans, reqs, err := ssh.NewClientConn(w.inside, "git.example:22",
		&ssh.ClientConfig{User: "git", HostKeyCallback: check.CheckHostKey})
	if err != nil {
		w.t.Fatal(err)
	}
	return ssh.NewClient(conn, chans, reqs)
}

// run runs a command, and returns its output, errors and exit status.
func (w *world) run(command, stdin string) (out, errs string, status int) {
	w.t.Helper()
	s, err := w.dial().NewSession()
	if err != nil {
		w.t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	s.Stdin, s.Stdout, s.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err = s.Run(command)
	if exit := new(ssh.ExitError); errors.As(err, &exit) {
		status = exit.ExitStatus()
	} else if err != nil {
		w.t.Fatal(err)
	}
	return stdout.String(), stderr.String(), status
}

func TestServe_RunsGit(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, nil)
	data := strings.Repeat("0123456789abcdef", 1<<17) // more than a window
	out, errs, status := w.run(allowed, data)
	if out != data || errs != "remote: done\n" || status != 7 {
		t.Errorf("%d bytes, %q, status %d", len(out), errs, status)
	}
	w.inside.Close()
	if <-w.served; w.err != nil {
		t.Error(w.err)
	}
	if !slices.Equal(w.ran, []string{"exec " + allowed}) || w.sent != len(data) || w.got < len(data) ||
		!slices.Equal(w.status, []uint32{7}) {
		t.Errorf("%q, %d, %d, %d", w.ran, w.sent, w.got, w.status)
	}
}

func TestServe_RefusesCommands(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, nil)
	out, errs, status := w.run("id", "")
	if out != "" || status != 128 || errs != "coppice: not granted\ncoppice: outside of the sandbox: coppice grant\n" {
		t.Errorf("%q, %q, %d", out, errs, status)
	}
	if w.mu.Lock(); len(w.ran) != 0 {
		t.Errorf("%q", w.ran)
	}
	w.mu.Unlock()
}

func TestServe_RefusesTheRest(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, nil)
	c := w.dial()
	for _, kind := range []string{"direct-tcpip", "direct-streamlocal@openssh.com", "tun@openssh.com", "x"} {
		_, _, err := c.OpenChannel(kind, []byte("xxxxxxxxxxxx"))
		if err == nil || !strings.Contains(err.Error(), "coppice: ") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if ok, _, err := c.SendRequest("tcpip-forward", true, ssh.Marshal(struct {
		Addr string
		Port uint32
	}{"127.0.0.1", 1})); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"pty-req", "x11-req", "auth-agent-req@openssh.com", "signal", "x"} {
		if ok, err := s.SendRequest(kind, true, nil); ok || err != nil {
			t.Errorf("%s: %v, %v", kind, ok, err)
		}
	}
	for name, value := range map[string]string{"LD_PRELOAD": "x", "GIT_PROTOCOL": "version=2:x", "GIT_DIR": "/"} {
		if err := s.Setenv(name, value); err == nil {
			t.Errorf("%s=%s is accepted", name, value)
		}
	}
	if _, err := c.NewSession(); err == nil {
		t.Error("a second session is accepted")
	}
	if err := s.Setenv("GIT_PROTOCOL", "version=2"); err != nil {
		t.Error(err)
	}
	var errs bytes.Buffer
	s.Stderr = &errs
	if err := s.Shell(); err != nil {
		t.Error(err)
	}
	exit := new(ssh.ExitError)
	err = s.Wait()
	if !errors.As(err, &exit) || exit.ExitStatus() != 128 || !strings.Contains(errs.String(), "not a shell") {
		t.Errorf("%v, %s", err, errs.String())
	}
}

func TestServe_ChecksHost(t *testing.T) {
	t.Parallel()
	w := begin(t, func(w *world) {
		pin, err := grant.ParseHostKey(ssh.FingerprintSHA256(newKey(t).PublicKey()))
		if err != nil {
			t.Fatal(err)
		}
		w.pins = []grant.HostKey{pin}
	}, nil)
	_, errs, status := w.run(allowed, "")
	is := ssh.FingerprintSHA256(w.key.PublicKey())
	if status != 128 || !strings.Contains(errs, "the key of the host is "+is) || !strings.Contains(w.failed, is) {
		t.Errorf("%q, %d", errs, status)
	}
	if len(w.ran) != 0 {
		t.Errorf("%q", w.ran)
	}
}

func TestServe_WithoutSignature(t *testing.T) {
	t.Parallel()
	w := begin(t, func(w *world) { w.signErr = errors.New("the broker says no") }, nil)
	if _, errs, status := w.run(allowed, ""); status != 128 || !strings.Contains(errs, "the broker says no") {
		t.Errorf("%q, %d", errs, status)
	}
}

// TestServe_HostileServers checks servers that end in the middle of a command.
func TestServe_HostileServers(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ssh.Channel){
		"no status":    func(ch ssh.Channel) { _, _ = ch.Write([]byte("x")) },
		"short status": func(ch ssh.Channel) { _, _ = ch.SendRequest("exit-status", false, []byte{0}) },
		"requests": func(ch ssh.Channel) {
			for range 1000 {
				_, _ = ch.SendRequest("exec", false, ssh.Marshal(struct{ Command string }{"id"}))
			}
		},
	} {
		w := begin(t, nil, do)
		if _, errs, status := w.run(allowed, ""); status != 255 || !strings.Contains(errs, "ended the connection") {
			t.Errorf("%s: %q, %d", name, errs, status)
		}
	}
}

// TestServe_HostileClients sends what is not SSH, or not in order. Serve must return once the client is gone.
func TestServe_HostileClients(t *testing.T) {
	t.Parallel()
	huge := binary.BigEndian.AppendUint32([]byte("SSH-2.0-x\r\n"), 1<<31)
	for name, data := range map[string][]byte{
		"nothing":     nil,
		"zeros":       make([]byte, 1<<16),
		"a long line": bytes.Repeat([]byte("SSH-2.0-x"), 1<<12),
		"SSH 1":       []byte("SSH-1.5-x\r\n"),
		"huge packet": huge,
		"no packet":   []byte("SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14" + strings.Repeat("\x00", 100)),
		"HTTP":        []byte("GET / HTTP/1.1\r\nHost: git.example\r\n\r\n"),
	} {
		w := begin(t, nil, nil)
		go func() { _, _ = w.inside.Write(data); w.inside.(*net.TCPConn).CloseWrite() }()
		select {
		case <-w.served:
			if w.err == nil {
				t.Errorf("%s is SSH", name)
			}
		case <-time.After(patience / 2):
			t.Errorf("%s: the gate waits", name)
		}
	}
}

// TestServe_ManyChannels checks that a client cannot open channels without end.
func TestServe_ManyChannels(t *testing.T) {
	t.Parallel()
	w := begin(t, nil, nil)
	c := w.dial()
	n := 0
	for n < 1000 {
		if _, _, err := c.OpenChannel("direct-tcpip", nil); err != nil && !strings.Contains(err.Error(), "coppice") {
			break
		}
		n++
	}
	if n > maxRefused {
		t.Errorf("%d channels", n)
	}
	if <-w.served; w.err != nil {
		t.Error(w.err)
	}
}
