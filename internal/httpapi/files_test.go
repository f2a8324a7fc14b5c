package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// fakeFiles is a Files with one file that records its calls.
type fakeFiles struct {
	*fake
	text string
	err  error
	stop func(error)
}

func (f *fake) OpenFiles(_ context.Context, name string) (httpapi.Files, error) {
	f.did("openfiles", name)
	if f.err != nil {
		return nil, f.err
	}
	return &fakeFiles{fake: f, text: f.text, err: f.filesErr}, nil
}

func (f *fake) OpenPast(_ context.Context, name, ref string) (httpapi.PastFiles, error) {
	f.did("openpast", name, ref)
	return &fakeFiles{fake: f, text: "past", err: f.filesErr}, f.err
}

type body struct{ *strings.Reader }

func (body) Close() error { return nil }

func (f *fakeFiles) OnStop(fn func(error)) func() { f.stop = fn; return func() { f.stop = nil } }
func (f *fakeFiles) Begin(what string)            { f.did("begin", what) }
func (f *fakeFiles) Close() error                 { return nil }
func (f *fakeFiles) Open(p string) (wire.FileInfo, io.ReadSeekCloser, error) {
	f.did("open", []byte(p))
	return wire.FileInfo{Path: p, Mode: 0o640, Size: int64(len(f.text)), ETag: `"one"`},
		body{strings.NewReader(f.text)}, f.err
}
func (f *fakeFiles) Stat(p string, follow bool) (wire.FileInfo, error) {
	f.did("stat", p, follow)
	return wire.FileInfo{Path: p}, f.err
}
func (f *fakeFiles) List(_ context.Context, p string, depth int) (wire.FileList, error) {
	f.did("list", p, depth)
	return wire.FileList{Files: []wire.FileInfo{{Path: p}}}, f.err
}
func (f *fakeFiles) TarTo(_ context.Context, p string, w io.Writer) error {
	f.did("tarto", p)
	if p != "early" {
		_, _ = io.WriteString(w, "archive")
	}
	return f.err
}
func (f *fakeFiles) WriteFile(_ context.Context, p string, r io.Reader, opt wire.WriteOptions) (wire.FileInfo, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return wire.FileInfo{}, err
	}
	f.did("write", p, string(b), opt)
	return wire.FileInfo{Path: p, Size: int64(len(b)), ETag: `"two"`}, f.err
}
func (f *fakeFiles) Mkdir(p string, mode uint32, parents bool) error {
	f.did("mkdir", []byte(p), mode, parents)
	return f.err
}
func (f *fakeFiles) Remove(_ context.Context, p string, recursive bool) error {
	f.did("remove", p, recursive)
	return f.err
}
func (f *fakeFiles) Move(from, to string) error { f.did("move", from, to); return f.err }
func (f *fakeFiles) TarFrom(ctx context.Context, p string, r io.Reader) (wire.UnpackResult, error) {
	b, _ := io.ReadAll(r)
	f.did("tarfrom", p, string(b))
	if p == "stopped" { // while it waits for the client
		f.stop(fault.New(fault.Unavailable, "stopped"))
		return wire.UnpackResult{}, context.Cause(ctx)
	}
	return wire.UnpackResult{Files: 153}, f.err
}
func (f *fakeFiles) Watch(_ context.Context, p string, recursive bool, yield func(wire.FileEvent) error) error {
	f.did("watch", p, recursive)
	if f.err != nil && p == "early" {
		return f.err
	}
	_ = yield(wire.FileEvent{})
	_ = yield(wire.NewFileEvent(wire.FileCreated, "a\xff\nb"))
	return f.err
}
func (f *fakeFiles) Done(_ context.Context, label string) error { f.did("done", label); return nil }

// askFiles sends one request, and returns the answer and the calls that it caused.
func askFiles(
	t *testing.T, f *fake, method, target, text string, header ...string,
) (*httptest.ResponseRecorder, string) {
	t.Helper()
	f.mu.Lock()
	f.calls = nil
	f.mu.Unlock()
	r := httptest.NewRequest(method, "/v1/sandboxes/box/files"+target, strings.NewReader(text))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	owned(httpapi.Options{Roles: roles(f)}).ServeHTTP(w, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	return w, strings.Join(f.calls, "\n")
}

func TestFileRoutes(t *testing.T) {
	t.Parallel()
	f := &fake{text: "0123456789"}
	for _, c := range []struct {
		method, target, body string
		header               []string
		code                 int
		answer               string // a part of the body
		calls                []string
	}{
		{"GET", "?path=/a", "", nil, 200, "0123456789", []string{`open["L2E="]`}},
		{"GET", "?path=a%FF%0Ab", "", nil, 200, "0123456789", []string{`open["Yf8KYg=="]`}},
		{"GET", "?path=../../etc/passwd", "", nil, 200, "", []string{`open["Li4vLi4vZXRjL3Bhc3N3ZA=="]`}},
		{"GET", "?path=a", "", []string{"Range", "bytes=2-4"}, 206, "234", nil},
		{"GET", "?path=a", "", []string{"If-None-Match", `"one"`}, 304, "", nil},
		{"GET", "?path=a&at=HEAD~1", "", nil, 200, "past", []string{`openpast["box","HEAD~1"]`}},
		{"GET", "", "", nil, 400, `"kind":"invalid"`, nil},
		{"GET", "?path=a&path=b", "", nil, 400, `"hint"`, nil},
		{"GET", "?path=%zz", "", nil, 400, `"kind":"invalid"`, nil},
		{"PUT", "?path=/src/main.go", strings.Repeat("x", 1234), nil, 200, `"etag":"\"two\""`,
			[]string{`"/src/main.go"`, `done["write src/main.go"]`}},
		{"PUT", "?path=a&mode=4755", "x", []string{"If-Match", `"one"`}, 200, "",
			[]string{`{"Mode":2541,"Match":"\"one\"","New":false}`}},
		{"PUT", "?path=a", "x", []string{"If-None-Match", "*"}, 200, "", []string{`"New":true`}},
		{"PUT", "?path=a&mode=9", "x", nil, 400, `"hint"`, nil},
		{"PUT", "?path=a&mode=17777", "x", nil, 400, `"hint"`, nil},
		{"PUT", "?path=a", "x", []string{"If-Match", `"a", "b"`}, 400, `"hint"`, nil},
		{"PUT", "?path=a", "x", []string{"If-None-Match", `"a"`}, 400, `"hint"`, nil},
		{"DELETE", "?path=a&recursive=true", "", nil, 204, "", []string{`remove["a",true]`, `done["remove a"]`}},
		{"DELETE", "?path=a&recursive=maybe", "", nil, 400, "", nil},
		{"GET", "/stat?path=a&follow=true", "", nil, 200, `"path":"a"`, []string{`stat["a",true]`}},
		{"GET", "/list?path=a&depth=-1", "", nil, 200, `"files":[`, []string{`list["a",-1]`}},
		{"GET", "/list?path=a&depth=x", "", nil, 400, `"hint"`, nil},
		{"POST", "/mkdir", `{"path":"d","mode":448,"parents":true}`, nil, 201, `"path":"d"`,
			[]string{`mkdir["ZA==",448,true]`, `done["make directory d"]`}},
		{"POST", "/mkdir", `{"path":"?","raw":"/w=="}`, nil, 201, "", []string{`mkdir["/w==",0,false]`}},
		{"POST", "/mkdir", `{`, nil, 400, "", nil},
		{"POST", "/move", `{"from":"a","to":"b"}`, nil, 200, "", []string{`move["a","b"]`, `done["move a to b"]`}},
		{"GET", "/tar?path=src", "", nil, 200, "archive", []string{`tarto["src"]`}},
		{"GET", "/tar?path=src&at=good", "", nil, 200, "archive", []string{`openpast["box","good"]`}},
		{"PUT", "/tar?path=src", "tar", nil, 200, `"files":153`,
			[]string{`tarfrom["src","tar"]`, `done["unpack 153 files into src"]`}},
		{"GET", "/watch?path=/&recursive=true", "", nil, 200, "event: created\ndata: {", []string{`watch["/",true]`}},
	} {
		w, calls := askFiles(t, f, c.method, c.target, c.body, c.header...)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.answer) {
			t.Errorf("%s %s: %d %q: want %d %q", c.method, c.target, w.Code, w.Body, c.code, c.answer)
		}
		for _, want := range c.calls {
			if !strings.Contains(calls, want) {
				t.Errorf("%s %s called\n%s\nwant %s", c.method, c.target, calls, want)
			}
		}
		if c.code == 400 && strings.Contains(calls, "openfiles") {
			t.Errorf("%s %s started the sandbox", c.method, c.target)
		}
	}
}

func TestFileRoutes_PreventScriptExecution(t *testing.T) {
	t.Parallel()
	f := &fake{text: "<script>alert(1)</script>"}
	for _, target := range []string{"?path=/a/x%22%0D%0ASet-Cookie:%20a.html",
		"/tar?path=/a/x%22%0D%0ASet-Cookie:%20a.html"} {
		w, _ := askFiles(t, f, "GET", target, "")
		h := w.Header()
		if h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment; ") ||
			strings.HasPrefix(h.Get("Content-Type"), "text/") ||
			!strings.HasPrefix(h.Get("Content-Security-Policy"), "sandbox") ||
			strings.ContainsAny(h.Get("Content-Disposition"), "\r\n\"") || h.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", target, h)
		}
	}
}

func TestFileRoutes_Errors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, target string
		err            error
		header         []string
		code           int
	}{
		{"PUT", "?path=a", fault.New(fault.Conflict, "changed"), []string{"If-Match", `"a"`}, 412},
		{"PUT", "?path=a", fault.New(fault.Exists, "exists"), []string{"If-None-Match", "*"}, 412},
		{"PUT", "?path=a", fault.New(fault.Conflict, "held"), nil, 409},
		{"PUT", "?path=a", fault.New(fault.Denied, "no"), nil, 403},
		{"PUT", "?path=a", fault.New(fault.NoSpace, "full"), nil, 507},
		{"GET", "?path=a", fault.New(fault.NotFound, "none"), nil, 404},
		{"GET", "/tar?path=early", fault.New(fault.NotFound, "none"), nil, 404},
		{"GET", "/watch?path=early", fault.New(fault.NotFound, "none"), nil, 404},
		{"DELETE", "?path=a", fault.New(fault.NotFound, "none"), nil, 404},
		{"PUT", "/tar?path=a", fault.New(fault.Invalid, "a bomb"), nil, 400},
	} {
		w, calls := askFiles(t, &fake{filesErr: c.err}, c.method, c.target, "x", c.header...)
		var p wire.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != c.code || p.Status != c.code ||
			w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d %s: want %d", c.method, c.target, w.Code, w.Body, c.code)
		}
		if c.target == "/tar?path=a" != strings.Contains(calls, "done") {
			t.Errorf("%s %s did\n%s", c.method, c.target, calls) // already unpacked files are captured
		}
	}
	w, _ := askFiles(t, &fake{}, "PUT", "/tar?path=stopped", "x")
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w, _ = askFiles(t, &fake{filesErr: fault.New(fault.Conflict, "moved")}, "GET", "/tar?path=a", "")
	if w.Code != http.StatusOK || !strings.Contains(w.Result().Trailer.Get("Coppice-Error"), "moved") {
		t.Errorf("%d %v", w.Code, w.Result().Trailer)
	}
	w, _ = askFiles(t, &fake{filesErr: fault.New(fault.Unavailable, "stopped")}, "GET", "/watch?path=a", "")
	if !strings.Contains(w.Body.String(), "event: error\ndata: {") {
		t.Errorf("%q", w.Body)
	}
}

func FuzzFileQuery(f *testing.F) {
	f.Add("path=/a&mode=0644&depth=1&at=HEAD")
	f.Fuzz(func(t *testing.T, q string) {
		e := &fake{text: "x"}
		for _, route := range []string{"", "/stat", "/list", "/tar", "/watch"} {
			r := &http.Request{Method: "GET", URL: &url.URL{Path: "/v1/sandboxes/box/files" + route, RawQuery: q},
				Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(nil)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
			w := httptest.NewRecorder()
			owned(httpapi.Options{Roles: roles(e)}).ServeHTTP(w, r.WithContext(context.Background()))
			if w.Code >= 500 && w.Code != 501 {
				t.Errorf("%s?%s: %d %s", route, q, w.Code, w.Body)
			}
			if strings.ContainsAny(w.Header().Get("Content-Disposition"), "\r\n\"") {
				t.Errorf("%q", w.Header())
			}
		}
	})
}
