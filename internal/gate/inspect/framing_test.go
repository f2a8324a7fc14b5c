package inspect

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/limit"
)

// through feeds a stream in pieces and returns what may be forwarded.
func through(stream string, size int) (string, *framing, error) {
	f := &framing{}
	var out []byte
	for b := []byte(stream); len(b) > 0; {
		n := min(size, len(b))
		got, err := f.feed(b[:n])
		out = append(out, got...)
		if err != nil {
			return string(out), f, err
		}
		b = b[n:]
	}
	return string(out), f, nil
}

const host = "Host: a.example\r\n"

func TestFraming(t *testing.T) {
	t.Parallel()
	get := "GET / HTTP/1.1\r\n" + host + "\r\n"
	for name, x := range map[string]struct {
		stream string
		want   error
	}{
		"get":       {get, nil},
		"pipelined": {get + get + get, nil},
		"a length":  {"POST /x HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc" + get, nil},
		"no length": {"POST /x HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n" + get, nil},
		"chunks": {"POST /x HTTP/1.1\r\n" + host +
			"Transfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n" + get, nil},
		"trailers": {"POST /x HTTP/1.1\r\n" + host +
			"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n" + get, nil},
		"websocket": {"GET / HTTP/1.1\r\n" + host +
			"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00 whatever", nil},
		"old": {"GET / HTTP/1.0\r\n" + host + "\r\n", nil},
		"both lengths": {"POST / HTTP/1.1\r\n" + host +
			"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", errLengths},
		"two lengths":     {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", errLengths},
		"the same twice":  {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\n", errLengths},
		"a length list":   {"POST / HTTP/1.1\r\n" + host + "Content-Length: 3, 3\r\n\r\n", errLengths},
		"signed length":   {"POST / HTTP/1.1\r\n" + host + "Content-Length: +3\r\n\r\n", errLengths},
		"an empty length": {"POST / HTTP/1.1\r\n" + host + "Content-Length:\r\n\r\n", errLengths},
		"hexadecimal":     {"POST / HTTP/1.1\r\n" + host + "Content-Length: 0x3\r\n\r\n", errLengths},
		"identity":        {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: identity\r\n\r\n", errLengths},
		"gzip":            {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", errLengths},
		"two codings": {"POST / HTTP/1.1\r\n" + host +
			"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", errLengths},
		"a vertical tab":     {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\x0bchunked\r\n\r\n", errHead},
		"chunked in 1.0":     {"POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n", errLengths},
		"a space before :":   {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding : chunked\r\n\r\n", errHead},
		"a folded line":      {"GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n", errHead},
		"folded first line":  {"GET / HTTP/1.1\r\n X: a\r\n" + host + "\r\n", errHead},
		"bare LF":            {"GET / HTTP/1.1\n" + host + "\r\n", errHead},
		"LF alone":           {"GET / HTTP/1.1\r\nX: a\nHost: b.example\r\n\r\n", errHead},
		"bare CR":            {"GET / HTTP/1.1\r\nX: a\rHost: b.example\r\n\r\n", errHead},
		"NUL":                {"GET / HTTP/1.1\r\n" + host + "X: a\x00b\r\n\r\n", errHead},
		"empty lines before": {"\r\n\r\n" + get, errHead},
		"no colon":           {"GET / HTTP/1.1\r\n" + host + "X\r\n\r\n", errHead},
		"no version":         {"GET /\r\n" + host + "\r\n", errHead},
		"1.2":                {"GET / HTTP/1.2\r\n" + host + "\r\n", errHead},
		"2.0":                {"GET / HTTP/2.0\r\n" + host + "\r\n", errHead},
		"two spaces":         {"GET  / HTTP/1.1\r\n" + host + "\r\n", errHead},
		"tab after method":   {"GET\t/ HTTP/1.1\r\n" + host + "\r\n", errHead},
		"space in target":    {"GET /a b HTTP/1.1\r\n" + host + "\r\n", errHead},
		"no host":            {"GET / HTTP/1.1\r\n\r\n", errHost},
		"two hosts":          {"GET / HTTP/1.1\r\n" + host + host + "\r\n", errHost},
		"absolute":           {"GET http://b.example/ HTTP/1.1\r\n" + host + "\r\n", errTarget},
		"at":                 {"GET @b.example/ HTTP/1.1\r\n" + host + "\r\n", errTarget},
		"star":               {"OPTIONS * HTTP/1.1\r\n" + host + "\r\n", errTarget},
		"connect":            {"CONNECT b.example:443 HTTP/1.1\r\n" + host + "\r\n", errConnect},
		"preface":            {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", errH2C},
		"h2c":                {"GET / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", errUpgrade},
		"h2c settings":       {"GET / HTTP/1.1\r\n" + host + "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n", errH2C},
		"two upgrades":       {"GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nUpgrade: websocket\r\n\r\n", errUpgrade},
		"a list of upgrades": {"GET / HTTP/1.1\r\n" + host + "Upgrade: websocket, h2c\r\n\r\n", errUpgrade},
		"upgrade by POST":    {"POST / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\n\r\n", errUpgrade},
		"upgrade and more":   {"GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nContent-Length: 1\r\n\r\n", errUpgrade},
		"bad size":           {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nx\r\n", errChunk},
		"no size":            {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n\r\n", errChunk},
		"0x":                 {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0x1\r\n", errChunk},
		"a negative size":    {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n-1\r\n", errChunk},
		"an endless size": {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 99),
			errChunk},
		"a large size": {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
			errChunk},
		"an extension":    {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\n", errChunk},
		"LF after a size": {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\na\r\n", errChunk},
		"too much data":   {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", errChunk},
		"Host as a trailer": {"POST / HTTP/1.1\r\n" + host +
			"Transfer-Encoding: chunked\r\n\r\n0\r\nHost: b.example\r\n\r\n", errChunk},
		"a long head":  {"GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("a", limit.HeadBytes), errLong},
		"many headers": {"GET / HTTP/1.1\r\n" + host + strings.Repeat("X: a\r\n", limit.HeadFields) + "\r\n", errLong},
		"TLS":          {"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n", errHead},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			out, _, err := through(x.stream, size)
			if !errors.Is(err, x.want) {
				t.Errorf("%s, by %d: %v, want %v", name, size, err, x.want)
			}
			if x.want == nil && out != x.stream {
				t.Errorf("%s, by %d: %q", name, size, out)
			}
		}
	}
}

// FuzzFraming checks that net/http parses the output as the same requests, with the same bodies.
func FuzzFraming(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\n" + host + "\r\n",
		"POST /x HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n" + host + "\r\n",
		"POST /x HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\nGET / HTTP/1.0\r\n" +
			host + "\r\n",
		"GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nConnection: upgrade\r\n\r\nxyz",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		f.Add(s, 1)
		f.Add(s, 100)
	}
	f.Fuzz(func(t *testing.T, stream string, size int) {
		out, x, err := through(stream, max(1, size))
		whole, again, err2 := through(stream, len(stream)+1)
		if out != whole || (err == nil) != (err2 == nil) || x.heads != again.heads {
			t.Fatalf("in pieces: %q %v, at once: %q %v", out, err, whole, err2)
		}
		if !strings.HasPrefix(stream, out) {
			t.Fatalf("%q became %q", stream, out)
		}
		r := bufio.NewReader(strings.NewReader(out))
		for i := range x.heads {
			q, err := http.ReadRequest(r)
			if err != nil {
				return // net/http is stricter in some respects: it ends the connection
			}
			if len(q.Header["Content-Length"])+len(q.TransferEncoding) > 1 {
				t.Fatalf("%q: %+v", out, q)
			}
			if x.state == beyond && i == x.heads-1 {
				return
			}
			if _, err := io.Copy(io.Discard, q.Body); err != nil {
				if i < x.heads-1 {
					t.Fatalf("request %d of %d in %q: %v", i, x.heads, out, err)
				}
				return
			}
		}
		if rest, _ := io.ReadAll(r); x.state != beyond && len(bytes.TrimSpace(rest)) > 0 && x.state == inHead {
			t.Fatalf("%q is left of %q", rest, out)
		}
	})
}
