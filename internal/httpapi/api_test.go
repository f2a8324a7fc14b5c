package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// listen returns a Unix socket listener in its own directory, with a short path.
func listen(t testing.TB) net.Listener {
	t.Helper()
	dir, err := os.MkdirTemp("", "api")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// as returns a ConnContext function that makes every caller of a server the principal p.
func as(p auth.Principal) func(net.Listener) context.Context {
	return func(net.Listener) context.Context { return auth.With(context.Background(), p) }
}

// newServer returns a server whose requests all come from the principal p.
func newServer(p auth.Principal, opt httpapi.Options) http.Handler {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := httpapi.New(opt)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r.WithContext(auth.With(r.Context(), p)))
	})
}

// owned returns a server whose requests all come from the owner.
func owned(opt httpapi.Options) http.Handler { return newServer(auth.Owner(), opt) }

// serve returns a client of a server with the engine e.
func serve(t testing.TB, e engine) *client.Client {
	t.Helper()
	ln := listen(t)
	srv := &http.Server{Handler: owned(httpapi.Options{Roles: roles(e)})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	c := client.New(client.Options{Socket: ln.Addr().String(), Patience: -1})
	t.Cleanup(c.Close)
	return c
}

func TestClient_CallsReachEngine(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := serve(t, f)
	ctx := t.Context()
	ignore := func(wire.Progress) {}
	for name, tc := range map[string]struct {
		call func() (any, error)
		did  string
		want string // the answer as JSON
	}{
		"status": {func() (any, error) { r, err := c.Status(ctx, "a/b c"); return r.Sandbox.Name, err },
			`status["a/b c"]`, `"a/b c"`},
		"remove": {func() (any, error) { return nil, c.Remove(ctx, "a", true) }, `remove[["a"],true]`, `null`},
		"start":  {func() (any, error) { r, err := c.Start(ctx, "a"); return r.Sandbox.Name, err }, `start["a"]`, `"a"`},
		"stop":   {func() (any, error) { return c.Stop(ctx, "a") }, `stop["a"]`, `{"stopped":2,"head":""}`},
		"pause":  {func() (any, error) { r, err := c.Pause(ctx, "a"); return r.Paused, err }, `pause["a"]`, `true`},
		"resume": {func() (any, error) { r, err := c.Resume(ctx, "a"); return r.Name, err }, `resume["a"]`, `"a"`},
		"commit with memory": {func() (any, error) { r, err := c.CommitMemory(ctx, "a", "m"); return r.Memory, err },
			`commit-memory["a","m"]`,
			`{"image":"2","size":3,"added":4}`},
		"log": {func() (any, error) { r, err := c.Log(ctx, "a"); return r.Rows, err }, `log["a"]`,
			`[{"graph":"*","node":"aa"}]`},
		"head":     {func() (any, error) { return c.Head(ctx, "a") }, `head["a"]`, `{"head":"aa"}`},
		"branches": {func() (any, error) { r, err := c.Branches(ctx, "a"); return r.Head, err }, `branches["a"]`, `"aa"`},
		"show": {func() (any, error) { r, err := c.Show(ctx, "a", "@{5m}"); return r.Changes[0].Name() == "a\xff", err },
			`show["a","@{5m}"]`, `true`},
		"diff": {func() (any, error) {
			return c.Diff(ctx, "a", wire.DiffRequest{A: "HEAD~1", B: "x", Other: "b", Paths: []string{"etc", "/a b"}, Stat: true})
		}, `diff["a",{"a":"HEAD~1","b":"x","other":"b","paths":["etc","/a b"],"stat":true}]`, `{"a":"aa","changes":[]}`},
		"run": {func() (any, error) {
			r, err := c.Run(ctx, "a", wire.RunRequest{Cmd: []string{"c"}})
			return r.Exec, err
		}, `run["a",["c"]]`, `"x1"`},
		"mark": {func() (any, error) {
			r, err := c.Mark(ctx, "a", wire.MarkRequest{Phase: wire.MarkBegin, Label: "l"})
			return r.Node, err
		}, `mark["a",{"phase":"begin","label":"l"}]`, `"bb"`},
		"commit": {func() (any, error) { r, err := c.Commit(ctx, "a", "m\n"); return r.Node, err },
			`commit["a","m\n"]`, `"bb"`},
		"checkout": {func() (any, error) {
			r, err := c.Checkout(ctx, "a", wire.CheckoutRequest{Node: "aa", InPlace: true})
			return r.Head, err
		}, `checkout["a",{"node":"aa","in_place":true}]`, `"aa"`},
		"undo": {func() (any, error) { r, err := c.Undo(ctx, "a", wire.UndoRequest{N: 3}); return r.Head, err },
			`undo["a",{"n":3}]`, `"aa"`},
		"undo one": {func() (any, error) { r, err := c.Undo(ctx, "a", wire.UndoRequest{}); return r.Head, err },
			`undo["a",{}]`, `"aa"`},
		"redo": {func() (any, error) { r, err := c.Redo(ctx, "a", wire.RedoRequest{InPlace: true}); return r.Head, err },
			`redo["a",{"in_place":true}]`, `"aa"`},
		"delete": {func() (any, error) { return c.Delete(ctx, "a", "HEAD~1") }, `delete["a","HEAD~1"]`, `{"head":"aa"}`},
		"tags":   {func() (any, error) { return c.Tags(ctx, "a") }, `tags["a"]`, `{"good":"aa"}`},
		"set tag": {func() (any, error) { return c.SetTag(ctx, "a", "t", "") }, `settag["a","t",""]`,
			`{"name":"t","node":"aa"}`},
		"drop tag": {func() (any, error) { return nil, c.DeleteTag(ctx, "a", "t") }, `deltag["a","t"]`, `null`},
		"gc": {func() (any, error) {
			return c.GC(ctx, wire.GCRequest{DryRun: true, Keep: wire.Keep{Daily: 7}, Sandboxes: []string{"a"}}, ignore)
		}, `gc[{"dry_run":true,"keep":{"daily":7},"sandboxes":["a"]}]`,
			`{"removed":[],"layers":0,"bytes":0,"dry_run":true}`},
		"verify": {func() (any, error) { r, err := c.Verify(ctx, "a", ignore); return r.Layers, err },
			`verify["a"]`, `2`},
		"verify all": {func() (any, error) { r, err := c.Verify(ctx, "", nil); return r.Layers, err }, `verify[""]`, `2`},
		"fork": {func() (any, error) {
			r, err := c.Fork(ctx, "a", wire.ForkRequest{N: 2, At: "x"})
			return len(r.Sandboxes), err
		}, `fork["a",{"n":2,"at":"x"}]`, `1`},
		"fork by name": {func() (any, error) {
			r, err := c.Fork(ctx, "a", wire.ForkRequest{Names: []string{"p", "q"}})
			return len(r.Sandboxes), err
		}, `fork["a",{"names":["p","q"],"n":2}]`, `1`},
		"tournament": {func() (any, error) {
			var ended []string
			req := wire.TournamentRequest{Test: "t",
				Candidates: []wire.Candidate{{Name: "one", Cmd: "c"}, {Name: "two", Cmd: "d"}}}
			r, err := c.Tournament(ctx, "a", req, func(p wire.Progress) { ended = append(ended, p.Branch.Name) })
			return append(ended, r.Winner), err
		}, `tournament["a",{"test":"t","candidates":[{"name":"one","cmd":"c"},{"name":"two","cmd":"d"}]}]`,
			`["one","two","one"]`},
		"create": {func() (any, error) {
			r, err := c.Create(ctx, wire.CreateRequest{Name: "n", From: wire.Source{Kind: wire.SourceHost}}, nil)
			return r.ID, err
		}, `create[{"name":"n","from":{"kind":"host"}},0]`, `"0123456789ab"`},
		"daemon": {func() (any, error) { r, err := c.Daemon(ctx); return [2]int{r.Sandboxes, r.Live}, err }, "", `[2,1]`},
		"probe":  {func() (any, error) { r, err := c.Probe(ctx); return r.Kernel, err }, "", `"6.18"`},
		"list":   {func() (any, error) { r, err := c.List(ctx); return len(r), err }, "", `2`},
	} {
		v, err := tc.call()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if b, _ := json.Marshal(v); string(b) != tc.want {
			t.Errorf("%s answered %s, want %s", name, b, tc.want)
		}
		if tc.did != "" && f.last() != tc.did {
			t.Errorf("%s called %s, want %s", name, f.last(), tc.did)
		}
	}
}

// sockets is a Sockets with a fixed path.
type sockets struct{ closed string }

func (s *sockets) OpenSocket(_ context.Context, name string) (string, error) {
	return "/home/" + name + "/line.sock", nil
}

func (s *sockets) CloseSocket(_ context.Context, name string) error {
	s.closed = name
	return nil
}

func TestSocketRoutes_OpenAndClose(t *testing.T) {
	t.Parallel()
	s := new(sockets)
	ln := listen(t)
	srv := &http.Server{
		Handler: owned(httpapi.Options{Roles: roles(&fake{}), Sockets: s, Log: slog.New(slog.DiscardHandler)})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	c := client.New(client.Options{Socket: ln.Addr().String(), Patience: -1})
	t.Cleanup(c.Close)
	if res, err := c.Socket(t.Context(), "a/b"); err != nil || res.Path != "/home/a/b/line.sock" {
		t.Errorf("%+v, %v", res, err)
	}
	if err := c.CloseSocket(t.Context(), "a/b"); err != nil || s.closed != "a/b" {
		t.Errorf("%q, %v", s.closed, err)
	}
	if _, err := serve(t, &fake{}).Socket(t.Context(), "a"); !client.IsKind(err, client.KindUnsupported) {
		t.Errorf("without: %v", err)
	}
}

func TestCreate_StreamsArchive(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := serve(t, f)
	const size = 20 << 20
	var phases []string
	_, err := c.Create(t.Context(), wire.CreateRequest{Name: "n", From: wire.Source{Kind: wire.SourceTar, Path: "x.tar"},
		Tar: io.LimitReader(zeros{}, size)}, func(p wire.Progress) { phases = append(phases, p.Phase+p.Note) })
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(`create[{"name":"n","from":{"kind":"tar","path":"x.tar"}},%d]`, size); f.last() != want {
		t.Errorf("got %s, want %s", f.last(), want)
	}
	if got := strings.Join(phases, ","); got != "import,importa note" {
		t.Errorf("progress %q", got)
	}
	boom := errors.New("boom")
	if _, err := c.Create(t.Context(), wire.CreateRequest{From: wire.Source{Kind: wire.SourceTar},
		Tar: io.MultiReader(io.LimitReader(zeros{}, 1<<20), failing{boom})}, nil); err == nil {
		t.Error("a truncated archive was accepted")
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestErrors_AreProblemDocuments(t *testing.T) {
	t.Parallel()
	for kind, status := range map[fault.Kind]int{
		fault.Internal: 500, fault.Invalid: 400, fault.NotFound: 404, fault.Ambiguous: 409, fault.Exists: 409,
		fault.Conflict:    409,
		fault.Unsupported: 501, fault.Denied: 403, fault.NoSpace: 507, fault.ReadOnly: 403, fault.Corrupt: 500,
		fault.Version:     500,
		fault.Unavailable: 503, fault.Cancelled: 503, fault.Timeout: 504, fault.TooLarge: 413,
	} {
		h := owned(httpapi.Options{Roles: roles(&fake{err: fault.New(kind, "it failed").WithHint("do this")}),
			Log: slog.New(slog.DiscardHandler)})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/sandboxes/a/head", nil).
			WithContext(auth.With(t.Context(), auth.Owner())))
		if w.Code != status || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", kind, w.Code, w.Header())
		}
		want := fmt.Sprintf(`{"type":"about:blank","title":%q,"status":%d,"detail":"it failed","kind":%q,"hint":"do this"}`,
			http.StatusText(status), status, kind)
		if got := strings.TrimSpace(w.Body.String()); got != want {
			t.Errorf("%s: got %s, want %s", kind, got, want)
		}
	}
}

func TestErrors_ReachClientFromEveryResponse(t *testing.T) {
	t.Parallel()
	f := &fake{err: fault.New(fault.Conflict, "no").WithHint("wait")}
	c := serve(t, f)
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"plain":  func() error { _, err := c.Commit(ctx, "a", "m"); return err },
		"stream": func() error { _, err := c.Verify(ctx, "", func(wire.Progress) {}); return err },
		"exec": func() error {
			_, err := c.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"x"}}, client.Streams{})
			return err
		},
		"form": func() error {
			_, err := c.Create(ctx, wire.CreateRequest{From: wire.Source{Kind: wire.SourceTar}, Tar: strings.NewReader("x")},
				nil)
			return err
		},
		"patch at once":    func() error { return c.Patch(ctx, "a", wire.DiffRequest{A: "early"}, io.Discard) },
		"patch in the end": func() error { return c.Patch(ctx, "a", wire.DiffRequest{A: "late"}, io.Discard) },
	} {
		var e *client.Error
		if err := call(); !errors.As(err, &e) || e.Kind != client.KindConflict || e.Message != "no" || e.Hint != "wait" {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

func TestAPI_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	h := owned(httpapi.Options{Roles: roles(&fake{}), Log: slog.New(slog.DiscardHandler)})
	for _, tc := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/v2/x", "", 404},
		{"PUT", "/v1/sandboxes", "", 404},
		{"POST", "/v1/sandboxes/a/commit", "{", 400},
		{"POST", "/v1/sandboxes/a/checkout", "{}", 400},
		{"POST", "/v1/sandboxes/a/undo", `{"n":-1}`, 400},
		{"POST", "/v1/sandboxes/a/fork", `{"n":-1}`, 400},
		{"POST", "/v1/sandboxes/a/tags", `{}`, 400},
		{"POST", "/v1/sandboxes/a/commit", `{"message":"` + strings.Repeat("x", 5<<20) + `"}`, 400},
		{"DELETE", "/v1/sandboxes/a?force=perhaps", "", 400},
		{"GET", "/v1/sandboxes/a/diff?patch=2", "", 400},
		{"POST", "/v1/sandboxes", `{"from":{"kind":"tar"}}`, 400},
		{"POST", "/v1/sandboxes/a/exec", ``, 426},
		{"POST", "/v1/sandboxes/a/exec", `{}`, 400},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)).
			WithContext(auth.With(t.Context(), auth.Owner())))
		var p wire.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != tc.status || p.Status != tc.status ||
			p.Kind == "" || p.Detail == "" {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, w.Code, w.Body)
		}
	}
}

func TestPatch_IsForwarded(t *testing.T) {
	t.Parallel()
	f := &fake{}
	var b bytes.Buffer
	if err := serve(t, f).
		Patch(t.Context(), "a", wire.DiffRequest{A: "HEAD"}, &b); err != nil || b.String() != "--- a\n+++ b\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// cat is a command that prints its stdin, and reports signals and sizes.
func cat(_ context.Context, _ wire.ExecRequest, s io.ReadWriter) (wire.Exit, error) {
	if err := wire.WriteJSON(s, wire.FrameStarted, wire.Started{Exec: "e1", PID: 2}); err != nil {
		return wire.Exit{}, err
	}
	for {
		t, p, err := wire.ReadFrame(s, nil)
		if err != nil {
			return wire.Exit{}, err
		}
		switch t {
		case wire.FrameStdin:
			_ = wire.WriteFrame(s, wire.FrameStdout, p)
		case wire.FrameStdinEOF:
			return wire.Exit{Code: 7, Changed: true, Snapshot: "cc"}, nil
		default:
			_ = wire.WriteFrame(s, wire.FrameStderr, p)
			if t == wire.FrameSignal {
				return wire.Exit{Code: 128 + 15}, nil
			}
		}
	}
}

func TestExec_ForwardsStreamsAndExit(t *testing.T) {
	t.Parallel()
	c := serve(t, &fake{exec: cat})
	in := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	var out bytes.Buffer
	exit, err := c.Exec(t.Context(), "a", wire.ExecRequest{Cmd: []string{"cat"}, Stdin: true},
		client.Streams{Stdin: strings.NewReader(in), Stdout: &out})
	if err != nil || exit.Code != 7 || exit.Snapshot != "cc" || !exit.Changed {
		t.Fatalf("%+v, %v", exit, err)
	}
	if out.String() != in {
		t.Errorf("got %d bytes back, sent %d", out.Len(), len(in))
	}
}

func TestExec_ForwardsSizesAndSignals(t *testing.T) {
	t.Parallel()
	c := serve(t, &fake{exec: cat})
	resize, signals := make(chan wire.Size, 1), make(chan string, 1)
	resize <- wire.Size{Cols: 80, Rows: 24}
	var out lockedBuffer
	out.on = func(s string) {
		if strings.Contains(s, "80") {
			signals <- "TERM"
		}
	}
	exit, err := c.Exec(t.Context(), "a", wire.ExecRequest{Cmd: []string{"cat"}},
		client.Streams{Stderr: &out, Resize: resize, Signals: signals})
	if err != nil || exit.Code != 143 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if want := `{"cols":80,"rows":24}{"name":"TERM"}`; out.b.String() != want {
		t.Errorf("got %s, want %s", out.b.String(), want)
	}
}

type lockedBuffer struct {
	b  bytes.Buffer
	on func(string)
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	n, err := l.b.Write(p)
	l.on(string(p))
	return n, err
}

func TestExec_ClosedStdoutSendsSIGPIPE(t *testing.T) {
	t.Parallel()
	c := serve(t, &fake{exec: func(_ context.Context, _ wire.ExecRequest, s io.ReadWriter) (wire.Exit, error) {
		_ = wire.WriteJSON(s, wire.FrameStarted, wire.Started{Exec: "e1"})
		_ = wire.WriteFrame(s, wire.FrameStdout, []byte("y\n"))
		for {
			ft, p, err := wire.ReadFrame(s, nil)
			if err != nil {
				return wire.Exit{}, err
			}
			if ft == wire.FrameSignal && string(p) == `{"name":"PIPE"}` {
				return wire.Exit{Code: 141}, nil
			}
		}
	}})
	exit, err := c.Exec(t.Context(), "a", wire.ExecRequest{Cmd: []string{"yes"}}, client.Streams{Stdout: closedWriter{}})
	if err != nil || exit.Code != 141 {
		t.Errorf("%+v, %v", exit, err)
	}
}

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestExec_ReattachesAtOffset(t *testing.T) {
	t.Parallel()
	// Two daemons use the same name, one after the other.
	var mu sync.Mutex
	var conns []net.Conn
	full := "0123456789"
	cut := make(chan bool)
	run := func(_ context.Context, req wire.ExecRequest, s io.ReadWriter) (wire.Exit, error) {
		if req.Attach == "" {
			_ = wire.WriteJSON(s, wire.FrameStarted, wire.Started{Exec: "e1"})
			_ = wire.WriteFrame(s, wire.FrameStdout, []byte(full[:4]))
			close(cut)
			_, _, err := wire.ReadFrame(s, nil)
			return wire.Exit{}, err
		}
		if req.Attach != "e1" || req.Offset != 4 {
			return wire.Exit{}, fault.New(fault.NotFound, "attach %q at %d", req.Attach, req.Offset)
		}
		_ = wire.WriteJSON(s, wire.FrameStarted, wire.Started{Exec: "e1"})
		_ = wire.WriteFrame(s, wire.FrameStdout, []byte(full[4:]))
		return wire.Exit{Code: 3}, nil
	}
	ln := listen(t)
	srv := &http.Server{
		Handler: owned(httpapi.Options{Roles: roles(&fake{exec: run}), Log: slog.New(slog.DiscardHandler)})}
	go srv.Serve(ln)
	defer srv.Close()
	refused := 2
	c := client.New(client.Options{Patience: time.Minute, Dial: func(ctx context.Context) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(conns) > 0 && refused > 0 {
			refused--
			return nil, errors.New("no daemon yet")
		}
		conn, err := client.DialSocket(ctx, ln.Addr().String())
		conns = append(conns, conn)
		return conn, err
	}})
	defer c.Close()
	var out bytes.Buffer
	var lost []bool
	got := make(chan bool)
	go func() {
		defer close(got)
		<-cut
		time.Sleep(20 * time.Millisecond) // some of the output arrives first; the test passes either way
		mu.Lock()
		defer mu.Unlock()
		conns[0].Close()
	}()
	exit, err := c.Exec(t.Context(), "a", wire.ExecRequest{Cmd: []string{"x"}},
		client.Streams{Stdout: &out, Lost: func(err error) { lost = append(lost, err != nil) }})
	<-got
	if err != nil || exit.Code != 3 || out.String() != full {
		t.Errorf("%+v, %v, %q", exit, err, out.String())
	}
	if fmt.Sprint(lost) != "[true false]" {
		t.Errorf("Lost was called with %v", lost)
	}
}

func TestExec_StopsOnCancel(t *testing.T) {
	t.Parallel()
	c := serve(t, &fake{exec: cat})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := c.Exec(ctx, "a", wire.ExecRequest{Cmd: []string{"x"}},
		client.Streams{}); !client.IsKind(err, client.KindCancelled) {
		t.Errorf("got %v", err)
	}
}

func TestClient_DialsLongSocketPath(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("needs proc: long paths are reached through /proc/self/fd")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100), strings.Repeat("e", 100))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ln, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/s", d.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: owned(httpapi.Options{Roles: roles(&fake{})})}
	go srv.Serve(ln)
	defer srv.Close()
	c := client.New(client.Options{Socket: filepath.Join(dir, "s")})
	defer c.Close()
	if _, err := c.List(t.Context()); err != nil {
		t.Error(err)
	}
}

// BenchmarkExecOverTheAPI measures the layers between the caller and the engine. They may take a small part of
// the 2 ms budget of an exec.
func BenchmarkExecOverTheAPI(b *testing.B) {
	c := serve(b, &fake{exec: func(_ context.Context, _ wire.ExecRequest, s io.ReadWriter) (wire.Exit, error) {
		_ = wire.WriteJSON(s, wire.FrameStarted, wire.Started{Exec: "e1"})
		return wire.Exit{}, nil
	}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Exec(b.Context(), "a", wire.ExecRequest{Cmd: []string{"true"}}, client.Streams{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHeadOverTheAPI(b *testing.B) {
	c := serve(b, &fake{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Head(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}
