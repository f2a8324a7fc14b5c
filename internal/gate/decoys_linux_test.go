//go:build linux && (amd64 || arm64)

package gate

import (
	"encoding/base64"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/decoy"
)

const (
	tokenA = "Ab3dEf9hIjKlMn0pQrStUvWxYz01"
	tokenB = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzREAL0042"
)

var ofDecoys = []decoy.Token{{Path: "/h/.netrc", Text: tokenA}, {Path: "/h/.aws/credentials", Text: tokenB}}

// caught waits for the denial of a token of the decoy at path, with a reason.
func (s *sandbox) caught(t *testing.T, what, path, reason string, proto Proto) Event {
	t.Helper()
	e := s.wait(t, what, func(e Event) bool {
		return e.Kind == KindDecoy && e.Decoy == path && e.Reason == reason && e.Proto == proto
	})
	if e.Verdict != Deny {
		t.Errorf("%s: %+v", what, e)
	}
	return e
}

// TestHoneytoken_IsBlocked sends tokens over a plain connection in pieces of any size, in a datagram and in a name.
// Traffic without a token passes.
func TestHoneytoken_IsBlocked(t *testing.T) { overBoth(t, testHoneytokenIsBlocked) }

func testHoneytokenIsBlocked(t *testing.T, k kind) {
	t.Parallel()
	var mu sync.Mutex
	var seen []byte
	addr := listen(t, func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			mu.Lock()
			seen = append(seen, buf[:n]...)
			mu.Unlock()
			if err != nil {
				c.Close()
				return
			}
			_, _ = c.Write([]byte("got it\n"))
		}
	})
	at := netip.MustParseAddr("93.184.216.34")
	names := func(r Request) Decision {
		if r.Host.String() == "a.example" || strings.HasSuffix(r.Host.String(), ".b.example") {
			return Decision{Verdict: Allow, Rule: "r"}
		}
		return Decision{Verdict: Deny}
	}
	b := &book{decide: names, names: map[string][]netip.Addr{"a.example": {at}}, ttl: time.Minute,
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(at, 25): addr}}
	s := start(t, k, b, func(o *Options) { o.Tokens = ofDecoys })
	for _, size := range []string{"1", "7", "1000"} {
		// The server may have answered the bytes before the token.
		_, _ = s.do("pieces", []byte("HELO "+strings.Repeat("x", 500)+" PASS "+tokenA+"\r\nmore"), "a.example:25", size)
		e := s.caught(t, "in pieces of "+size, "/h/.netrc", DecoySent, TCP)
		if e.Name != "a.example" || e.Port != 25 {
			t.Errorf("%+v", e)
		}
	}
	if got, err := s.do("pieces", []byte("Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("me:"+tokenB))),
		"a.example:25", "64"); err == nil && len(got) > 100 {
		t.Errorf("%q", got)
	}
	s.caught(t, "in base64", "/h/.aws/credentials", DecoySent, TCP)
	mu.Lock()
	if strings.Contains(string(seen), tokenA) || strings.Contains(string(seen), tokenA[:decoy.Piece+4]) ||
		strings.Contains(string(seen), "more") {
		t.Errorf("it arrived: %q", seen)
	}
	mu.Unlock()
	for _, name := range []string{tokenA + ".b.example", tokenA[:14] + "." + tokenA[14:] + ".b.example",
		strings.ToUpper(tokenA) + ".denied.example"} {
		if out, err := s.do("look", nil, name); err == nil {
			t.Errorf("%s: %q", name, out)
		}
		if e := s.caught(t, name, "/h/.netrc", DecoyAsked, DNS); e.Rule != "" {
			t.Errorf("%+v", e)
		}
	}
	for _, name := range b.sought() {
		if strings.Contains(strings.ToLower(name), "ab3d") {
			t.Errorf("%s was looked up outside", name)
		}
	}
}

// TestHoneytoken_InRequestIsBlocked sends tokens in the path, the query, a header and the body, with both versions of
// HTTP.
func TestHoneytoken_InRequestIsBlocked(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	h := newWebHosts(t, Rules(items(t)), "a.example", "b.example")
	s := start(t, veth, h.book, func(o *Options) { o.Roots, o.Tokens = h.roots, ofDecoys })
	pem, err := s.CA()
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem, 0o644); err != nil {
		t.Fatal(err)
	}
	escaped := strings.NewReplacer("/", "%2f", "+", "%2B").Replace(tokenB)
	for name, args := range map[string][]string{
		"path":           {"https://a.example/items/" + tokenA},
		"query":          {"https://a.example/items/1?k=" + escaped},
		"header":         {"-H", "Authorization: Bearer " + tokenA, "https://a.example/items/1"},
		"basic":          {"-u", "me:" + tokenB, "https://a.example/items/1"},
		"body":           {"-d", "k=" + strings.Repeat("x", 5000) + tokenB, "https://a.example/items/1"},
		"escaped body":   {"-d", "k=" + escaped, "https://a.example/items/1"},
		"without TLS":    {"-d", tokenA, "http://a.example/items/1"},
		"denied request": {"-X", "DELETE", "-H", "X: " + tokenA, "https://a.example/items/1"},
	} {
		for _, version := range []string{"--http1.1", "--http2"} {
			if version == "--http2" && name == "without TLS" {
				continue
			}
			out, err := s.do("run", nil,
				append([]string{"curl", "-sS", "--max-time", "20", "--cacert", ca, version}, args...)...)
			if !strings.Contains(string(out), "reason: "+DecoySent) && err == nil {
				t.Errorf("%s, %s: %q, %v", name, version, out, err)
			}
		}
	}
	e := s.caught(t, "a request", "/h/.netrc", DecoySent, TCP)
	if e.Name != "a.example" || strings.Contains(e.Path, tokenA) {
		t.Errorf("%+v", e)
	}
	s.caught(t, "a request", "/h/.aws/credentials", DecoySent, TCP)
	if out := s.must(t, "run", nil, "curl", "-sS", "--cacert", ca, "-d", "hello",
		"https://a.example/items/1"); !strings.Contains(string(out), " POST a.example /items/1 5\n") {
		t.Errorf("a request without a token: %q", out)
	}
}

// TestHoneytoken_InDeniedRequestIsReported checks that a request that is denied under any policy is reported like any
// other request with a token.
func TestHoneytoken_InDeniedRequestIsReported(t *testing.T) {
	t.Parallel()
	h := newWebHosts(t, Rules(items(t)), "a.example")
	s := start(t, veth, h.book, func(o *Options) { o.Roots, o.Tokens = h.roots, ofDecoys })
	odd := "GET /items/" + tokenA +
		" HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nX-HTTP-Method-Override: DELETE\r\n\r\n"
	if out, err := s.do("pieces", []byte(odd), "a.example:80", "1000"); err != nil ||
		!strings.Contains(string(out), "403 Forbidden") {
		t.Errorf("%q, %v", out, err)
	}
	e := s.wait(t, "the denial", func(e Event) bool { return e.Method == "GET" && e.Kind != KindRequest })
	if e.Kind != KindDecoy || e.Decoy != "/h/.netrc" || strings.Contains(e.Path, tokenA) {
		t.Errorf("%+v", e)
	}
}

// TestHoneytoken_InTrailerIsBlocked sends tokens in the value and in the name of a trailer. The case of a trailer's
// name is lost, as of a header's.
func TestHoneytoken_InTrailerIsBlocked(t *testing.T) { overBoth(t, testHoneytokenInTrailerIsBlocked) }

func testHoneytokenInTrailerIsBlocked(t *testing.T, k kind) {
	t.Parallel()
	h := newWebHosts(t, Rules(items(t)), "a.example")
	s := start(t, k, h.book, func(o *Options) { o.Roots, o.Tokens = h.roots, ofDecoys })
	pem, err := s.CA()
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem, 0o644); err != nil {
		t.Fatal(err)
	}
	const at = "https://a.example/items/1"
	for _, version := range []string{"1", "2"} {
		for what, field := range map[string][2]string{
			"value": {"X-Sum", "sha1=" + tokenB}, "in base64": {"X-Sum", base64.StdEncoding.EncodeToString([]byte(tokenB))},
			"name": {"X-" + tokenA, "1"},
		} {
			out, err := s.do("trailer", []byte("hello"), ca, version, at, field[0], field[1])
			if err != nil || !strings.Contains(string(out), "reason: "+DecoySent) {
				t.Errorf("%s, HTTP/%s: %q, %v", what, version, out, err)
			}
		}
		if out, err := s.do("trailer", []byte("hello"), ca, version, at, "X-Sum", "1234"); err != nil ||
			!strings.Contains(string(out), " POST a.example /items/1 5\n") {
			t.Errorf("a request without a token, HTTP/%s: %q, %v", version, out, err)
		}
	}
	s.caught(t, "a trailer", "/h/.aws/credentials", DecoySent, TCP)
	s.caught(t, "the name of a trailer", "/h/.netrc", DecoySent, TCP)
	for what, text := range map[string]string{
		"unannounced trailer": "POST /items/1 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n0\r\nX: " + tokenA + "\r\n\r\n",
		"name of a header": "GET /items/1 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nX-" + tokenA + ": 1\r\n\r\n",
	} {
		if out, err := s.do("pieces", []byte(text), "a.example:80", "10"); err != nil ||
			!strings.Contains(string(out), "reason: "+DecoySent) {
			t.Errorf("%s: %q, %v", what, out, err)
		}
	}
}
