//go:build linux

package cli_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// web is the API of a real daemon, without the client package.
type web struct {
	*doomed
	http *http.Client
}

func newWeb(t *testing.T) *web {
	d := newDoomed(t)
	w := &web{d, &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx) }}}}
	if _, err := d.client.Create(t.Context(), wire.CreateRequest{Name: "a"}, nil); err != nil {
		t.Fatal(err)
	}
	return w
}

// do sends a request. It closes the body of the response when the test ends.
func (w *web) do(method, path, body string, header ...string) *http.Response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://coppice"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := w.http.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	return res
}

// json sends a request, and decodes its response to v, which may be nil.
func (w *web) json(method, path, body string, status int, v any) {
	w.t.Helper()
	res := w.do(method, path, body) //nolint:bodyclose // do sees to it
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		w.t.Fatalf("%s %s: %d %s, %v", method, path, res.StatusCode, b, err)
	}
	if v != nil {
		if err := json.Unmarshal(b, v); err != nil {
			w.t.Fatalf("%s: %v", b, err)
		}
	}
}

// sent is one Server-Sent Event.
type sent struct{ name, id, data string }

// events reads Server-Sent Events from a response.
type events struct {
	t    *testing.T
	res  *http.Response
	scan *bufio.Scanner
	last string // ID of the last event
}

func (w *web) events(method, path, body string, header ...string) *events {
	w.t.Helper()
	res := w.do(method, path, body, append([]string{"Accept", "text/event-stream"}, header...)...) //nolint:bodyclose // do sees to it
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		w.t.Fatalf("%s %s: %d %v %s", method, path, res.StatusCode, res.Header, b)
	}
	s := bufio.NewScanner(res.Body)
	s.Buffer(nil, 4<<20)
	return &events{t: w.t, res: res, scan: s}
}

func (e *events) next() (ev sent, ok bool) {
	for e.scan.Scan() {
		key, value, _ := strings.Cut(e.scan.Text(), ": ")
		switch key {
		case "event":
			ev.name = value
		case "id":
			ev.id, e.last = value, value
		case "data":
			ev.data = value
		case "":
			if ev.data != "" {
				return ev, true
			}
		}
	}
	return ev, false
}

// until reads until out contains text, or the command exits.
func (e *events) until(out *bytes.Buffer, text string) (exit *wire.Exit) {
	e.t.Helper()
	for text == "" || !strings.Contains(out.String(), text) {
		ev, ok := e.next()
		if !ok {
			e.t.Fatalf("the events end after id %q, with output %q", e.last, out)
		}
		switch ev.name {
		case "stdout", "stderr":
			var o wire.Output
			if err := json.Unmarshal([]byte(ev.data), &o); err != nil {
				e.t.Fatal(err)
			}
			out.WriteString(o.Text)
			out.Write(o.Base64)
		case "exit":
			exit = new(wire.Exit)
			if err := json.Unmarshal([]byte(ev.data), exit); err != nil {
				e.t.Fatal(err)
			}
			return exit
		case "error", "dropped":
			e.t.Fatalf("%+v", ev)
		}
	}
	return nil
}

const execs = "/v1/sandboxes/a/execs"

func TestExec_AsServerSentEvents(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	var out bytes.Buffer
	e := w.events("POST", "/v1/sandboxes/a/exec",
		`{"cmd":["sh","-c","printf 'caf\\303'; sleep 0.1; printf '\\251\\n'; sleep 0.1; printf '\\377x' >&2; echo there > ~/f; exit 3"]}`)
	x := e.until(&out, "")
	if out.String() != "café\n\xffx" || x.Code != 3 || !x.Changed || x.Snapshot == "" {
		t.Errorf("%q, %+v", out.String(), x)
	}
	if e.last != fmt.Sprint(out.Len()) {
		t.Errorf("the last id is %s, want %d, the number of bytes", e.last, out.Len())
	}
	x = w.events("POST", "/v1/sandboxes/a/exec", `{"cmd":["sleep","60"],"timeout_ms":100}`).until(&out, "")
	if x.Code != 124 || !x.TimedOut {
		t.Errorf("timeout: %+v", x)
	}
	x = w.events("POST", "/v1/sandboxes/a/exec", `{"cmd":["no-such-thing"]}`).until(&out, "")
	if x.Code != 127 || x.Message == "" {
		t.Errorf("unknown command: %+v", x)
	}
	w.json("POST", "/v1/sandboxes/b/exec", `{"cmd":["true"]}`, http.StatusNotFound, nil)
	w.json("POST", "/v1/sandboxes/a/exec", `{"cmd":[]}`, http.StatusBadRequest, nil)
	w.json("POST", "/v1/sandboxes/a/exec", `{"cmd":"true"}`, http.StatusBadRequest, nil)
}

// TestExec_SurvivesClientAndDaemon checks that a command continues when its client disconnects, and that the client
// gets the rest of the output when it attaches again, even if the daemon was restarted meanwhile.
func TestExec_SurvivesClientAndDaemon(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	var out bytes.Buffer
	e := w.events("POST", "/v1/sandboxes/a/exec",
		`{"cmd":["sh","-c","echo one; read x; echo got $x; read x; echo got $x > ~/f; echo end"],"stdin":true}`)
	e.until(&out, "one\n")
	seen := e.last
	e.res.Body.Close()

	var running wire.ExecsResult
	w.json("GET", execs, "", http.StatusOK, &running)
	if len(running.Execs) != 1 || !running.Execs[0].Kept || !running.Execs[0].Stdin || running.Execs[0].Cmd[0] != "sh" {
		t.Fatalf("%+v", running)
	}
	one := execs + "/" + running.Execs[0].ID
	w.json("POST", one+"/stdin", "two\n", http.StatusNoContent, nil)
	e = w.events("GET", one+"/output", "", "Last-Event-ID", seen)
	e.until(&out, "got two\n")
	if out.String() != "one\ngot two\n" {
		t.Errorf("%q", out.String())
	}
	seen = e.last

	w.kill()
	w.start()
	w.ready(t.Context())
	w.json("POST", one+"/stdin?eof=true", "three\n", http.StatusNoContent, nil)
	x := w.events("GET", one+"/output?offset="+seen, "").until(&out, "")
	if out.String() != "one\ngot two\nend\n" || x.Code != 0 || !x.Changed {
		t.Errorf("%q, %+v", out.String(), x)
	}
	// The result remains available for a while.
	out.Reset()
	if x := w.events("GET", one+"/output", "").until(&out, ""); x.Code != 0 || !strings.HasSuffix(out.String(), "end\n") {
		t.Errorf("%q, %+v", out.String(), x)
	}
	w.json("GET", execs, "", http.StatusOK, &running)
	if len(running.Execs) != 0 {
		t.Errorf("%+v", running)
	}
	w.json("GET", one+"x/output", "", http.StatusNotFound, nil)
	w.json("POST", one+"/signal", `{"name":"INT"}`, http.StatusNotFound, nil)
}

// TestExec_UnattendedExitIsCaptured checks that the next daemon captures, without a request, the changes of a command
// that exited while neither a client nor a daemon ran.
func TestExec_UnattendedExitIsCaptured(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	var out bytes.Buffer
	w.events("POST", "/v1/sandboxes/a/exec", `{"cmd":["sh","-c","echo up; sleep 1; echo late > ~/late; exit 5"]}`).
		until(&out, "up\n")
	w.kill()
	time.Sleep(1200 * time.Millisecond)
	w.start()
	deadline := time.Now().Add(time.Minute)
	for {
		log, err := w.client.Log(t.Context(), "a")
		if err == nil && log.Nodes[0].Exit != nil && *log.Nodes[0].Exit == 5 && log.Nodes[0].Paths > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", log.Nodes, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestExec_SlowReaderLosesNothing checks that a client that does not read blocks only its own command, and that no
// output is lost.
func TestExec_SlowReaderLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	const lines = 1_000_000 // 6.9 MB: more than all buffers between the command and the client
	slow := w.events("POST", "/v1/sandboxes/a/exec", fmt.Sprintf(`{"cmd":["seq","%d"]}`, lines))
	var out bytes.Buffer
	slow.until(&out, "1\n")
	time.Sleep(200 * time.Millisecond)
	var other bytes.Buffer
	if x := w.events("POST", "/v1/sandboxes/a/exec", `{"cmd":["seq","3"]}`).
		until(&other, ""); x.Code != 0 || other.String() != "1\n2\n3\n" {
		t.Errorf("another command: %q, %+v", other.String(), x)
	}
	if x := slow.until(&out, ""); x.Code != 0 {
		t.Errorf("%+v", x)
	}
	n := 0
	for line := range strings.Lines(out.String()) {
		if n++; line != fmt.Sprintf("%d\n", n) {
			t.Fatalf("line %d is %q", n, line)
		}
	}
	if n != lines {
		t.Errorf("got %d lines", n)
	}
}

func TestSignalsAndCancel(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	for _, tc := range []struct {
		script, method, path, body string
		code                       int
	}{
		{"trap 'exit 9' INT; echo up; while :; do sleep 0.05; done", "POST", "/signal", `{"name":"INT"}`, 9},
		{"trap 'exit 8' TERM; echo up; while :; do sleep 0.05; done", "DELETE", "", "", 8},
		{"trap '' TERM; echo up; while :; do sleep 0.05; done", "DELETE", "", "", 137},
	} {
		cmd, _ := json.Marshal(map[string]any{"cmd": []string{"sh", "-c", tc.script}})
		var out bytes.Buffer
		e := w.events("POST", "/v1/sandboxes/a/exec", string(cmd))
		e.until(&out, "up\n")
		var running wire.ExecsResult
		w.json("GET", execs, "", http.StatusOK, &running)
		w.json(tc.method, execs+"/"+running.Execs[0].ID+tc.path, tc.body, http.StatusNoContent, nil)
		if x := e.until(&out, ""); x.Code != tc.code {
			t.Errorf("%s: %+v", tc.script, x)
		}
	}
}

// terminal opens the WebSocket of a session. status is that of the response.
func (w *web) terminal(url string, origin string) (c *websocket.Conn, status int, err error) {
	opt := &websocket.DialOptions{HTTPClient: w.http, HTTPHeader: http.Header{}}
	if origin != "" {
		opt.HTTPHeader.Set("Origin", origin)
	}
	c, res, err := websocket.Dial(w.t.Context(), url, opt) //nolint:bodyclose // Dial sees to it
	if err == nil {
		w.t.Cleanup(func() { c.CloseNow() })
	}
	if res != nil {
		status = res.StatusCode
	}
	return c, status, err
}

func TestTerminalsOverWebSocket(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	ctx := t.Context()
	var s wire.Session
	w.json("POST", "/v1/sandboxes/a/exec?pty=true",
		`{"cmd":["sh","-c","stty size; while read x; do stty size; echo \"<$x>\"; done; exit 4"],"size":{"cols":70,"rows":20}}`, http.StatusCreated, &s)
	if s.ID == "" || s.Exec == "" || len(s.Sandbox) != 12 {
		t.Fatalf("%+v", s)
	}
	attach := func(body string) wire.AttachResult {
		var r wire.AttachResult
		w.json("POST", "/v1/sessions/"+s.ID+"/attach", body, http.StatusOK, &r)
		return r
	}
	a := attach("")
	if !strings.HasSuffix(a.URL, "/v1/attach/"+s.ID+"?token="+a.Token) || time.Until(a.Expires) > time.Minute {
		t.Errorf("%+v", a)
	}
	refused := func(what, url, origin string) {
		t.Helper()
		if _, status, err := w.terminal(url, origin); err == nil || status != http.StatusForbidden {
			t.Errorf("%s: %d, %v", what, status, err)
		}
	}
	refused("no token", strings.TrimSuffix(a.URL, a.Token), "")
	refused("another token", a.URL+"x", "")
	c, _, err := w.terminal(a.URL, "http://coppice")
	if err != nil {
		t.Fatal(err)
	}
	refused("a token twice", a.URL, "")
	refused("a page of another site", attach("").URL, "http://evil.example")

	var out bytes.Buffer
	until := func(c *websocket.Conn, text string) {
		t.Helper()
		for !strings.Contains(out.String(), text) {
			kind, p, err := c.Read(ctx)
			if err != nil || kind != websocket.MessageBinary {
				t.Fatalf("%v %s, %v after %q", kind, p, err, out.String())
			}
			out.Write(p)
		}
		out.Reset()
	}
	write := func(kind websocket.MessageType, text string) {
		t.Helper()
		if err := c.Write(ctx, kind, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	until(c, "20 70")
	write(websocket.MessageText, `{"resize":{"cols":81,"rows":25}}`)
	write(websocket.MessageText, `{"what is this":1}`)
	write(websocket.MessageBinary, "hello\r")
	until(c, "25 81\r\n<hello>")

	// A read-only client sees the output, and its input is dropped.
	watcher, _, err := w.terminal(attach(`{"read_only":true}`).URL, "")
	if err != nil {
		t.Fatal(err)
	}
	until(watcher, "<hello>")
	if err := watcher.Write(ctx, websocket.MessageBinary, []byte("not typed\r")); err != nil {
		t.Fatal(err)
	}

	// A client can disconnect and attach again.
	c.CloseNow()
	if c, _, err = w.terminal(attach("").URL, ""); err != nil {
		t.Fatal(err)
	}
	until(c, "<hello>")
	write(websocket.MessageBinary, "again\r")
	until(c, "<again>")
	until(watcher, "<again>")
	write(websocket.MessageBinary, "\x04")
	for _, c := range []*websocket.Conn{c, watcher} {
		var last string
		for {
			kind, p, err := c.Read(ctx)
			if err != nil {
				if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
					t.Error(err)
				}
				break
			}
			if strings.Contains(string(p), "not typed") {
				t.Errorf("%q", p)
			}
			if kind == websocket.MessageText {
				last = string(p)
			}
		}
		if !strings.HasPrefix(last, `{"exit":{"code":4,`) {
			t.Errorf("the last message is %q", last)
		}
	}
	w.json("POST", "/v1/sessions/"+s.ID+"/attach", "", http.StatusNotFound, nil)
	w.json("POST", "/v1/sessions/none/attach", "", http.StatusNotFound, nil)
	w.json("POST", "/v1/sandboxes/a/exec?pty=true", `{"cmd":["no-such-thing"]}`, http.StatusBadRequest, nil)
}

func TestEvents_AsServerSentEvents(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	e := w.events("GET", "/v1/sandboxes/a/events?after=0", "")
	first, ok := e.next()
	if !ok || first.name != wire.EventCreated {
		t.Fatalf("%+v", first)
	}
	if _, err := w.client.Exec(t.Context(), "a", wire.ExecRequest{Cmd: []string{"sh", "-c", "echo x > ~/x"}},
		client.Streams{}); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for len(kinds) == 0 || kinds[len(kinds)-1] != wire.EventExited {
		ev, _ := e.next()
		kinds = append(kinds, ev.name)
	}
	e.res.Body.Close()
	e = w.events("GET", "/v1/events", "", "Last-Event-ID", first.id)
	for _, want := range kinds {
		if ev, _ := e.next(); ev.name != want {
			t.Errorf("%+v, want %s", ev, want)
		}
	}
}

func TestIdempotencyKey_CreatesOnce(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	send := func(path, key, body string) (int, string) {
		res := w.do("POST", path, body, "Idempotency-Key", key) //nolint:bodyclose // do sees to it
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	code, first := send("/v1/sandboxes", "k1", `{"name":"b"}`)
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, first)
	}
	w.kill()
	w.start()
	w.ready(t.Context())
	if code, again := send("/v1/sandboxes", "k1", `{"name":"b"}`); code != http.StatusCreated || again != first {
		t.Errorf("again: %d %s", code, again)
	}
	if code, other := send("/v1/sandboxes", "k1", `{"name":"c"}`); code != http.StatusUnprocessableEntity ||
		!strings.Contains(other, `"kind":"invalid"`) {
		t.Errorf("another body: %d %s", code, other)
	}
	if code, other := send("/v1/sandboxes", "k2", `{"name":"b"}`); code != http.StatusConflict {
		t.Errorf("another key: %d %s", code, other)
	}
	_, one := send("/v1/sandboxes/b/fork", "k1", `{}`)
	_, two := send("/v1/sandboxes/b/fork", "k1", `{}`)
	if all, err := w.client.List(t.Context()); err != nil || len(all) != 3 || one != two {
		t.Errorf("%d sandboxes, %v; %s, %s", len(all), err, one, two)
	}
}

// TestIdempotencyKey_SurvivesDaemonKill kills a daemon during a create with a key, and checks that the next daemon
// knows that the request was begun.
func TestIdempotencyKey_SurvivesDaemonKill(t *testing.T) {
	t.Parallel()
	w := newWeb(t)
	send := func(body io.Reader, kind string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://coppice/v1/sandboxes", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", "k")
		req.Header.Set("Content-Type", kind)
		res, err := w.http.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	lost := make(chan int, 1)
	go func() {
		code, _ := send(pr, "multipart/form-data; boundary=b")
		lost <- code
	}()
	const part = "--b\r\nContent-Disposition: form-data; name=%q\r\n\r\n"
	fmt.Fprintf(pw, part+`{"from":{"kind":"tar"}}`+"\r\n"+part, "request", "tar")
	// More than the buffers in between hold: once it is written, the daemon is processing the request.
	archive := tar.NewWriter(pw)
	if err := archive.WriteHeader(&tar.Header{Name: "large", Mode: 0o644, Size: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Write(make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	if code, text := send(strings.NewReader("{}"), "application/json"); code != http.StatusConflict ||
		!strings.Contains(text, "is in progress") {
		t.Errorf("%d %s", code, text)
	}
	w.kill()
	_ = pw.CloseWithError(io.ErrUnexpectedEOF) // the client reads the response after it has sent everything
	if code := <-lost; code != 0 {
		t.Errorf("a response of a killed daemon: %d", code)
	}
	w.start()
	w.ready(t.Context())
	for range 2 {
		if code, text := send(strings.NewReader("{}"), "application/json"); code != http.StatusConflict ||
			!strings.Contains(text, "its result is unknown") || !strings.Contains(text, "coppice ls") {
			t.Errorf("%d %s", code, text)
		}
	}
	if all, err := w.client.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
