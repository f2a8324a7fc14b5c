package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/auth"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/httpapi"
)

// two is an engine with two sandboxes: mine (id 1) and theirs (id 2).
type two struct{ fake }

func (*two) Sandbox(_ context.Context, name string) (wire.Sandbox, error) {
	for _, sb := range both() {
		if name == sb.Name || name == sb.ID {
			return sb, nil
		}
	}
	return wire.Sandbox{}, fault.New(fault.NotFound, "there is no %s at all", name)
}

func both() []wire.Sandbox {
	return []wire.Sandbox{{ID: "1", Name: "mine"}, {ID: "2", Name: "theirs"}}
}

func (*two) List(context.Context) ([]wire.Sandbox, error) { return both(), nil }
func (*two) Counts() map[string]uint64                    { return map[string]uint64{wire.EventSnapshot: 7} }

func (*two) Events(_ context.Context, name string, _ uint64, yield func(wire.SandboxEvent) error) error {
	for i, id := range []string{"", "1", "2", "", "1"} {
		ev := wire.SandboxEvent{Seq: uint64(i + 1), ID: id, Kind: wire.EventSnapshot}
		if i == 0 {
			ev.Kind = ""
		} else if id == "" {
			ev.Kind = wire.EventDropped
		}
		if err := yield(ev); err != nil {
			return err
		}
	}
	return nil
}

func (t *two) Execs(_ context.Context, name string) ([]wire.ExecInfo, error) {
	t.did("execs", name)
	return []wire.ExecInfo{{ID: "x1", TTY: true, Kept: true}}, nil
}

// ask sends a request to h.
func ask(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestOperations_RequireScope calls every operation of the document, so that none is open by mistake.
func TestOperations_RequireScope(t *testing.T) {
	t.Parallel()
	scopes := []string{"", "read", "operate", "admin"}
	f, servers := &two{}, []http.Handler{}
	for _, scope := range scopes {
		servers = append(servers,
			newServer(auth.Principal{TokenID: "t", Scope: scopeCalled(t, scope)}, httpapi.Options{Roles: roles(f)}))
	}
	open := []string{}
	for path, ops := range sorted(at(parse(t, document(t)), "paths")) {
		for method, op := range sorted(ops) {
			need := 0
			for _, s := range list(at(op, "security")) {
				need = slices.Index(scopes, fmt.Sprint(list(at(s, "token"))[0]))
			}
			method := strings.ToUpper(method)
			if need == 0 {
				open = append(open, method+" "+path)
				continue
			}
			url := strings.NewReplacer("{name}", "mine", "{id}", "1.x1", "{exec}", "x1", "{ref}", "HEAD", "{tag}", "t", "{pid}",
				"2", "{port}", "3000").Replace(path)
			for have, scope := range scopes {
				if have >= need {
					continue
				}
				w := ask(servers[have], method, url, "{}")
				var p wire.Problem
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != http.StatusForbidden || p.Kind != "denied" ||
					p.Hint == "" || f.last() != "" {
					t.Errorf("%s %s with %q: %d %s, did %s", method, url, scope, w.Code, w.Body, f.last())
				}
			}
		}
	}
	slices.Sort(open)
	if want := []string{"GET /docs", "GET /healthz", "GET /openapi.json", "GET /readyz",
		"GET /v1/attach/{session}"}; !slices.Equal(open, want) {
		t.Errorf("operations without a scope: %q, want %q", open, want)
	}
}

func scopeCalled(t *testing.T, name string) auth.Scope {
	t.Helper()
	if name == "" {
		return 0
	}
	s, err := auth.ParseScope(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLimitedToken_SeesOnlyItsSandboxes(t *testing.T) {
	t.Parallel()
	f := &two{}
	h := newServer(auth.Principal{TokenID: "t", Scope: auth.Operate, Sandboxes: []string{"1"}},
		httpapi.Options{Roles: roles(f)})
	strange := func(name, method, path string) string {
		w := ask(h, method, strings.ReplaceAll(path, "NAME", name), `{"n":1}`)
		if w.Code != http.StatusNotFound || f.last() != "" {
			t.Errorf("%s %s of %s: %d %s, did %s", method, path, name, w.Code, w.Body, f.last())
		}
		return strings.ReplaceAll(w.Body.String(), name, "NAME")
	}
	for _, tc := range [][2]string{
		{"GET", "/v1/sandboxes/NAME"}, {"GET", "/v1/sandboxes/NAME/head"}, {"DELETE", "/v1/sandboxes/NAME"},
		{"POST", "/v1/sandboxes/NAME/fork"},
		{"GET", "/v1/sandboxes/NAME/events"}, {"GET", "/v1/events?sandbox=NAME"}, {"POST", "/v1/sandboxes/NAME/exec"},
		{"GET", "/v1/sandboxes/NAME/execs/x/output"}, {"POST", "/v1/sessions/NAME.x1/attach"},
		{"GET", "/v1/sandboxes/mine/diff?other=NAME"}, {"GET", "/v1/sandboxes/NAME/diff?other=mine"},
		{"GET", "/v1/sandboxes/mine/diff?other=NAME&patch=true"},
	} {
		if there, not := strange("theirs", tc[0], tc[1]), strange("nobody", tc[0], tc[1]); there != not || there == "" {
			t.Errorf("%s discloses that the sandbox exists: %s, %s", tc[1], there, not)
		}
		strange("2", tc[0], tc[1])
	}
	// Visible sandboxes are addressed by ID, so that no other sandbox can take the name in between.
	for _, name := range []string{"mine", "1"} {
		if w := ask(h, "GET", "/v1/sandboxes/"+name+"/head", ""); w.Code != http.StatusOK || f.last() != `head["1"]` {
			t.Errorf("%d %s, did %s", w.Code, w.Body, f.last())
		}
	}
	if w := ask(h, "GET", "/v1/sandboxes", ""); !strings.Contains(w.Body.String(), "mine") ||
		strings.Contains(w.Body.String(), "theirs") {
		t.Errorf("list: %s", w.Body)
	}
	for _, accept := range []string{"", "text/event-stream"} {
		w := ask(h, "GET", "/v1/events", "", "Accept", accept)
		if n := strings.Count(w.Body.String(), `"kind"`); n != 3 || strings.Contains(w.Body.String(), `"id":"2"`) {
			t.Errorf("events: %s", w.Body)
		}
	}
	for _, tc := range [][3]string{{"POST", "/v1/sandboxes", `{}`}, {"GET", "/v1/status", ""}, {"GET", "/v1/probe", ""},
		{"GET", "/metrics", ""}, {"POST", "/v1/gc", "{}"}, {"POST", "/v1/df", ""}} {
		if w := ask(h, tc[0], tc[1], tc[2]); w.Code != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", tc[0], tc[1], w.Code, w.Body)
		}
	}
	if w := ask(h, "POST", "/v1/sandboxes/mine/fork", "{}"); w.Code != http.StatusForbidden {
		t.Errorf("fork without grants: %d %s", w.Code, w.Body)
	}
	if w := ask(h, "POST", "/v1/sandboxes/mine/tournament",
		`{"test":"t","candidates":[{"cmd":"c"}]}`); w.Code != http.StatusForbidden {
		t.Errorf("tournament without grants: %d %s", w.Code, w.Body)
	}
	g := &grants{}
	h = newServer(auth.Principal{TokenID: "t", Scope: auth.Operate, Sandboxes: []string{"1"}},
		httpapi.Options{Roles: roles(f), Grants: g})
	if w := ask(h, "POST", "/v1/sandboxes/mine/fork", ""); w.Code != http.StatusCreated || g.got != `t [9]` ||
		f.last() != `fork["1",{"n":1}]` {
		t.Errorf("fork: %d %s, %s, %s", w.Code, w.Body, g.got, f.last())
	}
	w := ask(h, "POST", "/v1/sandboxes/mine/tournament", `{"test":"t","candidates":[{"cmd":"c"}]}`)
	if w.Code != http.StatusOK || g.got != `t [7 8]` {
		t.Errorf("tournament: %d %s, %s", w.Code, w.Body, g.got)
	}
	// Forks keep the policy of their sandbox, since the token may be in use inside it.
	f.did("")
	const wider = `[{"level":"flags","name":"/p","text":"version: 1\nnetwork: host"}]`
	for path, body := range map[string]string{"fork": `{"policy":` + wider + `}`,
		"tournament": `{"test":"t","candidates":[{"cmd":"c"}],"policy":` + wider + `}`} {
		if w := ask(h, "POST", "/v1/sandboxes/mine/"+path, body); w.Code != http.StatusForbidden || f.last() != "null" {
			t.Errorf("%s with another policy: %d %s, did %s", path, w.Code, w.Body, f.last())
		}
	}
	// A client that may only read must not be able to block a command or send input.
	f.exec = func(_ context.Context, req wire.ExecRequest, s io.ReadWriter) (wire.Exit, error) {
		return wire.Exit{}, wire.WriteJSON(s, wire.FrameStarted, wire.Started{Exec: "x1"})
	}
	h = newServer(auth.Principal{TokenID: "t", Scope: auth.Read, Sandboxes: []string{"1"}},
		httpapi.Options{Roles: roles(f)})
	if w := ask(h, "GET", "/v1/sandboxes/mine/execs/x1/output", ""); w.Code != http.StatusOK ||
		!strings.Contains(f.last(), `"read_only":true`) {
		t.Errorf("%d %s, did %s", w.Code, w.Body, f.last())
	}
	if w := ask(h, "POST", "/v1/sessions/1.x1/attach", ""); w.Code != http.StatusForbidden {
		t.Errorf("a read-only client sends input: %d %s", w.Code, w.Body)
	}
	if w := ask(h, "POST", "/v1/sessions/1.x1/attach", `{"read_only":true}`); w.Code != http.StatusOK {
		t.Errorf("a read-only client attaches: %d %s", w.Code, w.Body)
	}
}

func (t *two) Tournament(
	_ context.Context, _ string, _ wire.TournamentRequest, _ func(wire.Progress),
) (wire.TournamentResult, error) {
	return wire.TournamentResult{Branches: []wire.TournamentBranch{{ID: "7"}, {ID: "8"}}}, nil
}

func (t *two) Fork(_ context.Context, name string, req wire.ForkRequest) (wire.ForkResult, error) {
	t.did("fork", name, req)
	return wire.ForkResult{Sandboxes: []wire.Sandbox{{ID: "9"}}}, nil
}

type grants struct{ got string }

func (g *grants) Widen(_ context.Context, token string, ids []string) error {
	g.got = fmt.Sprint(token, " ", ids)
	return nil
}

func TestInvalidRequest_ReportsLocation(t *testing.T) {
	t.Parallel()
	h := owned(httpapi.Options{Roles: roles(&two{})})
	for _, tc := range []struct{ method, path, body, detail string }{
		{"POST", "/v1/sandboxes", `{"from":{"kind":7}}`, `body.from.kind: expected string, got 7`},
		{"POST", "/v1/sandboxes", `{"name":"a"`,
			`body: invalid JSON request: unexpected end of JSON input`},
		{"POST", "/v1/sandboxes", `[]`, `body: expected object, got []`},
		{"POST", "/v1/sandboxes/mine/checkout", `{}`, `body.node: missing`},
		{"POST", "/v1/sandboxes/mine/checkout", ``, `request body is required`},
		{"POST", "/v1/sandboxes/mine/tournament", `{"test":"t","candidates":[{"name":"a"}]}`,
			`body.candidates[0].cmd: missing`},
		{"POST", "/v1/sandboxes/mine/undo", `{"n":"two","in_place":1}`,
			`body.in_place: expected boolean, got 1; body.n: expected integer, got "two"`},
		{"POST", "/v1/sandboxes/mine/commit", `nonsense`,
			`body: invalid JSON request: invalid character 'o' in literal null (expecting 'u')`},
		{"GET", "/v1/sandboxes/mine/diff?stat=perhaps", ``, `query.stat: invalid boolean, got "perhaps"`},
		{"GET", "/v1/sandboxes/mine/execs/x/output?offset=x", ``, `query.offset: invalid integer, got "x"`},
		{"POST", "/v1/sandboxes/mine/exec", `{"cmd":null}`, `body.cmd: expected array`},
	} {
		w := ask(h, tc.method, tc.path, tc.body)
		var p wire.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 400 || p.Status != 400 || p.Kind != "invalid" ||
			p.Detail != tc.detail || p.Hint == "" ||
			w.Header().Get("Content-Type") != "application/problem+json" || p.Title != "Bad Request" {
			t.Errorf("%s %s %s: %d %s", tc.method, tc.path, tc.body, w.Code, w.Body)
		}
	}
	// Unknown fields are not an error, whatever type the client gives its JSON.
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded",
		"application/json; charset=utf-8"} {
		if w := ask(h, "POST", "/v1/sandboxes/mine/commit", `{"message":"m","more":{"a":[1]}}`, "Content-Type", kind,
			"Accept", "application/xml"); w.Code != 200 {
			t.Errorf("%q: %d %s", kind, w.Code, w.Body)
		}
	}
}

func TestLists_AreNeverNull(t *testing.T) {
	t.Parallel()
	h := owned(httpapi.Options{Roles: roles(&fake{})})
	for path, want := range map[string]string{
		"/v1/sandboxes/a/branches": `"nodes":[]`, "/v1/sandboxes/a/diff": `"changes":[]`, "/v1/sandboxes/a": `"enforced":[]`,
	} {
		if w := ask(h, "GET", path, ""); !strings.Contains(w.Body.String(), want) ||
			strings.Contains(w.Body.String(), "null") {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}

func TestSingleSandboxServer_HasTopLevelRoutes(t *testing.T) {
	t.Parallel()
	f := &two{}
	h := owned(httpapi.Options{Roles: roles(f), Single: "a/b"})
	for _, tc := range []struct{ method, path, body, did string }{
		{"GET", "/v1/head", "", `head["a/b"]`},
		{"GET", "/v1/nodes/HEAD~1", "", `show["a/b","HEAD~1"]`},
		{"GET", "/v1/diff?a=x&b=y", "", `diff["a/b",{"a":"x","b":"y"}]`},
		{"POST", "/v1/commit", `{"message":"m"}`, `commit["a/b","m"]`},
		{"POST", "/v1/checkout", `{"node":"x"}`, `checkout["a/b",{"node":"x"}]`},
		{"DELETE", "/v1/nodes/a%2Fb", "", `delete["a/b","a/b"]`},
		{"POST", "/v1/verify", "", `verify["a/b"]`},
		{"POST", "/v1/gc", "", `gc[{}]`},
		{"GET", "/v1/sandboxes/c/head", "", `head["c"]`},
	} {
		if w := ask(h, tc.method, tc.path, tc.body); w.Code/100 != 2 || f.last() != tc.did {
			t.Errorf("%s %s: %d %s, did %s", tc.method, tc.path, w.Code, w.Body, f.last())
		}
	}
	for _, path := range []string{"/v1/nothing", "/v2/head", "/head", "/v1/../v1/nothing"} {
		if w := ask(h, "POST", path, ""); w.Code/100 == 2 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(owned(httpapi.Options{Roles: roles(f)}), "GET", "/v1/head", ""); w.Code != 404 {
		t.Errorf("without: %d", w.Code)
	}
}

func TestMetrics_CountRequestsWithBoundedLabels(t *testing.T) {
	t.Parallel()
	f := &two{}
	h := owned(httpapi.Options{Roles: roles(f),
		Status: func() wire.DaemonStatus { return wire.DaemonStatus{Version: `v"1`} }})
	read := func() string {
		w := ask(h, "GET", "/metrics", "")
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
		return w.Body.String()
	}
	for range 3 {
		ask(h, "GET", "/v1/sandboxes/mine/head", "")
	}
	ask(h, "GET", "/v1/nothing", "")
	text := read()
	before := strings.Count(text, "\n")
	for i := range 500 {
		ask(h, "GET", fmt.Sprintf("/v1/sandboxes/box%d/head", i), "")
		ask(h, "PUT", fmt.Sprintf("/v9/%d", i), "")
	}
	if n := strings.Count(read(), "\n"); n > before+20 {
		t.Errorf("%d lines became %d", before, n)
	}
	for _, want := range []string{
		"coppice_snapshots_total 7\n", "coppice_execs_total 0\n",
		`coppice_http_requests_total{method="GET",route="/v1/sandboxes/{name}/head",status="2xx"} 3` + "\n",
		`coppice_http_requests_total{method="",route="other",status="4xx"} 1` + "\n",
		`coppice_http_request_duration_seconds_count{method="GET",route="/v1/sandboxes/{name}/head"} 3` + "\n",
		`coppice_http_request_duration_seconds_bucket{method="GET",route="/v1/sandboxes/{name}/head",le="+Inf"} 3` + "\n",
		`coppice_build_info{version="v\"1",`, `coppice_sandboxes{state="live"} 0`, "coppice_http_open_streams 0\n",
		"# TYPE coppice_http_request_duration_seconds histogram\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in:\n%s", want, text)
		}
	}
	helped := map[string]bool{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, _, _ = strings.Cut(name, " ")
			if helped[name] {
				t.Errorf("%s has two HELP lines", name)
			}
			helped[name] = true
		}
	}
}

func TestDocs_WorkOffline(t *testing.T) {
	t.Parallel()
	h := newServer(auth.Principal{}, httpapi.Options{Roles: roles(&fake{})})
	page := ask(h, "GET", "/docs", "")
	policy := page.Header().Get("Content-Security-Policy")
	if page.Code != 200 || !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
		strings.Contains(policy, "http") {
		t.Errorf("%d %v", page.Code, page.Header())
	}
	if body := page.Body.String(); strings.Contains(body, "://") || strings.Contains(body, "<script>") {
		t.Errorf("the page refers to other hosts: %s", body)
	}
	for name, kind := range map[string]string{
		"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "start.js": "text/javascript",
		"LICENSE": "text/plain",
	} {
		if !strings.Contains(page.Body.String(), name) && kind != "text/plain" {
			t.Errorf("the page does not load %s", name)
		}
		plain, packed := ask(h, "GET", "/docs/"+name, ""), ask(h, "GET", "/docs/"+name, "", "Accept-Encoding", "gzip, br")
		for _, w := range []*httptest.ResponseRecorder{plain, packed} {
			if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) ||
				w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s: %d %v", name, w.Code, w.Header())
			}
		}
		if packed.Header().Get("Content-Encoding") == "gzip" && !bytes.HasPrefix(packed.Body.Bytes(), []byte{0x1f, 0x8b}) ||
			plain.Header().Get("Content-Encoding") != "" || plain.Body.Len() < 100 {
			t.Errorf("%s: %v, %v", name, packed.Header(), plain.Header())
		}
	}
	for _, name := range []string{"..%2Fdocs.go", "swagger-ui.css.gz", "nothing"} {
		if w := ask(h, "GET", "/docs/"+name, ""); w.Code != 404 {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

func TestIdempotencyKey_ReplaysOrConflicts(t *testing.T) {
	t.Parallel()
	begun, end := make(chan bool), make(chan bool)
	f := &slow{begun: begun, end: end}
	kept := &answersInMemory{}
	h := owned(httpapi.Options{Roles: roles(f), Answers: kept})
	fork := func(key, body string) *httptest.ResponseRecorder {
		return ask(h, "POST", "/v1/sandboxes/a/fork", body, "Idempotency-Key", key)
	}
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- fork("k", `{"n":1}`) }()
	<-begun
	if w := fork("k", `{"n":1}`); w.Code != 409 || !strings.Contains(w.Body.String(), `"kind":"conflict"`) {
		t.Errorf("while the first request is in progress: %d %s", w.Code, w.Body)
	}
	end <- true
	if w := <-first; w.Code != 201 || w.Header().Get("Idempotency-Replayed") != "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := fork("k", `{"n":1}`); w.Code != 201 || w.Header().Get("Idempotency-Replayed") != "true" ||
		w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("repeated request: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := fork("k", `{"n":2}`); w.Code != 422 {
		t.Errorf("another body: %d %s", w.Code, w.Body)
	}
	// A failed request can be retried.
	f.err = fault.New(fault.NoSpace, "full")
	go func() { first <- fork("l", ``) }()
	<-begun
	end <- true
	if w := <-first; w.Code != 507 || len(kept.all) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := fork("a b", ``); w.Code != 400 {
		t.Errorf("key with a space: %d %s", w.Code, w.Body)
	}
	if w := ask(owned(httpapi.Options{Roles: roles(f)}), "POST", "/v1/sandboxes/a/fork", "", "Idempotency-Key",
		"k"); w.Code != 501 {
		t.Errorf("without a store: %d %s", w.Code, w.Body)
	}
	// A stream that ends in an error is not stored for replay.
	f.engine = nil
	w := ask(owned(httpapi.Options{Roles: roles(&fake{err: fault.New(fault.Conflict, "no")}), Answers: kept}), "POST",
		"/v1/sandboxes/a/tournament",
		`{"test":"t","candidates":[{"cmd":"c"}]}`, "Idempotency-Key", "m", "Accept", "application/x-ndjson")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `"error"`) || len(kept.all) != 1 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestIdempotencyKey_PreventsRetryAfterCrash repeats a request whose daemon died: only its beginning is stored.
func TestIdempotencyKey_PreventsRetryAfterCrash(t *testing.T) {
	t.Parallel()
	begun, end := make(chan bool), make(chan bool)
	f := &slow{begun: begun, end: end}
	kept := &answersInMemory{}
	fork := func(h http.Handler, key string) *httptest.ResponseRecorder {
		return ask(h, "POST", "/v1/sandboxes/a/fork", "", "Idempotency-Key", key)
	}
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- fork(owned(httpapi.Options{Roles: roles(f), Answers: kept}), "k") }()
	<-begun
	next := owned(httpapi.Options{Roles: roles(&fake{}), Answers: kept}) // of another daemon
	if w := fork(next, "k"); w.Code != 409 || !strings.Contains(w.Body.String(), "its result is unknown") ||
		!strings.Contains(w.Body.String(), `"hint":"check what was done`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	end <- true
	if w := <-first; w.Code != 201 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := fork(next, "k"); w.Code != 201 || w.Header().Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// A request that cannot be stored first is not carried out, and one that was carried out but whose answer
	// could not be stored is not carried out again.
	kept.fail(fault.New(fault.NoSpace, "full"))
	if w := fork(next, "l"); w.Code != 507 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	kept.fail(nil)
	go func() { first <- fork(owned(httpapi.Options{Roles: roles(f), Answers: kept}), "l") }()
	<-begun
	kept.fail(fault.New(fault.NoSpace, "full"))
	end <- true
	if w := <-first; w.Code != 201 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	kept.fail(nil)
	if w := fork(next, "l"); w.Code != 409 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
