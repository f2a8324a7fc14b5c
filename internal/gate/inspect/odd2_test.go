package inspect

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/limit"
)

// frame encodes an HTTP/2 frame (RFC 9113, 4.1).
func frame(kind, flags byte, stream uint32, body []byte) []byte {
	b := []byte{byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), body...)
}

const frameSettings, framePing = 4, 6

// head encodes headers without compression (RFC 7541, 6.2.2), each as "name: value".
func head(lines ...string) (b []byte) {
	text := func(s string) {
		if len(s) < 127 {
			b = append(b, byte(len(s)))
		} else {
			b = append(b, 127)
			n := len(s) - 127
			for ; n >= 128; n >>= 7 {
				b = append(b, byte(n)|128)
			}
			b = append(b, byte(n))
		}
		b = append(b, s...)
	}
	for _, l := range lines {
		i := strings.Index(l[1:], ": ") + 1
		b = append(b, 0)
		text(l[:i])
		text(l[i+2:])
	}
	return b
}

// told2 is what the client received until the stream or the connection ended.
type told2 struct {
	ok           bool // 200
	resets, away int
	data         string
	err          error
}

// speak2 sends raw HTTP/2 frames to w and returns the response on stream; 0 accepts any stream.
func (w *world) speak2(t testing.TB, stream uint32, frames ...[]byte) (x told2) {
	t.Helper()
	c, err := net.Dial("tcp", w.at)
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	s := tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "example.com", NextProtos: []string{"h2"}})
	must(t, s.Handshake())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		b := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(frameSettings, 0, 0, nil)...)
		for _, f := range append([][]byte{b}, frames...) {
			if _, err := s.Write(f); err != nil {
				return // the reason is in what was received before
			}
		}
	}()
	defer func() { c.Close(); <-sent }()
	for {
		var h [9]byte
		if _, x.err = io.ReadFull(s, h[:]); x.err != nil {
			return x
		}
		body := make([]byte, int(h[0])<<16|int(h[1])<<8|int(h[2]))
		if _, x.err = io.ReadFull(s, body); x.err != nil {
			return x
		}
		of := binary.BigEndian.Uint32(h[5:])
		switch {
		case h[3] == frameGoAway:
			x.away++
		case stream != 0 && of != stream:
		case h[3] == frameReset:
			x.resets++
			return x
		case h[3] == frameHeaders:
			x.ok = x.ok || body[0] == 0x88 // :status: 200
		case h[3] == frameData:
			x.data += string(body)
		}
		if of == stream && (h[3] == frameHeaders || h[3] == frameData) && h[4]&endStream != 0 {
			return x
		}
	}
}

// TestHTTP2_RefusesInvalidRequests covers what HTTP/2 allows and HTTP/1 does not, and requests that contradict
// themselves.
func TestHTTP2_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: func(q Request) bool {
		if q.Method == "CONNECT" || q.Host.String() != "example.com" || q.Path != "/echo" {
			t.Errorf("Begin was called for %+v", q)
		}
		return true
	}})
	get := []string{":method: GET", ":scheme: https", ":authority: example.com", ":path: /echo"}
	with := func(more ...string) []string { return append(append([]string(nil), get...), more...) }
	one := func(h []string) []byte { return frame(frameHeaders, endStream|endHeaders, 1, head(h...)) }
	if x := w.speak2(t, 1, one(get)); !x.ok {
		t.Fatalf("%+v", x)
	}
	for what, h := range map[string][]string{
		"connect":           {":method: CONNECT", ":authority: example.com:443"},
		"connect elsewhere": {":method: CONNECT", ":authority: other.example:443"},
		"extended connect": {":method: CONNECT", ":protocol: websocket", ":scheme: https", ":authority: example.com",
			":path: /echo"},
		"another authority": {":method: GET", ":scheme: https", ":authority: other.example", ":path: /echo"},
		"another host":      with("host: other.example"),
		"two hosts":         with("host: example.com", "host: other.example"),
		"only another host": {":method: GET", ":scheme: https", ":path: /echo", "host: other.example"},
		"two authorities":   with(":authority: other.example"),
		"two paths":         with(":path: /secret"),
		"two methods":       with(":method: DELETE"),
		"no authority":      {":method: GET", ":scheme: https", ":path: /echo"},
		"another port":      {":method: GET", ":scheme: https", ":authority: example.com:8443", ":path: /echo"},
		"a user name":       {":method: GET", ":scheme: https", ":authority: a@example.com", ":path: /echo"},
		"absolute": {":method: GET", ":scheme: https", ":authority: example.com",
			":path: https://other.example/echo"},
		"an authority in brackets": {":method: GET", ":scheme: https", ":authority: [example.com]:443", ":path: /echo"},
		"brackets without a port":  {":method: GET", ":scheme: https", ":authority: [example.com]", ":path: /echo"},
		"a space in the query":     {":method: GET", ":scheme: https", ":authority: example.com", ":path: /echo?a b"},
		"a fragment":               {":method: GET", ":scheme: https", ":authority: example.com", ":path: /echo?a#b"},
		"a non-ASCII query":        {":method: GET", ":scheme: https", ":authority: example.com", ":path: /echo?a=ä"},
		"a star":                   {":method: OPTIONS", ":scheme: https", ":authority: example.com", ":path: *"},
		"no path":                  {":method: GET", ":scheme: https", ":authority: example.com", ":path: "},
		"a line break in the path": {":method: GET", ":scheme: https", ":authority: example.com",
			":path: /echo HTTP/1.1\r\nHost: other.example"},
		"a line break in the method": {":method: GET / HTTP/1.1\r\nX: ", ":scheme: https", ":authority: example.com",
			":path: /echo"},
		"a line break in a header":      with("x: a\r\nx-http-method-override: DELETE"),
		"a late pseudo-header":          with("x: a", ":path: /secret"),
		"an upper-case name":            with("X-Http-Method-Override: DELETE"),
		"an override":                   with("x-http-method-override: DELETE"),
		"an override with _":            with("x_http_method_override: DELETE"),
		"chunks":                        with("transfer-encoding: chunked"),
		"an upgrade":                    with("connection: upgrade", "upgrade: websocket"),
		"an upgrade without connection": with("upgrade: h2c"),
	} {
		if x := w.speak2(t, 1, one(h)); x.ok {
			t.Errorf("%s: %+v", what, x)
		}
	}
	// A request with a body that is not as long as its Content-Length fails.
	for what, body := range map[string][]byte{"short": []byte("ab"), "long": []byte("abcdef")} {
		post := frame(frameHeaders, endHeaders, 1,
			head(":method: POST", ":scheme: https", ":authority: example.com", ":path: /echo", "content-length: 4"))
		if x := w.speak2(t, 1, post, frame(frameData, endStream, 1, body)); x.ok && x.resets == 0 &&
			strings.Contains(x.data, "ab") && x.err == nil {
			t.Errorf("a body that is too %s: %+v", what, x)
		}
	}
	// The size of a head is bounded.
	flood := [][]byte{frame(frameHeaders, 0, 1, head(get...))}
	for i := range 200 {
		flood = append(flood, frame(frameContinuation, 0, 1, head(fmt.Sprintf("x-%d: %s", i, strings.Repeat("y", 8000)))))
	}
	if x := w.speak2(t, 1, flood...); x.ok || x.away == 0 && x.err == nil {
		t.Errorf("an endless head: %+v", x)
	}
	if x := w.speak2(t, 1, one(with("x: "+strings.Repeat("y", 2*limit.Head2Bytes)))); x.ok {
		t.Errorf("a long head: %+v", x)
	}
}

// TestHTTP2_ResetFloodEndsConnection checks that opening and resetting streams costs the sandbox its connection, and
// affects no other.
func TestHTTP2_ResetFloodEndsConnection(t *testing.T) {
	t.Parallel()
	srv, roots := secure(t, true)
	w := way(t, srv, roots, &court{allow: all})
	get := head(":method: GET", ":scheme: https", ":authority: example.com", ":path: /slow")
	var all [][]byte
	for i := range uint32(2000) {
		all = append(all, frame(frameHeaders, endStream|endHeaders, 2*i+1, get),
			frame(frameReset, 0, 2*i+1, []byte{0, 0, 0, 8}))
	}
	all = append(all, frame(framePing, 0, 0, make([]byte, 8)), frame(frameGoAway, 0, 0, make([]byte, 8)))
	x := w.speak2(t, 1<<30, all...)
	var timeout net.Error
	if errors.As(x.err, &timeout) && timeout.Timeout() {
		t.Errorf("the connection did not end: %+v", x)
	}
	w.mu.Lock()
	ended := len(w.ended)
	w.mu.Unlock()
	if ended > 2000 {
		t.Errorf("%d requests", ended)
	}
	// More concurrent streams than are allowed.
	all = nil
	for i := range uint32(4 * limit.Streams) {
		all = append(all, frame(frameHeaders, endStream|endHeaders, 2*i+1, get))
	}
	if x := w.speak2(t, 2*(limit.Streams+10)+1, all...); x.resets == 0 && x.away == 0 {
		t.Errorf("one stream too many: %+v", x)
	}
}
