//go:build linux && (amd64 || arm64)

package gate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/policy"
)

// webHosts are servers for names, all at one address: with TLS on ports 443 and 8443, without on port 80. roots are
// their certificate authorities.
type webHosts struct {
	*book
	mux   *http.ServeMux
	roots *x509.CertPool
	pem   string // file with the certificate authorities
}

func newWebHosts(t testing.TB, p Policy, names ...string) *webHosts {
	t.Helper()
	at := netip.MustParseAddr("93.184.216.34")
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%s %s %s %s %d\n", r.Proto, r.Method, r.Host, r.RequestURI, n)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://denied.example/", http.StatusFound)
	})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "the internet"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		DNSNames: names, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	h := &webHosts{
		book: &book{decide: p.Decide, names: map[string][]netip.Addr{}, ttl: time.Minute,
			hosts: map[netip.AddrPort]string{}},
		mux: mux, roots: x509.NewCertPool()}
	h.roots.AddCert(c)
	h.pem = pemFile(t, der)
	for _, n := range names {
		h.names[n] = []netip.Addr{at}
	}
	serve := func(port uint16, secure bool) {
		s := httptest.NewUnstartedServer(mux)
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		if s.EnableHTTP2 = true; secure {
			s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		h.hosts[netip.AddrPortFrom(at, port)] = s.Listener.Addr().String()
	}
	serve(443, true)
	serve(8443, true)
	serve(80, false)
	return h
}

// web starts a sandbox whose requests are inspected, and returns the file with the certificate of the gate's authority.
func (h *webHosts) web(t testing.TB, k kind) (*sandbox, string) {
	t.Helper()
	s := start(t, k, h.book, func(o *Options) { o.Roots = h.roots })
	ca, err := s.CA()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, ca, 0o644); err != nil {
		t.Fatal(err)
	}
	return s, file
}

// httpRule returns a rule for a host and its ports, after change has modified it.
func httpRule(t testing.TB, s string, change func(*policy.Rule)) policy.Rule {
	t.Helper()
	r, err := policy.ParseRule(s, false)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&r)
	}
	return r
}

func items(t testing.TB) policy.Network {
	return policy.Network{Mode: policy.NetRules, Allow: []policy.Rule{
		httpRule(t, "a.example:80,443,8443", func(r *policy.Rule) {
			r.Methods, r.Paths, r.MaxRequest = []string{"GET", "POST"}, []string{"/away", "/items/*", "/slow"}, 10_000
		}),
		httpRule(t, "b.example:80,443", nil),
		httpRule(t, "c.example:443", func(r *policy.Rule) { r.Rate = policy.Rate{Count: 3, Per: time.Hour} }),
		httpRule(t, "d.example:443", func(r *policy.Rule) { r.Methods, r.MaxBytes = []string{"GET"}, 300_000 }),
	}}
}

func TestInspection(t *testing.T) {
	t.Parallel()
	h := newWebHosts(t, Rules(items(t)), "a.example", "b.example", "c.example", "d.example", "denied.example")
	s, ca := h.web(t, veth)
	curl := func(args ...string) string {
		out, err := s.do("run", nil, append([]string{"curl", "-sS", "--max-time", "20", "--cacert", ca}, args...)...)
		if err != nil {
			return "curl: " + err.Error() + ": " + string(out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"https://a.example/items/1?q=2"}, "HTTP/2.0 GET a.example /items/1?q=2 0\n"},
		{[]string{"--http1.1", "https://a.example/items/1"}, "HTTP/1.1 GET a.example /items/1 0\n"},
		{[]string{"--no-alpn", "https://a.example/items/1"}, "HTTP/1.1 GET a.example /items/1 0\n"},
		{[]string{"--tls-max", "1.2", "https://a.example/items/1"}, "HTTP/2.0 GET a.example /items/1 0\n"},
		{[]string{"-d", "hello", "https://a.example:8443/items/1"}, "HTTP/2.0 POST a.example:8443 /items/1 5\n"},
		{[]string{"http://a.example/items/1"}, "HTTP/1.1 GET a.example /items/1 0\n"},
		// b.example shares its address with a name that is inspected.
		{[]string{"http://b.example/anything", "-X", "DELETE"}, "HTTP/1.1 DELETE b.example /anything 0\n"},
		{[]string{"https://a.example/items/1", "https://a.example/items/2"},
			"HTTP/2.0 GET a.example /items/1 0\nHTTP/2.0 GET a.example /items/2 0\n"},
		{[]string{"https://a.example/other"}, "reason: a rule names the host, and not this request\nrule: "},
		{[]string{"-X", "DELETE", "https://a.example/items/1"}, "reason: a rule names the host"},
		{[]string{"-X", "DELETE", "http://a.example/items/1"}, "reason: a rule names the host"},
		{[]string{"--path-as-is", "https://a.example/items/../other"}, "reason: its path is ambiguous"},
		{[]string{"https://a.example/items/%2e%2e/other"}, "reason: its path is ambiguous"},
		{[]string{"-H", "Host: b.example", "https://a.example/items/1"}, "another host"},
		{[]string{"-H", "Host: denied.example", "http://a.example/items/1"}, "another host"},
		{[]string{"-H", "X-HTTP-Method-Override: DELETE", "https://a.example/items/1"}, "would change the meaning of the request"},
		{[]string{"--http2", "http://a.example/items/1"}, "400 Bad Request"},
		{[]string{"--http1.1", "--request-target", "http://b.example/", "https://a.example/items/1"}, "400 Bad Request"},
		{[]string{"-d", strings.Repeat("x", 20_000), "https://a.example/items/1"}, "exceeds the limit of its rule"},
		{[]string{"-H", "Transfer-Encoding: chunked", "--http1.1", "-H", "Expect:", "-d", strings.Repeat("x", 20_000),
			"https://a.example/items/1"}, "exceeds the limit of its rule"},
		{[]string{"-L", "https://a.example/away"}, "Could not resolve host: denied.example"},
		{[]string{"https://d.example/large", "-o", "/dev/null"}, "curl: "},
		{[]string{"https://b.example/"}, "curl: "}, // not inspected: the gate's authority did not issue its certificate
		{[]string{"--cacert", h.pem, "https://b.example/"}, "HTTP/2.0 GET b.example / 0\n"},
		{[]string{"--cacert", h.pem, "https://a.example/items/1"}, "curl: "},
	} {
		if got := curl(x.args...); !strings.Contains(got, x.want) {
			t.Errorf("%q: %q, want %q", x.args, got, x.want)
		}
	}
	for i := range 5 {
		if got := curl("https://c.example/x"); strings.Contains(got, "the rule's rate, 3/h, is exhausted") != (i >= 3) {
			t.Errorf("request %d: %q", i, got)
		}
	}
	s.denied(t, TCP, "the byte limit of the rule is exhausted")
	s.denied(t, TCP, "its path is ambiguous")
	s.denied(t, TCP, "absolute-form")
	s.denied(t, TCP, "TLS with the sandbox failed")
	e := s.wait(t, "a denied request", func(e Event) bool {
		return e.Kind == KindDeny && e.Method == "DELETE" && e.Path == "/items/1" && e.Port == 443
	})
	if e.Name != "a.example" || e.Status != 403 || !strings.Contains(e.Rule, "/items/*") || e.Hint == "" ||
		e.Verdict != Deny {
		t.Errorf("%+v", e)
	}
	e = s.wait(t, "an answer", func(e Event) bool { return e.Kind == KindAnswer && e.Method == "POST" && e.Port == 8443 })
	if e.Path != "/items/1" || e.Status != 200 || e.In == 0 || e.Out == 0 || e.Verdict != Allow {
		t.Errorf("%+v", e)
	}
	s.wait(t, "a request",
		func(e Event) bool { return e.Kind == KindRequest && e.Path == "/items/1" && e.Method == "GET" })
	for _, name := range h.sought() {
		if name == "denied.example" {
			t.Error("a denied name was looked up outside")
		}
	}
}

// TestInspection_RefusesOtherProtocols checks that only HTTP passes where requests are inspected.
func TestInspection_RefusesOtherProtocols(t *testing.T) {
	overBoth(t, testInspectionRefusesOtherProtocols)
}

func testInspectionRefusesOtherProtocols(t *testing.T, k kind) {
	t.Parallel()
	h := newWebHosts(t, Rules(items(t)), "a.example", "b.example")
	s, _ := h.web(t, k)
	s.must(t, "look", nil, "a.example")
	s.must(t, "look", nil, "b.example")
	for _, wire := range []string{"SSH-2.0-x\r\n\r\n", "EHLO a.example\r\n\r\n", "\x00\x01\x02\r\n\r\n",
		"GET / HTTP/1.1\nHost: b.example\n\n"} {
		if got, err := s.do("exchange", []byte(wire), "tcp", "b.example:80"); err == nil &&
			strings.Contains(string(got), "200 OK") {
			t.Errorf("%q: %q", wire, got)
		}
		s.denied(t, TCP, "malformed")
	}
	if got, err := s.do("tls", []byte("SSH-2.0-x\r\n\r\n"), "a.example:443", "a.example"); err == nil &&
		!strings.Contains(string(got), "400 Bad Request") {
		t.Errorf("%q", got)
	}
	for _, sni := range []string{"denied.example", "", "b.example"} {
		if got, err := s.do("tls", []byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), "a.example:8443", sni); err == nil {
			t.Errorf("%q: %q", sni, got)
		}
	}
	s.denied(t, TCP, "names no server")
}

// TestInspection_HoldsBesideAddressRule checks that a rule for the address of a name does not allow uninspected
// requests to that name.
func TestInspection_HoldsBesideAddressRule(t *testing.T) {
	overBoth(t, testInspectionHoldsBesideAddressRule)
}

func testInspectionHoldsBesideAddressRule(t *testing.T, k kind) {
	t.Parallel()
	n := items(t)
	n.Allow = append(n.Allow, httpRule(t, "93.184.216.34:443,8443", nil))
	h := newWebHosts(t, Rules(n), "a.example")
	s, _ := h.web(t, k)
	for _, at := range []string{"93.184.216.34:443", "93.184.216.34:8443"} {
		if got, err := s.do("tls", []byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"), at, "a.example"); err == nil {
			t.Errorf("%s: %q", at, got)
		}
		s.wait(t, "its denial", func(e Event) bool {
			return e.Kind == KindDeny && e.Port == netip.MustParseAddrPort(at).
				Port() && strings.Contains(e.Reason, "requests to a.example are inspected")
		})
	}
}

// TestInspection_CommonClientsWork runs common clients, each with the authority where the client expects it.
func TestInspection_CommonClientsWork(t *testing.T) {
	t.Parallel()
	h := newWebHosts(t, Rules(items(t)), "a.example")
	s, ca := h.web(t, veth)
	for name, x := range map[string]struct {
		needs, env, program string
		args                []string
	}{
		"python": {"python3", "SSL_CERT_FILE", "python3", []string{"-c", `import urllib.request, urllib.error
print(urllib.request.urlopen("https://a.example/items/1").read().decode(), end="")
try: urllib.request.urlopen("https://a.example/other")
except urllib.error.HTTPError as e: print(e.code)`}},
		"node": {"node", "NODE_EXTRA_CA_CERTS", "node",
			[]string{"-e",
				`fetch("https://a.example/items/1").then(r => r.text()).then(t => { process.stdout.write(t); return fetch("https://a.example/other") }).then(r => console.log(r.status))`}},
		"wget": {"wget", "SSL_CERT_FILE", "sh",
			[]string{"-c",
				`wget -qO- --ca-certificate="$SSL_CERT_FILE" https://a.example/items/1; wget -qSO/dev/null --ca-certificate="$SSL_CERT_FILE" https://a.example/other 2>&1 | grep -o 403`}},
		"git": {"git", "GIT_SSL_CAINFO", "sh",
			[]string{"-c",
				`git ls-remote https://a.example/items/x.git 2>&1 | grep -q 'not valid: is this a git' && echo ' GET a.example /items/1 0'; git ls-remote https://a.example/x.git 2>&1 | grep -o 403`}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(x.needs); err != nil {
				t.Skip("needs " + name)
			}
			got, err := s.do("run", nil, append([]string{"env", x.env + "=" + ca, x.program}, x.args...)...)
			if err != nil || !strings.Contains(string(got), " GET a.example /items/1 0\n") ||
				!strings.HasSuffix(string(got), "403\n") {
				t.Errorf("%v: %s", err, got)
			}
		})
	}
	if got := s.must(t, "https", nil, ca, "20",
		"https://a.example/items/1"); strings.Count(string(got), " GET a.example /items/1 0\n") != 20 {
		t.Errorf("%s", got)
	}
}

// TestInspection_BoundsConnections checks that inspected connections are bounded.
func TestInspection_BoundsConnections(t *testing.T) {
	overBoth(t, testInspectionBoundsConnections)
}

func testInspectionBoundsConnections(t *testing.T, k kind) {
	t.Parallel()
	h := newWebHosts(t, Rules(items(t)), "a.example", "b.example")
	s := start(t, k, h.book, func(o *Options) { o.Roots, o.Bounds = h.roots, Bounds{Inspect: 2} })
	get := func(host, path string) []byte {
		return []byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	}
	s.must(t, "hold", get("a.example", "/slow"), "a.example:80")
	s.must(t, "hold", get("a.example", "/slow"), "a.example:80")
	s.wait(t, "two", func(e Event) bool { return e.Kind == KindRequest && s.inspected() == 2 })
	if got, err := s.do("exchange", get("a.example", "/items/1"), "tcp", "a.example:80"); err == nil && len(got) > 0 {
		t.Errorf("%q", got)
	}
	s.denied(t, TCP, tooManyLooked)
	s.must(t, "drop", nil)
	s.wait(t, "the last end", func(e Event) bool { return e.Kind == KindEnd && s.inspected() == 0 })
	if got := s.must(t, "hold", get("a.example", "/items/1"), "a.example:80"); !strings.Contains(string(got), "200 OK") {
		t.Errorf("%q", got)
	}
}

func (s *sandbox) inspected() int {
	s.Gate.mu.Lock()
	defer s.Gate.mu.Unlock()
	return s.looked
}

// TestInspection_FollowsPolicyChange checks that a request ends when the policy no longer allows it in the same way,
// and a connection when its requests were not inspected and now must be.
func TestInspection_FollowsPolicyChange(t *testing.T) { overBoth(t, testInspectionFollowsPolicyChange) }

func testInspectionFollowsPolicyChange(t *testing.T, k kind) {
	t.Parallel()
	wide := items(t)
	wide.Allow = append(wide.Allow, httpRule(t, "lone.example:8080", nil))
	h := newWebHosts(t, Rules(wide), "a.example", "lone.example")
	h.names["lone.example"] = []netip.Addr{netip.MustParseAddr("93.184.216.35")}
	h.hosts[netip.MustParseAddrPort("93.184.216.35:8080")] = h.hosts[netip.MustParseAddrPort("93.184.216.34:80")]
	s, _ := h.web(t, k)
	get := func(host, path string) []byte {
		return []byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	}
	s.must(t, "hold", get("a.example", "/slow"), "a.example:80")
	s.must(t, "hold", get("a.example", "/items/1"), "a.example:80")
	s.must(t, "hold", get("lone.example", "/"), "lone.example:8080")
	s.wait(t, "the slow request", func(e Event) bool { return e.Kind == KindRequest && e.Path == "/slow" })
	// A request in progress ends when the rule that allowed it changes.
	s.wait(t, "the answer", func(e Event) bool { return e.Kind == KindAnswer && e.Path == "/items/1" })
	narrow := items(t)
	narrow.Allow[0].Paths = []string{"/items/*"}
	narrow.Allow = append(narrow.Allow,
		httpRule(t, "lone.example:8080", func(r *policy.Rule) { r.Methods = []string{"GET"} }))
	s.SetPolicy(Rules(narrow))
	for i, want := range []string{"0", "2"} {
		if got, err := s.do("rest", nil, want); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("connection %d did not end: %q %v", i, got, err)
		}
	}
	s.wait(t, "the end", func(e Event) bool {
		return e.Kind == KindEnd && e.Reason == "the policy was changed" && e.Name == "a.example"
	})
	s.wait(t, "the other end", func(e Event) bool {
		return e.Kind == KindEnd && e.Reason == "the policy was changed" && e.Name == "lone.example"
	})
	if got := s.must(t, "more", get("a.example", "/items/2"), "1"); len(got) == 0 {
		t.Error("a connection that is still allowed was cut")
	}
	// A request does not continue with limits that are no longer in force.
	s.SetPolicy(Rules(items(t)))
	s.must(t, "hold", get("a.example", "/slow"), "a.example:80")
	s.wait(t, "the next slow request",
		func(e Event) bool { return e.Kind == KindRequest && e.Path == "/slow" && e.Status == 0 })
	bounded := items(t)
	bounded.Allow[0].MaxBytes = 1 << 20
	s.SetPolicy(Rules(bounded))
	if got, err := s.do("rest", nil, "3"); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a request continues without its limit: %q %v", got, err)
	}
}

func pemFile(t testing.TB, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts.pem")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := pem.Encode(f, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		t.Fatal(err)
	}
	return file
}

// BenchmarkInspection makes sequential requests over one connection, by HTTP/2 with TLS, to a host that is inspected
// and to one that is not.
func BenchmarkInspection(b *testing.B) {
	h := newWebHosts(b, Rules(items(b)), "a.example", "b.example")
	s, ca := h.web(b, veth)
	for name, x := range map[string][2]string{"inspected": {ca, "https://a.example/items/1"},
		"spliced": {h.pem, "https://b.example/items/1"}} {
		b.Run(name, func(b *testing.B) {
			s.must(b, "https", nil, x[0], fmt.Sprint(b.N), x[1])
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
