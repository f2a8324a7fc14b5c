//go:build linux && (amd64 || arm64)

package process

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
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
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/gate/sentrytest"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/secret/line"
	"github.com/coppice-dev/coppice/internal/unixsock"
)

const (
	firstValue  = "ghp_0123456789abcdefghijABCDEFGHIJ4SvFQn"
	secondValue = "ghp_rotatedABCDEFGHIJabcdefghij012345678"
	placeholder = "ghp_PLACEHOLDERplaceholder0000000000AAAA"
	brokerWait  = time.Minute
)

// desk is the broker's end of a line.
type desk struct {
	*line.Server
	mu    sync.Mutex
	value string // guarded by mu
	gets  int    // guarded by mu
	over  chan struct{}
}

// newDesk returns the broker's end of a line, and the descriptor that the keeper passes on.
func newDesk(t *testing.T, value string) (*desk, *os.File) {
	t.Helper()
	dir := t.TempDir()
	l, err := unixsock.ListenPackets(dir, "line", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := &desk{value: value, over: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err == nil {
			d.Server, _, err = line.Accept(conn, brokerWait)
		}
		if err == nil {
			err = d.Begin()
		}
		ready <- err
	}()
	f, err := line.Dial(filepath.Join(dir, "line"), []byte("ticket"), brokerWait)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	go d.answer()
	t.Cleanup(func() {
		d.Close()
		<-d.over
	})
	return d, f
}

// answer answers until the line ends.
func (d *desk) answer() {
	defer close(d.over)
	for {
		a, err := d.Next()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.gets++
		v := line.Value{Bytes: []byte(d.value), Until: time.Now().Add(time.Minute), Version: int64(d.gets)}
		d.mu.Unlock()
		if a.Grant != "github" {
			d.Refuse(a, fault.New(fault.Unavailable, "the store of %s is locked", a.Grant).WithHint("coppice secret unlock"))
		} else if _, err := d.Give(a, v, &d.mu, func() bool { return true }); err != nil {
			return
		}
	}
}

// rotate changes the value.
func (d *desk) rotate(value string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.value = value
	d.Drop("github")
}

func planned(t *testing.T, name, item string) plan.Grant {
	t.Helper()
	if !json.Valid([]byte(item)) {
		t.Fatal(item)
	}
	p := plan.Grant{Name: name, Item: json.RawMessage(item), Kind: "github", Placeholder: placeholder,
		Given: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if name != "github" {
		p.Placeholder = "ghp_OTHERplaceholderOTHERplaceholderBBBB"
	}
	return p
}

// separately is set for a copy of this test in a mount namespace of its own.
const separately = "COPPICE_TEST_GRANTS"

// TestGateProgram_UsesGrants runs a gate process with all its restrictions, whose keeper passes it grants and a line to
// a broker. It runs in a separate mount namespace, in which the host knows an additional name and authority.
func TestGateProgram_UsesGrants(t *testing.T) {
	t.Parallel()
	if os.Getenv(separately) == "" {
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0], "-test.run=^" + t.Name() + "$", "-test.v"}, Dir: "/",
			Env: append(os.Environ(), separately+"=1"), SysProcAttr: &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const name = "web.example"
	at := website(t, name)
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	item := fmt.Sprintf(`{"hosts": [%q], "ports": [%s], "sites": [{"in": "bearer"}]}`, name, port)
	github, other := planned(t, "github", item), planned(t, "other", item)
	phase := said(t, fmt.Sprintf(`"%s:%s", "%s:%s"`, host, port, name, port))
	first, fd := newDesk(t, firstValue)
	g := newGated(t, []plan.Phase{phase}, control.Secrets{Line: fd, Grants: []plan.Grant{github, other}})
	fd.Close()
	url := "https://" + net.JoinHostPort(name, port) + "/echo"

	if got := g.get(t, url, placeholder); got != "200 Bearer "+placeholder {
		t.Errorf("%q", got)
	}
	if got := g.get(t, url, other.Placeholder); !strings.Contains(got, "502 ") || !strings.Contains(got,
		"hint: coppice secret unlock") {
		t.Errorf("%q", got)
	}
	first.rotate(secondValue)
	for first.count() < 2 { // the drop arrives at some time
		if got := g.get(t, url, placeholder); got != "200 Bearer "+placeholder {
			t.Fatalf("%q", got)
		}
	}
	// A new line replaces the first, which ends.
	second, fd := newDesk(t, secondValue)
	if err := g.SetSecrets(fd, []plan.Grant{github}); err != nil {
		t.Fatal(err)
	}
	fd.Close()
	select {
	case <-first.over:
	case <-time.After(brokerWait):
		t.Error("the line that was replaced did not end")
	}
	if got := g.get(t, url, placeholder); got != "200 Bearer "+placeholder {
		t.Errorf("%q", got)
	}
	// Without the broker a request fails once the value is forgotten.
	if err := g.SetSecrets(nil, nil); err != nil {
		t.Fatal(err)
	}
	second.Close()
	if err := g.SetSecrets(nil, []plan.Grant{github}); err != nil {
		t.Fatal(err)
	}
	if got := g.get(t, url, placeholder); !strings.HasPrefix(got, "502 ") || !strings.Contains(got, "hint: ") {
		t.Errorf("%q", got)
	}
	github.Revoked = true
	if err := g.SetSecrets(nil, []plan.Grant{github}); err != nil {
		t.Fatal(err)
	}
	if got := g.get(t, url, placeholder); !strings.Contains(got, "403 ") || !strings.Contains(got,
		"hint: coppice grant box github\n") {
		t.Errorf("%q", got)
	}
	g.Close()
	g.checkJournal(t)
}

func (d *desk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gets
}

// gated is a gate process for a sandbox that trusts its authority.
type gated struct {
	*control.Process
	dir    string
	sentry *sentrytest.Sentry
	roots  *x509.CertPool
}

func newGated(t *testing.T, phases []plan.Phase, s control.Secrets) *gated {
	t.Helper()
	g := &gated{dir: filepath.Join(t.TempDir(), "journal"), roots: x509.NewCertPool()}
	if err := os.Mkdir(g.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := programtest.Programs().File(program.Gate)
	if err != nil {
		t.Fatal(err)
	}
	if g.Process, err = control.Start(exe, "box", g.dir, nil, os.Stderr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	box, packets, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	// The gate's end is held until the sentry's stack has stopped, which cannot stop once it has read the end: see
	// link.Pair.
	t.Cleanup(func() { packets.Close(); box.Close() })
	ca, err := g.Begin(packets, phases, control.Decoys{}, s)
	if err != nil {
		t.Fatal(err)
	}
	if g.roots.AppendCertsFromPEM(ca) != (s.Later || len(s.Grants) > 0) {
		t.Errorf("the authority: %q", ca)
	}
	if g.sentry, err = sentrytest.New(int(box.Fd()), link.BoxInterface()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.sentry.Close)
	return g
}

// get returns the status and the body of an answer.
func (g *gated) get(t *testing.T, url, token string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := &http.Transport{DialContext: g.sentry.DialContext, TLSClientConfig: &tls.Config{RootCAs: g.roots},
		ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+token)
	query(ctx, t, g.sentry, q.URL.Hostname()) // the sentry itself reads the name in /etc/hosts
	r, err := tr.RoundTrip(q)
	if err != nil {
		evs, _ := journal.Read(journal.Place{Dir: g.dir}, journal.Query{})
		t.Fatalf("%v\n%+v", err, evs)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", r.StatusCode, b)
}

// checkJournal checks that the uses are in the journal, and no value.
func (g *gated) checkJournal(t *testing.T) {
	t.Helper()
	evs, err := journal.Read(journal.Place{Dir: g.dir}, journal.Query{})
	if err != nil {
		t.Fatal(err)
	}
	use := func(e wire.NetEvent) bool {
		return e.Kind == wire.NetHTTP && slices.Equal(e.Grants, []string{"github"}) && e.Path == "/echo"
	}
	refusal := func(e wire.NetEvent) bool {
		return e.Kind == wire.NetDeny && slices.Equal(e.Grants, []string{"github"}) && e.Status == 403 && e.Hint != ""
	}
	if !slices.ContainsFunc(evs, use) || !slices.ContainsFunc(evs, refusal) {
		t.Errorf("%+v", evs)
	}
	files, err := os.ReadDir(g.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(g.dir, f.Name()))
		if err != nil || bytes.Contains(b, []byte(firstValue)) || bytes.Contains(b, []byte(secondValue)) {
			t.Errorf("%s: %v", f.Name(), err)
		}
	}
}

// website is a TLS server for a name, which returns header Authorization. It mounts files over those of the host, in
// this mount namespace, so that the host resolves the name and trusts the certificate.
func website(t *testing.T, name string) (at string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := echoOutside(t)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if v := r.Header.Get("Authorization"); v != "Bearer "+firstValue && v != "Bearer "+secondValue {
				http.Error(w, "not a value: "+v, http.StatusTeapot)
				return
			}
			io.WriteString(w, r.Header.Get("Authorization"))
		}),
	}
	var own sync.WaitGroup
	own.Go(func() { _ = srv.ServeTLS(l, "", "") })
	t.Cleanup(func() { srv.Close(); own.Wait() })
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	overlay(t, "/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", host, name))
	for _, store := range plan.TrustStores {
		if _, err := os.Stat(store); err == nil {
			overlay(t, store, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
			return l.Addr().String()
		}
	}
	t.Skip("needs authorities: this host has no trust store")
	return ""
}

// overlay mounts text over a file of the host, in the mount namespace of this process.
func overlay(t *testing.T, file, text string) {
	t.Helper()
	ours := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(ours, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(ours, file, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(file, syscall.MNT_DETACH) })
}

// TestGateProgram_RefusesGrants checks grants that a gate cannot use, after which it continues.
func TestGateProgram_RefusesGrants(t *testing.T) {
	t.Parallel()
	phases := []plan.Phase{said(t, "a.example")}
	good := `{"hosts": ["a.example"], "sites": [{"in": "bearer"}]}`
	never := newGated(t, phases, control.Secrets{})
	later := newGated(t, phases, control.Secrets{Later: true})
	for _, x := range []struct {
		g    *gated
		item string
		kind fault.Kind
	}{
		{never, good, fault.Unsupported},
		{later, `{"hosts": ["a.example"], "sites": [{"in": "sigv4"}]}`, fault.Invalid}, // sigv4 requires an access key
		{later, `{"hosts": ["a.example"], "sites": [{"in": "ssh"}]}`, fault.Invalid},   // the keys of the host are unknown
		{later, `{"hosts": ["a.example"], "sites": [{"in": "json", "pointer": "/a", "methods": ["POST"], "paths": ["/a"]}]}`, ""},
		{later, `{"hosts": ["a.example"], "sites": [{"in": "bearer"}], "ask": "each"}`, ""},
		{later, `{"hosts": ["a.example"], "sites": [{"in": "bearer"}], "unknown": 1}`, fault.Internal},
		{later, `{"hosts": ["a.example"], "sites": []}`, fault.Invalid},
		{later, good, ""},
	} {
		_, fd := newDesk(t, firstValue)
		err := x.g.SetSecrets(fd, []plan.Grant{planned(t, "github", x.item)})
		if fd.Close(); fault.KindOf(err) != x.kind && (err != nil || x.kind != "") {
			t.Errorf("%s: %v", x.item, err)
		}
		if err != nil && x.kind == fault.Unsupported && fault.HintOf(err) == "" {
			t.Errorf("%s: no hint: %v", x.item, err)
		}
		if _, err := x.g.Now(); err != nil {
			t.Errorf("%s: %v", x.item, err)
		}
	}
}
