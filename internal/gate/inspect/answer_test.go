package inspect

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// talkative is a server that answers with n informational responses of size bytes each, and a trailer of as many bytes
// as the query's trailer says.
func talkative(t *testing.T, h2 bool) *httptest.Server {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var n, size, trailer int
		if _, err := fmt.Sscanf(r.URL.RawQuery, "n=%d&size=%d&trailer=%d", &n, &size, &trailer); err != nil {
			t.Error(err)
		}
		for range n {
			w.Header().Set("Link", strings.Repeat("l", size))
			w.WriteHeader(http.StatusEarlyHints)
			if r.Context().Err() != nil {
				return // net/http may still be reading the headers
			}
		}
		w.Header().Del("Link")
		_, _ = io.WriteString(w, "body")
		_ = http.NewResponseController(w).Flush()
		if trailer > 0 {
			w.Header().Set(http.TrailerPrefix+"X-Long", strings.Repeat("t", trailer))
		}
	}))
	srv.EnableHTTP2 = h2
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// heard is what a client received of an answer.
type heard struct {
	code          int
	body          string
	hints, length int64 // informational responses, and bytes of their headers
	trailer       int
	err           error
}

// listen requests an answer from a talkative server.
func (w *world) listen(t *testing.T, h2 bool, n, size, trailer int) (x heard) {
	t.Helper()
	var hints, length atomic.Int64
	ctx := httptrace.WithClientTrace(t.Context(),
		&httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints.Add(1)
			length.Add(headSize(http.Header(h)))
			return nil
		}})
	req, err := http.NewRequestWithContext(ctx, "GET",
		fmt.Sprintf("https://example.com/?n=%d&size=%d&trailer=%d", n, size, trailer), nil)
	must(t, err)
	r, err := w.client(t, h2).Do(req)
	if x.err = err; err == nil {
		var b []byte
		b, x.err = io.ReadAll(r.Body)
		r.Body.Close()
		x.code, x.body, x.trailer = r.StatusCode, string(b), len(r.Trailer.Get("X-Long"))
	}
	x.hints, x.length = hints.Load(), length.Load()
	return x
}

func bothVersions(t *testing.T, test func(t *testing.T, h2 bool)) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			t.Parallel()
			test(t, h2)
		})
	}
}

func TestAnswer_CountsInformationalResponsesAndTrailers(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, h2 bool) {
		srv := talkative(t, h2)
		w := way(t, srv, trusting(srv), &court{allow: all})
		x := w.listen(t, h2, 10, 5000, 3000)
		if x.err != nil || x.code != 200 || x.body != "body" || x.hints != 10 || x.trailer != 3000 {
			t.Fatalf("got %d hints, a trailer of %d, %d %q, %v", x.hints, x.trailer, x.code, x.body, x.err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if got := x.length + int64(x.trailer+len(x.body)); w.in < got {
			t.Errorf("counted %d bytes of the %d that the client received", w.in, got)
		}
	})
}

// TestAnswer_EndsWhenInformationalExhaustBudget checks that a budget covers informational responses as well as the
// final response.
func TestAnswer_EndsWhenInformationalExhaustBudget(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, h2 bool) {
		srv := talkative(t, h2)
		w := way(t, srv, trusting(srv), &court{allow: all, mostIn: 12_000})
		if x := w.listen(t, h2, 10, 5000, 0); x.hints != 2 || x.body == "body" {
			t.Errorf("got %d hints, %d %q, %v", x.hints, x.code, x.body, x.err)
		}
		w.has(t, "used up")
	})
}

func TestAnswer_EndsWhenTrailersExhaustBudget(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, h2 bool) {
		srv := talkative(t, h2)
		w := way(t, srv, trusting(srv), &court{allow: all, mostIn: 2000})
		if x := w.listen(t, h2, 0, 0, 3000); x.err == nil || x.trailer != 0 {
			t.Errorf("got a trailer of %d, %v", x.trailer, x.err)
		}
		w.has(t, "used up")
	})
}

func TestAnswer_BoundsInformationalResponses(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, h2 bool) {
		srv := talkative(t, h2)
		w := way(t, srv, trusting(srv), &court{allow: all})
		if x := w.listen(t, h2, limit.Informational, 0, 0); x.err != nil || x.code != 200 || x.hints != limit.Informational {
			t.Errorf("at the limit: %d hints, %d, %v", x.hints, x.code, x.err)
		}
		if x := w.listen(t, h2, 5000, 0, 0); x.code != 502 || x.hints != limit.Informational {
			t.Errorf("5000 hints: got %d, %d, %v", x.hints, x.code, x.err)
		}
		w.has(t, "GET example.com/: "+errInformed)
	})
}

func TestAnswer_BoundsTheHeadersOfInformationalResponses(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, h2 bool) {
		srv := talkative(t, h2)
		w := way(t, srv, trusting(srv), &court{allow: all})
		const size = limit.InformationalBytes / 8
		if x := w.listen(t, h2, 10, size, 0); x.code != 502 || x.length > limit.InformationalBytes || x.hints != 7 {
			t.Errorf("got %d hints of %d bytes, %d, %v", x.hints, x.length, x.code, x.err)
		}
		w.has(t, "GET example.com/: "+errInformed)
	})
}

// TestAnswer_BoundsTrailers uses HTTP/2, because net/http reads no trailers beyond 4 KiB with HTTP/1.
func TestAnswer_BoundsTrailers(t *testing.T) {
	t.Parallel()
	srv := talkative(t, true)
	w := way(t, srv, trusting(srv), &court{allow: all})
	if x := w.listen(t, true, 0, 0, limit.TrailerBytes-100); x.err != nil || x.trailer != limit.TrailerBytes-100 {
		t.Errorf("got a trailer of %d, %v", x.trailer, x.err)
	}
	if x := w.listen(t, true, 0, 0, limit.TrailerBytes); x.err == nil || x.trailer != 0 {
		t.Errorf("got a trailer of %d, %v", x.trailer, x.err)
	}
	w.has(t, "GET example.com/: "+errAfter)
}

// TestAnswer_BoundsItsHead checks that an answer with a head beyond the limit is not passed on.
func TestAnswer_BoundsItsHead(t *testing.T) {
	t.Parallel()
	bothVersions(t, func(t *testing.T, h2 bool) {
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 2*limit.HeadBytes))
		}))
		srv.EnableHTTP2 = h2
		srv.StartTLS()
		t.Cleanup(srv.Close)
		w := way(t, srv, trusting(srv), &court{allow: all})
		r, err := w.client(t, h2).Get("https://example.com/")
		if err == nil {
			r.Body.Close()
			t.Errorf("got status %d, %d bytes", r.StatusCode, len(r.Header.Get("X-Long")))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.court.ended) != 1 || !strings.Contains(w.court.ended[0], "no answer: ") {
			t.Errorf("recorded %q", w.court.ended)
		}
	})
}

// TestAnswer_KeepsHeadersOfResetStream covers a stream that the client resets while net/http writes an
// informational response: its headers must not change, since two goroutines that use one map end the process.
func TestAnswer_KeepsHeadersOfResetStream(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := range 400 {
			w.Header().Set(fmt.Sprintf("X-%d", i), "y")
		}
		for range limit.Informational / 2 {
			w.WriteHeader(http.StatusEarlyHints)
			if r.Context().Err() != nil {
				return
			}
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	w := way(t, srv, trusting(srv), &court{allow: all})
	c, err := tls.Dial("tcp", w.at, &tls.Config{RootCAs: w.roots, ServerName: "example.com", NextProtos: []string{"h2"}})
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	_, err = c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(frameSettings, 0, 0, nil)...))
	must(t, err)
	for stream := uint32(1); stream < 40; stream += 2 {
		_, err := c.Write(frame(frameHeaders, endStream|endHeaders, stream, head(get2()...)))
		must(t, err)
		for begun := false; !begun; {
			var h [9]byte
			_, err := io.ReadFull(c, h[:])
			must(t, err)
			_, err = io.CopyN(io.Discard, c, int64(h[0])<<16|int64(h[1])<<8|int64(h[2]))
			must(t, err)
			begun = h[3] == frameHeaders && binary.BigEndian.Uint32(h[5:]) == stream
		}
		_, err = c.Write(frame(frameReset, 0, stream, []byte{0, 0, 0, 8}))
		must(t, err)
	}
}
