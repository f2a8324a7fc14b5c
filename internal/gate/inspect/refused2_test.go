package inspect

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/policy"
)

// alone returns what was denied since the last call.
func (c *court) alone() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	denied := c.denied
	c.denied = nil
	return denied
}

func get2(more ...string) []string {
	return append([]string{":method: GET", ":scheme: https", ":authority: example.com", ":path: /echo"}, more...)
}

func post2(more ...string) []byte {
	return frame(frameHeaders, endHeaders, 1,
		head(append([]string{":method: POST", ":scheme: https", ":authority: example.com", ":path: /echo"}, more...)...))
}

// bomb encodes a 3,000-byte header times times, with one byte for each repetition (RFC 7541, 6.1).
func bomb(times int) []byte {
	b := head("x: " + strings.Repeat("y", 3000))
	b[0] = 0x40 // with incremental indexing, for the dynamic table
	return append(b, bytes.Repeat([]byte{0x80 | 62}, times)...)
}

// TestHTTP2_RecordsRefusalsOfNetHTTP checks that requests that net/http refuses before it calls the handler are
// reported as denials, with the request and the reason.
func TestHTTP2_RecordsRefusalsOfNetHTTP(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: all})
	one := func(lines ...string) [][]byte {
		return [][]byte{frame(frameHeaders, endStream|endHeaders, 1, head(lines...))}
	}
	if x := w.speak2(t, 1, one(get2()...)...); !x.ok {
		t.Fatalf("%+v", x)
	}
	if x := w.speak2(t, 1, post2("content-length: 4", "te: trailers"),
		frame(frameData, endStream, 1, []byte("abcd"))); !x.ok || x.data != "abcd" {
		t.Fatalf("%+v", x)
	}
	if denied := w.alone(); len(denied) > 0 {
		t.Fatalf("denials of requests that passed: %q", denied)
	}
	const of = "GET example.com/echo: "
	for what, x := range map[string]struct {
		say  [][]byte
		want string
	}{
		"two authorities":       {one(get2(":authority: other.example")...), of + errStream},
		"two paths":             {one(get2(":path: /secret")...), of + errStream},
		"no method":             {one(get2()[1:]...), " example.com/echo: " + errStream},
		"no path":               {one(get2()[:3]...), "GET example.com: " + errStream},
		"no scheme":             {one(":method: GET", ":authority: example.com", ":path: /echo"), of + errStream},
		"a pseudo-header later": {one(get2("x: a", ":path: /secret")...), of + errStream},
		"an unknown one":        {one(get2(":x: a")...), of + errStream},
		"a status":              {one(get2(":status: 200")...), of + errStream},
		"connect with a path": {one(":method: CONNECT", ":authority: example.com", ":path: /echo"),
			"CONNECT example.com/echo: " + errStream},
		"extended connect": {
			one(":method: CONNECT", ":protocol: websocket", ":scheme: https", ":authority: example.com", ":path: /echo"),
			"CONNECT example.com/echo: " + errStream},
		"a bad escape": {one(":method: GET", ":scheme: https", ":authority: example.com", ":path: /%zz"),
			"GET example.com/%zz: " + errStream},
		"a capital":          {one(get2("X-A: b")...), of + errStream},
		"a line in a header": {one(get2("x: a\r\nb")...), of + errStream},
		"chunks":             {one(get2("transfer-encoding: chunked")...), of + errConnection},
		"an upgrade":         {one(get2("upgrade: websocket")...), of + errConnection},
		"te":                 {one(get2("te: gzip")...), of + errConnection},
		"two te":             {one(get2("te: trailers", "te: trailers")...), of + errConnection},
		"a long head": {[][]byte{
			frame(frameHeaders, endStream, 1, head(get2("x: "+strings.Repeat("y", 12_000))...)),
			frame(frameContinuation, 0, 1, head("x: "+strings.Repeat("y", 12_000))),
			frame(frameContinuation, endHeaders, 1, head("x: "+strings.Repeat("y", 10_000))),
		}, of + string(errLong)},
		"a long head of few bytes": {
			[][]byte{frame(frameHeaders, endStream|endHeaders, 1, append(head(get2()...), bomb(20)...))}, of + string(errLong)},
		"an endless head": {[][]byte{
			frame(frameHeaders, 0, 1, head(get2("x: "+strings.Repeat("y", 16_000))...)),
			frame(frameContinuation, 0, 1, head("x: "+strings.Repeat("y", 16_000))),
			frame(frameContinuation, 0, 1, head("x: "+strings.Repeat("y", 16_000))),
		}, of + errAway},
		"a long body": {[][]byte{post2("content-length: 4"), frame(frameData, endStream, 1, []byte("abcdef"))},
			"POST example.com/echo: " + errStream},
		"a short body": {[][]byte{post2("content-length: 4"), frame(frameData, endStream, 1, []byte("ab"))},
			"POST example.com/echo: " + errShort},
		"a body of no length": {[][]byte{post2("content-length: abc"), frame(frameData, endStream, 1, []byte("ab"))},
			"POST example.com/echo: " + errStream},
		"bad trailers": {
			[][]byte{post2("trailer: x"), frame(frameHeaders, endStream|endHeaders, 1, head("content-length: 4"))},
			"POST example.com/echo: " + errStream},
		"trailers with a path": {[][]byte{post2(), frame(frameHeaders, endStream|endHeaders, 1, head(":path: /secret"))},
			"POST example.com/echo: " + errStream},
		"an even stream":        {[][]byte{frame(frameHeaders, endStream|endHeaders, 2, head(get2()...))}, errAway},
		"a stream that is idle": {[][]byte{frame(frameData, endStream, 9, []byte("a"))}, errAway},
		"a frame that is long": {[][]byte{frame(frameData, endStream, 1, make([]byte, limit.FrameBytes+1))},
			string(errFrames)},
		"no HPACK": {
			[][]byte{frame(frameHeaders, endStream|endHeaders, 1,
				[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})}, string(errHPACK)},
		"padding beyond a head": {
			[][]byte{frame(frameHeaders, endStream|endHeaders|8, 1, append([]byte{200}, head(get2()...)...))},
			string(errFrames)},
		"a continuation": {[][]byte{frame(frameContinuation, endHeaders, 1, head(get2()...))}, errAway},
		"a head in a head": {
			[][]byte{frame(frameHeaders, 0, 1, head(get2()...)), frame(frameHeaders, endStream|endHeaders, 3, head(get2()...))},
			of + errAway},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := way(t, srv, roots, &court{allow: all})
			got := w.speak2(t, 1, x.say...)
			if got.ok && got.resets == 0 && got.err == nil && got.data != "" {
				t.Errorf("passed: %+v", got)
			}
			if what == "a body of no length" && got.ok && got.resets == 0 {
				return // it counts as empty, so the request may be answered before the body arrives
			}
			if denied := w.alone(); len(denied) != 1 || !strings.Contains(denied[0], x.want) {
				t.Errorf("denied %q, want one of %q", denied, x.want)
			}
		})
	}
}

// TestHTTP2_RecordsOtherProtocol covers a client that negotiates HTTP/2 by ALPN and speaks another protocol: that is
// recorded as an invalid request.
func TestHTTP2_RecordsOtherProtocol(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: all})
	c, err := net.Dial("tcp", w.at)
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	s := tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "example.com", NextProtos: []string{"h2"}})
	_, err = io.WriteString(s, "GET /echo HTTP/1.1\r\nHost: example.com\r\n\r\n")
	must(t, err)
	if b, _ := io.ReadAll(s); strings.Contains(string(b), "200") {
		t.Errorf("%q", b)
	}
	w.has(t, string(errPreface))
}

// TestHTTP2_RecordsStreamsBeyondTheBound checks that each stream beyond the limit of concurrent streams is denied.
func TestHTTP2_RecordsStreamsBeyondTheBound(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: all})
	var say [][]byte
	for i := range uint32(limit.Streams + 1) {
		say = append(say,
			frame(frameHeaders, endStream|endHeaders, 2*i+1,
				head(":method: GET", ":scheme: https", ":authority: example.com", fmt.Sprintf(":path: /slow?%d", i))))
	}
	if x := w.speak2(t, 2*limit.Streams+1, say...); x.resets == 0 {
		t.Errorf("%+v", x)
	}
	if denied := w.alone(); len(denied) != 1 ||
		!strings.Contains(denied[0], "GET example.com/slow: the HTTP/2 stream was reset: REFUSED_STREAM") {
		t.Errorf("denied %q", denied)
	}
}

// TestHTTP2_RecordsARefusalOnce checks that the rest of a body after the answer is not another denial.
func TestHTTP2_RecordsARefusalOnce(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: func(Request) bool { return false }})
	say := [][]byte{post2()}
	for range 100 {
		say = append(say, frame(frameData, 0, 1, []byte("more")))
	}
	say = append(say, frame(frameHeaders, endStream|endHeaders, 3, head(get2()...)))
	w.speak2(t, 3, say...)
	if denied := w.alone(); len(denied) != 2 {
		t.Errorf("denied %q", denied)
	}
}

// hoarder is a server that reads no bodies, and buffers little: the window that each stream has before the server's
// settings arrive. With less, it would refuse what was sent before that.
func hoarder(t *testing.T) *world {
	srv := httptest.NewUnstartedServer(
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	srv.EnableHTTP2 = true
	srv.Config.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return way(t, srv, trusting(srv), &court{allow: all})
}

// body2 returns size bytes of a stream's body, in DATA frames.
func body2(stream uint32, size int) (frames [][]byte) {
	for ; size > 0; size -= limit.FrameBytes {
		frames = append(frames, frame(frameData, 0, stream, make([]byte, min(size, limit.FrameBytes))))
	}
	return frames
}

func TestHTTP2_BoundsBodyBuffer(t *testing.T) {
	t.Parallel()
	w := hoarder(t)
	say := append([][]byte{post2()}, body2(1, 2*limit.StreamBuffer)...)
	if x := w.speak2(t, 1, say...); x.resets == 0 {
		t.Errorf("%+v", x)
	}
	w.has(t, "POST example.com/echo: "+errStream+"FLOW_CONTROL_ERROR")
}

func TestHTTP2_BoundsAllBodyBuffers(t *testing.T) {
	t.Parallel()
	w := hoarder(t)
	var say [][]byte
	const each = limit.StreamBuffer / 2
	last := uint32(1)
	for said := 0; said < 4*limit.StreamsBuffer; said += each {
		h := post2()
		h[8] = byte(last)
		say = append(append(say, h), body2(last, each)...)
		last += 2
	}
	// It depends on how much of the others was forwarded which stream is refused.
	if x := w.speak2(t, 0, say...); x.resets == 0 {
		t.Errorf("%+v", x)
	}
	w.has(t, "POST example.com/echo: "+errStream+"FLOW_CONTROL_ERROR")
}

// heads feeds data from a sandbox to a watched connection without answering it, and returns the error that ends the
// reads.
func heads(t *testing.T, c *court, say ...[]byte) error {
	inside, gate := net.Pipe()
	defer inside.Close()
	go func() {
		_, _ = inside.Write(bytes.Join(append([][]byte{[]byte(clientPreface)}, say...), nil))
		_ = inside.Close()
	}()
	host := func(s string) policy.Host { return name(t, s) }
	_, err := io.Copy(io.Discard, newWatched(gate, host, c.Deny))
	return err
}

func TestHTTP2_BoundsUnansweredHeads(t *testing.T) {
	t.Parallel()
	var say [][]byte
	for i := range uint32(limit.UnansweredHeads) {
		say = append(say, frame(frameHeaders, endStream|endHeaders, 2*i+1, head(get2()...)))
	}
	judge := &court{}
	if err := heads(t, judge, say...); err != nil || len(judge.alone()) > 0 {
		t.Errorf("at the limit: %v", err)
	}
	say = append(say, frame(frameHeaders, endStream|endHeaders, 2*limit.UnansweredHeads+1, head(get2()...)))
	if err := heads(t, judge, say...); !errors.Is(err, errMany) {
		t.Errorf("beyond the limit: %v", err)
	}
	judge.has(t, string(errMany))
}

func TestHTTP2_TruncatesRecordedPath(t *testing.T) {
	t.Parallel()
	judge := &court{}
	long := strings.Repeat("a", 2*limit.ToldPath)
	_ = heads(t, judge,
		frame(frameHeaders, endStream|endHeaders, 1,
			head(":method: GET", ":scheme: https", ":authority: example.com", ":path: /"+long, "upgrade: h2c")))
	if denied := judge.alone(); len(denied) != 1 ||
		denied[0] != "GET example.com/"+long[:limit.ToldPath-1]+": "+errConnection {
		t.Errorf("denied %q", denied)
	}
}
