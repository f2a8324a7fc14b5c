package httpapi_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// FuzzConditions sends arbitrary conditional headers with reads and writes of a file. The answer must be a part
// of the file, or an error with a reason.
func FuzzConditions(f *testing.F) {
	for _, s := range [][4]string{
		{"bytes=0-3", `"one"`, "*", `"one"`}, {"bytes=-5,3-", "*", "", "x"}, {"bytes=9-1", `W/"one"`, "one", ""},
		{"bytes=0-,0-,0-,0-,0-,0-,0-,0-", "a,b", "**", ""},
		{"bytes=99999999999999999999-", "", "", "Thu, 01 Jan 1970 00:00:00 GMT"}, {"lines=1-2", "\x00", "\x00", "\x00"},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	const text = "the bytes of a file"
	h := owned(httpapi.Options{Roles: roles(&fake{text: text})})
	f.Fuzz(func(t *testing.T, ranges, match, none, ifRange string) {
		for _, method := range []string{"GET", "HEAD", "PUT"} {
			r := httptest.NewRequest(method, "/v1/sandboxes/box/files?path=/f", strings.NewReader("new"))
			r.Header["Range"], r.Header["If-Match"], r.Header["If-None-Match"], r.Header["If-Range"] = []string{ranges},
				[]string{match}, []string{none}, []string{ifRange}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			switch w.Code {
			case http.StatusOK, http.StatusNotModified, http.StatusRequestedRangeNotSatisfiable, http.StatusPreconditionFailed,
				http.StatusMethodNotAllowed, http.StatusNotFound:
			case http.StatusPartialContent:
				if b := w.Body.String(); !strings.HasPrefix(w.Header().Get("Content-Type"), "multipart/") &&
					!strings.Contains(text, b) || len(b) > 4<<10 {
					t.Errorf("%q: %q", ranges, b)
				}
			case http.StatusBadRequest:
				if !strings.Contains(w.Body.String(), `"hint"`) {
					t.Errorf("%s", w.Body)
				}
			default:
				t.Errorf("%s: %d %s", method, w.Code, w.Body)
			}
		}
	})
}

// FuzzFirstFrame sends arbitrary first bytes on an exec connection. The stream must end with an error frame, or
// with nothing.
func FuzzFirstFrame(f *testing.F) {
	var good strings.Builder
	_ = wire.WriteJSON(&good, wire.FrameRequest, wire.ExecRequest{Cmd: []string{"true"}})
	for _, s := range []string{"", "\x00", good.String(), good.String()[:7], "\xff\xff\xff\xff\xff",
		"\x01\x00\x00\x00\x02{}", "\x01\x00\x00\x00\x04null", "\x02\x00\x00\x00\x00"} {
		f.Add([]byte(s))
	}
	ln := listen(f)
	srv := &http.Server{Handler: owned(httpapi.Options{Roles: roles(&fake{})})}
	go srv.Serve(ln)
	f.Cleanup(func() { srv.Close() })
	f.Fuzz(func(t *testing.T, first []byte) {
		c, err := net.Dial("unix", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn := c.(*net.UnixConn)
		defer conn.Close()
		if _, err := io.WriteString(conn,
			"POST /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: coppice-frames\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(first) // the server may have answered and closed already
		_ = conn.CloseWrite()
		b, _ := io.ReadAll(conn)
		head, frames, ok := strings.Cut(string(b), "\r\n\r\n")
		if !ok || !strings.HasPrefix(head, "HTTP/1.1 101 ") {
			t.Fatalf("%q", b)
		}
		for r := strings.NewReader(frames); r.Len() > 0; {
			kind, _, err := wire.ReadFrame(r, nil)
			if err != nil || kind != wire.FrameFailed && kind != wire.FrameExit {
				t.Fatalf("%q: frame %d, %v", frames, kind, err)
			}
		}
	})
}
