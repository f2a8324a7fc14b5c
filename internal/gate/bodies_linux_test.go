//go:build linux && (amd64 || arm64)

package gate

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/limit"
)

// newLogin returns a sandbox whose grant key is for bodies of requests to /login/, and the bodies that arrive.
func newLogin(t *testing.T, mode string) (*granting, chan string) {
	t.Helper()
	g := newGranting(t, func(name string, i *grant.Item) {
		if name == "key" {
			at := grant.SiteItem{In: "json", Pointer: "/auth/token", Methods: []string{"POST"}, Paths: []string{"/login/*"}}
			form := at
			form.In, form.Pointer, form.Name = "form", "", "token"
			i.Sites, i.Mode = []grant.SiteItem{at, form}, mode
		}
	})
	return g, g.bodies()
}

// bodies has the server tell the bodies that arrive, with their lengths in the head.
func (g *granting) bodies() chan string {
	got := make(chan string, 100)
	g.mux.HandleFunc("/login/", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if got <- fmt.Sprintf("%d %s", r.ContentLength, b); err != nil {
			panic(http.ErrAbortHandler) // so net/http ends the connection
		}
		_, _ = w.Write(b)
	})
	return got
}

// TestGrants_PutValuesIntoBodies checks what arrives, over both versions of HTTP, with and without a length.
func TestGrants_PutValuesIntoBodies(t *testing.T) {
	t.Parallel()
	g, got := newLogin(t, "")
	const json, form = "Content-Type: application/json", "Content-Type: application/x-www-form-urlencoded"
	long := strings.Repeat("x", 100_000)
	for _, x := range []struct{ kind, path, body, want string }{
		{json, "/login/", ` {"auth": {"token" : "P" } }`, ` {"auth": {"token" : "V" } }`},
		{json, "/login/x", `{"other":"P","auth":{"token":"P"}}`, `{"other":"P","auth":{"token":"V"}}`},
		{json, "/login/", `{"auth":{"token":"P"},"x":"` + long + `"}`, `{"auth":{"token":"V"},"x":"` + long + `"}`},
		{json, "/login/", `{"auth":{"token":"P x"}}`, `{"auth":{"token":"P x"}}`},
		{json, "/elsewhere/login", `{"auth":{"token":"P"}}`, ""},
		{form, "/login/", "a=P&token=P", "a=P&token=V"},
		{"Content-Type: text/plain", "/login/", "token=P", "token=P"},
	} {
		fill := strings.NewReplacer(`"P`, `"`+placeholder2, `=P`, `=`+placeholder2, `"V`, `"`+secretKey, `=V`, `=`+secretKey)
		for _, flags := range [][]string{{"--http1.1"}, {"--http2"}, {"--http1.1", "-H", "Transfer-Encoding: chunked"},
			{"--http1.1", "-H", "Expect: 100-continue"}} {
			out := g.curl(append([]string{"https://key.example" + x.path, "-H", x.kind, "--data-binary", fill.Replace(x.body),
				"-w", "%{http_code}"}, flags...)...)
			if !strings.HasSuffix(out, "200") {
				t.Errorf("%s, %q: %s", x.path, flags, out)
				continue
			}
			if g.clean(out); x.want == "" {
				continue
			}
			want := fill.Replace(x.want)
			length := len(want)
			if strings.Contains(strings.Join(flags, " "), "chunked") && x.kind == "Content-Type: text/plain" {
				length = -1 // nothing was read ahead
			}
			if b := <-got; b != fmt.Sprintf("%d %s", length, want) {
				t.Errorf("%s, %q: %.200s, want %d %.200s", x.path, flags, b, length, want)
			}
		}
	}
}

// TestGrants_RefuseBodies checks bodies that cannot be searched, each with its reason in the answer and the journal.
func TestGrants_RefuseBodies(t *testing.T) {
	t.Parallel()
	g, got := newLogin(t, "require")
	file := func(b string) string {
		name := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(name, []byte(b), 0o644); err != nil {
			t.Fatal(err)
		}
		return "@" + name
	}
	const json = "Content-Type: application/json"
	good := `{"auth":{"token":"` + placeholder2 + `"}}`
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"-H", json, "-d", `{"auth":{}}`}, "the request requires the placeholder of grant key"},
		{[]string{"-H", "Content-Type: text/plain", "-d", good}, "the request requires the placeholder of grant key"},
		{[]string{"-H", json, "-X", "POST"}, "the request requires the placeholder of grant key"},
		{[]string{"-H", json, "-d", good + "x"}, "not valid JSON"},
		{[]string{"-H", json, "-d", `{"auth":1,` + good[1:]}, "has a member twice"},
		{[]string{"-H", json, "-d", good, "-H", "Content-Encoding: gzip"}, "compressed"},
		{[]string{"-H", json, "-d", good, "-H", json}, ""},
		{[]string{"-H", json, "-H", "Expect:", "-d", file(good + strings.Repeat(" ", limit.SecretBody))}, "longer than 1 MiB"},
		{[]string{"-H", json, "-H", "Expect:", "-H", "Transfer-Encoding: chunked", "--http1.1", "-d",
			file(good + strings.Repeat(" ", limit.SecretBody))}, "longer than 1 MiB"},
	} {
		out := g.curl(append([]string{"https://key.example/login/", "-w", "%{http_code}"}, x.args...)...)
		if x.want == "" {
			if !strings.HasSuffix(out, "403") && !strings.HasSuffix(out, "200") {
				t.Errorf("%q: %s", x.args, out)
			}
			continue
		}
		if e := g.denied(t, TCP, x.want); e.Status < 400 || strings.HasSuffix(out, "200") {
			t.Errorf("%q: %+v; %s", x.args, e, out)
		}
		g.clean(out)
	}
	for len(got) > 0 {
		if b := <-got; !strings.Contains(b, secretKey) {
			t.Errorf("a body without the value arrived: %.200s", b)
		}
	}
}

// TestGrants_BoundHeldBodies checks that requests are refused while the gate holds too many bodies, and not afterwards.
func TestGrants_BoundHeldBodies(t *testing.T) {
	t.Parallel()
	g, got := newLogin(t, "")
	if !g.Gate.bodies.TryAcquire(limit.HeldBodies - 100) {
		t.Fatal("bodies are held")
	}
	send := func(n int) string {
		return g.curl("https://key.example/login/", "-H", "Content-Type: application/json", "-d",
			`{"auth":{"token":"`+placeholder2+`"},"x":"`+strings.Repeat("x", n)+`"}`, "-w", "%{http_code}")
	}
	if out := send(100); !strings.HasSuffix(out, "503") || !strings.Contains(out, "too many requests") {
		t.Errorf("%s", out)
	}
	g.denied(t, TCP, "holds the bodies of too many requests")
	for range 3 { // each gives back what it held
		if out := send(1); !strings.HasSuffix(out, "200") || !strings.Contains(<-got, secretKey) {
			t.Errorf("%s", out)
		}
	}
	g.Gate.bodies.Release(limit.HeldBodies - 100)
	if out := send(100); !strings.HasSuffix(out, "200") {
		t.Errorf("%s", out)
	}
}

// TestGrants_ReleaseHeldBodies checks that the gate releases bodies that never end, and those whose grant is revoked.
func TestGrants_ReleaseHeldBodies(t *testing.T) {
	t.Parallel()
	g, _ := newLogin(t, "")
	none := func() bool {
		if !g.Gate.bodies.TryAcquire(limit.HeldBodies) {
			return false
		}
		g.Gate.bodies.Release(limit.HeldBodies)
		return true
	}
	part := func(most string, flags ...string) {
		g.clean(g.curl(append(flags, "https://key.example/login/", "-H", "Content-Type: application/json", "-H", "Expect:",
			"-H", "Content-Length: 100000", "-d", "{", "--max-time", most)...))
	}
	part("1", "--http1.1")
	part("1", "--http2")
	done := make(chan struct{})
	go func() {
		defer close(done)
		part("60", "--http1.1")
	}()
	await(t, "a body is held", func() bool { return !none() })
	g.give(nil, nil)
	<-done
	await(t, "no body is held", none)
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
