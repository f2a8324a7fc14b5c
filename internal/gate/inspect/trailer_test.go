package inspect

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// trailed is a server that answers which trailers were announced and received.
func trailed(t *testing.T, h2 bool) *httptest.Server {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d bytes, %v, trailers %d, header %q", n, err, len(r.Trailer), r.Header["Trailer"])
	}))
	srv.EnableHTTP2 = h2
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// TestRequestTrailers_AreInspected checks that trailers are inspected whether they were announced or not, and are not
// forwarded.
func TestRequestTrailers_AreInspected(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			t.Parallel()
			srv := trailed(t, h2)
			judge := &court{allow: all}
			w := way(t, srv, trusting(srv), judge)
			send := func(trailer http.Header) (int, string) {
				// The length of the body is unknown until its end.
				req, err := http.NewRequest("POST", "https://example.com/", io.MultiReader(strings.NewReader("body")))
				must(t, err)
				req.Trailer = trailer
				return ask(t, w.client(t, h2), req)
			}
			for _, trailer := range []http.Header{nil, {"X-Sum": {"1", "2"}}} {
				if code, got := send(trailer); code != 200 || got != `4 bytes, <nil>, trailers 0, header []` {
					t.Errorf("%v: %d %s", trailer, code, got)
				}
			}
			if code, got := send(http.Header{"X-Sum": {"1"}, "X-Bad": {"yes"}}); code != 403 ||
				!strings.Contains(got, "reason: a bad trailer\n") {
				t.Errorf("%d %s", code, got)
			}
			judge.has(t, "POST example.com/: a bad trailer")
			judge.mu.Lock()
			defer judge.mu.Unlock()
			if want := "[map[X-Sum:[1 2]] map[X-Bad:[yes] X-Sum:[1]]]"; fmt.Sprint(judge.trailers) != want {
				t.Errorf("inspected %v, want %s", judge.trailers, want)
			}
		})
	}
	t.Run("nobody announced them", func(t *testing.T) {
		t.Parallel()
		srv := trailed(t, false)
		w := way(t, srv, trusting(srv), &court{allow: all})
		const head = "POST / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\nTransfer-Encoding: " +
			"chunked\r\n\r\n4\r\nbody\r\n0\r\n"
		if got := w.raw(t, head+"X-Sum: 1\r\n\r\n"); !strings.Contains(got, "4 bytes, <nil>, trailers 0, header []") {
			t.Errorf("%q", got)
		}
		if got := w.raw(t, head+"X-Sum: 1\r\nX-Bad: yes\r\n\r\n"); !strings.Contains(got, "403 Forbidden") ||
			!strings.Contains(got, "reason: a bad trailer\n") {
			t.Errorf("%q", got)
		}
		w.has(t, "a bad trailer")
	})
}
