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
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// door is a real daemon that listens on TCP, with two sandboxes: a and b.
type door struct {
	*doomed
	addr string
	ids  map[string]string // of the sandboxes, by name
	from byte              // last byte of the latest stranger's address
}

func newDoor(t *testing.T) *door {
	d := &door{doomed: newDoomed(t, "--http", "127.0.0.1:0"), ids: map[string]string{}}
	st, err := d.client.Daemon(t.Context())
	if err != nil || len(st.Listeners) != 2 {
		t.Fatalf("%+v, %v", st, err)
	}
	d.addr = strings.TrimPrefix(st.Listeners[1].URL, "http://")
	for _, name := range []string{"a", "b"} {
		sb, err := d.client.Create(t.Context(), wire.CreateRequest{Name: name}, nil)
		if err != nil {
			t.Fatal(err)
		}
		d.ids[name] = sb.ID
	}
	return d
}

// token creates a token, and returns its secret and its ID.
func (d *door) token(scope string, sandboxes ...string) (secret, id string) {
	d.t.Helper()
	res, err := d.client.CreateToken(d.t.Context(), wire.TokenRequest{Name: "t", Scope: scope, Sandboxes: sandboxes})
	if err != nil {
		d.t.Fatal(err)
	}
	return res.Secret, res.ID
}

// request is a request over TCP.
type request struct {
	method, path, body, token string
	header                    []string // names and values; may include Host
	stranger                  bool     // send it from a new address, without failed authentications
}

// send sends a request, and returns the response with an open body.
func (d *door) send(q request) *http.Response {
	d.t.Helper()
	dial := &net.Dialer{}
	if q.stranger {
		d.from++
		dial.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 1, 0, d.from)}
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial.DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(d.t.Context(), q.method, "http://"+d.addr+q.path, strings.NewReader(q.body))
	if err != nil {
		d.t.Fatal(err)
	}
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	for i := 0; i < len(q.header); i += 2 {
		if q.header[i] == "Host" {
			req.Host = q.header[i+1]
			continue
		}
		req.Header.Add(q.header[i], q.header[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		d.t.Fatalf("%+v: %v", q, err)
	}
	d.t.Cleanup(func() { res.Body.Close() })
	return res
}

// status sends a request, and returns the status without reading the body, which may be a stream.
func (d *door) status(q request) int {
	res := d.send(q)
	defer res.Body.Close()
	return res.StatusCode
}

// text sends a request, and returns the status and the body.
func (d *door) text(q request) (int, string) {
	d.t.Helper()
	res := d.send(q)
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		b = append(b, err.Error()...)
	}
	return res.StatusCode, string(b)
}

// offered is an operation of docs/openapi.json.
type offered struct{ method, path, scope string }

// operations returns the operations of docs/openapi.json, which a test of httpapi compares with those that are
// served.
func operations(t *testing.T) (list []offered) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Security []map[string][]string `json:"security"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(doc.Paths[path])) {
			op := offered{method: strings.ToUpper(method), path: path}
			if s := doc.Paths[path][method].Security; len(s) > 0 {
				op.scope = s[0]["token"][0]
			}
			list = append(list, op)
		}
	}
	if len(list) < 50 {
		t.Fatalf("only %d operations", len(list))
	}
	return append(list, offered{"POST", "/mcp", "read"}, offered{"GET", "/mcp", "read"}, offered{"DELETE", "/mcp", "read"})
}

// url fills in the parameters of a path.
func (d *door) url(path, sandbox string) string {
	id := d.ids[sandbox]
	if strings.HasPrefix(path, "/v1/tokens/") {
		id = "00000000"
	} else if path == "/v1/sessions/{id}/attach" {
		id += ".x0123456789"
	}
	return strings.NewReplacer("{name}", sandbox, "{id}", id, "{session}", id+".x0123456789", "{exec}", "x0123456789",
		"{ref}", "HEAD", "{tag}", "t", "{pid}", "99999", "{port}", "9", "{grant}", "g").Replace(path)
}

// TestOperations_RequireAuthorization calls every operation with each kind of insufficient credentials, and checks
// that it is refused and has no effect.
func TestOperations_RequireAuthorization(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	before, err := d.client.Status(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	all, _ := d.token("admin")
	read, _ := d.token("read")
	operate, _ := d.token("operate")
	others, _ := d.token("operate", "b")
	revoked, id := d.token("admin")
	if err := d.client.RevokeToken(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	rank := map[string]int{"": 0, "read": 1, "operate": 2, "admin": 3}
	// Operations that a token for other sandboxes may call, beside those of a sandbox, with their status. Writing to
	// a repository of the host, and granting a secret, are denied to every token for some sandboxes only.
	shared := map[string]int{"GET /v1/sandboxes": 200, "GET /v1/events": 200, "GET /v1/ping": 204,
		"POST /v1/sessions/{id}/attach": 404, "POST /mcp": 415, "GET /mcp": 400, "DELETE /mcp": 400,
		"POST /v1/sandboxes/{name}/git/apply": 403, "POST /v1/sandboxes/{name}/git/propose": 403,
		"PUT /v1/sandboxes/{name}/grants/{grant}": 403, "DELETE /v1/sandboxes/{name}/grants/{grant}": 403}
	for _, op := range operations(t) {
		name := op.method + " " + op.path
		q := request{method: op.method, path: d.url(op.path, "a"), body: "{}"}
		if op.path == "/v1/sessions/{id}/attach" {
			q.body = `{"read_only":true}` // typing requires more
		}
		is := func(who string, want int, q request) {
			t.Helper()
			if got := d.status(q); got != want {
				t.Errorf("%s as %s: %d, want %d", name, who, got, want)
			}
		}
		with := func(token string, header ...string) request {
			q := q
			q.token, q.header = token, header
			return q
		}
		in := func(who string, q request) {
			t.Helper()
			switch got := d.status(q); {
			case op.path == "/v1/attach/{session}" && got == 403: // it has its own tokens
			case got == 401, got == 403, got == 421, got == 429:
				t.Errorf("%s as %s: %d", name, who, got)
			}
		}
		is("another host name", 421, with(all, "Host", "evil.example"))
		is("a host name that contains ours", 421, with(all, "Host", "localhost.evil.example:80"))
		is("a page of another site", 403, with(all, "Origin", "http://evil.example"))
		is("a page of a preview", 403, with(all, "Origin", "http://80--a.localhost"))
		if op.scope == "" {
			in("a client without a token", q)
			continue
		}
		is("an image of another site", 403, with(all, "Sec-Fetch-Site", "cross-site"))
		for who, token := range map[string]string{"no token": "", "a wrong token": all[:len(all)-4] + "AAAA",
			"a revoked token": revoked} {
			q := with(token)
			q.stranger = true
			is(who, 401, q)
		}
		for scope, token := range map[string]string{"read": read, "operate": operate} {
			switch {
			case rank[scope] < rank[op.scope]:
				is("a token of scope "+scope, 403, with(token))
			case scope == "read": // reading changes nothing
				in("a token of scope "+scope, with(token))
			}
		}
		want, ok := shared[name]
		switch {
		case ok:
		case strings.Contains(op.path, "{name}"):
			want = 404
		default:
			want = 403
		}
		is("a token of another sandbox", want, with(others))
		if strings.Contains(op.path, "{name}") {
			there, not := with(others), with(others)
			not.path = strings.ReplaceAll(op.path, "{name}", "none")
			_, one := d.text(there)
			_, two := d.text(request{method: op.method, path: d.url(not.path, "a"), body: "{}", token: others})
			if strings.ReplaceAll(one, `\"a\"`, `\"none\"`) != two {
				t.Errorf("%s discloses another sandbox: %s; for a missing one: %s", name, one, two)
			}
		}
	}
	after, err := d.client.Status(t.Context(), "a")
	if err != nil || after.Sandbox.Head != before.Sandbox.Head || after.Snapshots != before.Snapshots {
		t.Errorf("a refused operation had an effect: %+v, %v", after, err)
	}
	if list, err := d.client.List(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	// Which paths are served is not disclosed without a token.
	if got := d.status(request{method: "GET", path: "/v2/none", stranger: true}); got != 401 {
		t.Errorf("an unknown path: %d", got)
	}
	if got := d.status(
		request{method: "GET", path: "/healthz", header: []string{"X", strings.Repeat("x", 64<<10)}}); got != 431 {
		t.Errorf("a header of 64 KiB: %d", got)
	}
	if got := d.status(
		request{method: "POST", path: "/v1/sandboxes/a/commit", body: `{"message":"` + strings.Repeat("x", 5<<20) + `"}`,
			token: all}); got != 413 && got != 400 {
		t.Errorf("a body of 5 MiB: %d", got)
	}
}

// secret is the content of a file outside of every sandbox.
const secret = "this is outside"

// maze creates links of every kind in a sandbox that lead out of it, to a directory that no sandbox shows.
func (d *door) maze(out string) {
	d.t.Helper()
	script := `set -e; mkdir -p /var/tmp/w/in/deep; cd /var/tmp/w; echo in >/var/tmp/w/in/f
ln -s OUT/secret abs; ln -s OUT dir; ln -s ../../../../../../../../OUT/secret up; ln -s in/../../../../../OUT updir
ln -s /proc/self/rootOUT/secret self; ln -s /proc/1/rootOUT/secret one; ln -s /proc/self/cwd cwd; ln -s /proc/self/fd fd; ln -s /proc/1/root root
ln -s dir chain; ln -s chain chain2; ln -s loop loop; ln -s dir/secret in/deep/through; ln -s / slash`
	if x, err := d.client.Exec(d.t.Context(), "a",
		wire.ExecRequest{Cmd: []string{"sh", "-c", strings.ReplaceAll(script, "OUT", out)}},
		client.Streams{Stderr: os.Stderr}); err != nil || x.Code != 0 {
		d.t.Fatalf("%+v, %v", x, err)
	}
}

// ways returns paths that lead to a file in out if a link or ".." is followed.
func ways(out, name string) []string {
	list := []string{"/var/tmp/w/dir/" + name, "/var/tmp/w/updir/" + name, "/var/tmp/w/chain2/" + name,
		"/var/tmp/w/in/../dir/" + name, "/var/tmp/w/in/deep/../../dir/" + name, "/var/tmp/w/slash" + out + "/" + name,
		"/var/tmp/w/root" + out + "/" + name, "/var/tmp/w/cwd/../" + out + "/" + name, "/proc/self/root" + out + "/" + name,
		"/proc/1/root" + out + "/" + name, "/var/tmp/w/fd/0/../" + name,
		"../../../../../.." + out + "/" + name, "/var/tmp/w/../../../.." + out + "/" + name, "var/tmp/w/dir//./" + name,
		out + "/" + name}
	if name == "secret" {
		list = append(list, "/var/tmp/w/abs", "/var/tmp/w/up", "/var/tmp/w/self", "/var/tmp/w/one",
			"/var/tmp/w/in/deep/through", "/var/tmp/w/loop", "/var/tmp/w/fd/0", "/var/tmp/w/fd/3", "/var/tmp/w/abs/.",
			"/var/tmp/w/dir/../"+filepath.Base(out)+"/secret")
	}
	return list
}

// outside verifies that the directory outside of the sandboxes is unchanged.
func outside(t *testing.T, out string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out, "secret"))
	if err != nil || string(b) != secret {
		t.Errorf("the file outside contains %q, %v", b, err)
	}
	list, err := os.ReadDir(out)
	if err != nil || len(list) != 1 {
		t.Errorf("the directory outside has %v, %v", list, err)
	}
}

// TestFileRoutes_FollowNoLinkOut follows links that a sandbox created, through each operation on files, in the live
// state and in a snapshot.
func TestFileRoutes_FollowNoLinkOut(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	// No sandbox shows the home.
	out := filepath.Join(d.home, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "secret"), []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	d.maze(out)
	token, _ := d.token("operate", "a")
	routes := map[string]bool{}
	for _, op := range operations(t) {
		if strings.HasPrefix(op.path, "/v1/sandboxes/{name}/files") {
			routes[op.method+strings.TrimPrefix(op.path, "/v1/sandboxes/{name}/files")] = true
		}
	}
	send := func(method, route string, query url.Values, body string) (int, string) {
		t.Helper()
		delete(routes, method+route)
		return d.text(
			request{method: method, path: "/v1/sandboxes/a/files" + route + "?" + query.Encode(), body: body, token: token})
	}
	for _, at := range []string{"", "HEAD"} { // paths inside are found
		if code, text := send("GET", "", url.Values{"path": {"/var/tmp/w/slash/var/tmp/w/in/deep/../f"}, "at": {at}},
			""); code != 200 || text != "in\n" {
			t.Errorf("inside at %q: %d %s", at, code, text)
		}
	}
	for _, p := range ways(out, "secret") {
		for _, at := range []string{"", "HEAD"} {
			q := url.Values{"path": {p}}
			if at != "" {
				q.Set("at", at)
			}
			if code, text := send("GET", "", q, ""); code == 200 || strings.Contains(text, secret) {
				t.Errorf("read %s at %q: %d %s", p, at, code, text)
			}
			if code, text := send("GET", "/tar", q, ""); strings.Contains(text, secret) || code == 500 {
				t.Errorf("tar %s at %q: %d %q", p, at, code, text)
			}
			q.Set("follow", "true")
			if code, text := send("GET", "/stat", q, ""); code == 200 &&
				strings.Contains(text, fmt.Sprintf(`"size":%d,`, len(secret))) || code == 500 {
				t.Errorf("stat %s at %q: %d %s", p, at, code, text)
			}
			q.Set("path", filepath.Dir(p))
			q.Set("depth", "2")
			if code, text := send("GET", "/list", q, ""); strings.Contains(text, `secret"`) &&
				!strings.Contains(text, `"target"`) || code == 500 {
				t.Errorf("list %s at %q: %d %s", p, at, code, text)
			}
		}
	}
	entry := func(name string) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 1, Typeflag: tar.TypeReg})
		_, _ = w.Write([]byte("x"))
		_ = w.Close()
		return b.String()
	}
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	for _, name := range []string{"secret", "planted", "planted/deep"} {
		for _, p := range ways(out, name) {
			q := url.Values{"path": {p}}
			send("PUT", "", q, "mine")
			send("PUT", "/tar", url.Values{"path": {filepath.Dir(p)}}, entry(filepath.Base(name)))
			send("PUT", "/tar", url.Values{"path": {"/var/tmp/w"}}, entry(strings.TrimPrefix(p, "/var/tmp/w/")))
			send("POST", "/mkdir", nil, `{"path":`+quote(p)+`,"parents":true}`)
			send("POST", "/move", nil, `{"from":"/var/tmp/w/in/f","to":`+quote(p)+`}`)
			send("POST", "/move", nil, `{"from":`+quote(p)+`,"to":"/var/tmp/w/in/f"}`)
			outside(t, out)
			q.Set("recursive", "true")
			// These contain links within the sandbox, and must not remove its root.
			if strings.Count(p, "..") == 0 {
				send("DELETE", "", q, "")
			}
			outside(t, out)
		}
		if code, text := send("GET", "", url.Values{"path": {"/var/tmp/w/in/f"}}, ""); strings.Contains(text, secret) {
			t.Errorf("the file outside was moved in: %d %s", code, text)
		}
	}
	delete(routes, "GET/watch")
	for _, p := range []string{"/var/tmp/w/dir", "/var/tmp/w/updir", "/proc/1/root" + out, "/var/tmp/w/root" + out} {
		res := d.send(request{method: "GET", path: "/v1/sandboxes/a/files/watch?path=" + url.QueryEscape(p), token: token}) //nolint:bodyclose // send sees to it
		if res.StatusCode == http.StatusOK {
			// A path of that name inside may be watched; changes outside must not be reported.
			line := make(chan string, 1)
			go func() {
				l, _ := bufio.NewReader(res.Body).ReadString('\n')
				line <- l
			}()
			if err := os.WriteFile(filepath.Join(out, "secret"), []byte(secret), 0o644); err != nil {
				t.Fatal(err)
			}
			send("PUT", "", url.Values{"path": {p + "/seen"}}, "x")
			if l := <-line; strings.Contains(l, "secret") {
				t.Errorf("watch %s: %s", p, l)
			}
		}
		res.Body.Close()
	}
	for r := range routes {
		t.Errorf("files%s was not tested", r)
	}
	outside(t, out)
}

// TestFileRoutes_ResistSwapRace lets a process of the sandbox repeatedly swap a directory and a link that leads out,
// while files are read and written through both names.
func TestFileRoutes_ResistSwapRace(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	out := filepath.Join(d.home, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "secret"), []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	const swap = `mkdir -p /var/tmp/w/d/e; cd /var/tmp/w; ln -s OUT l; while :; do mv -T d x; mv -T l d; mv -T d l; mv -T x d; mkdir -p d/e; done 2>/dev/null`
	if _, err := d.client.Run(ctx, "a",
		wire.RunRequest{Cmd: []string{"sh", "-c", strings.ReplaceAll(swap, "OUT", out)},
			Capture: wire.Capture{Off: true}}); err != nil {
		t.Fatal(err)
	}
	token, _ := d.token("operate", "a")
	done := 0
	for range 60 {
		for _, c := range []struct{ method, route, path, body string }{
			{"GET", "", "/var/tmp/w/d/secret", ""}, {"GET", "/stat", "/var/tmp/w/d/secret", ""},
			{"GET", "/list", "/var/tmp/w/d", ""}, {"GET", "/tar", "/var/tmp/w/d", ""},
			{"PUT", "", "/var/tmp/w/d/secret", "mine"}, {"PUT", "", "/var/tmp/w/d/planted", "x"},
			{"PUT", "", "/var/tmp/w/d/e/../planted", "x"}, {"DELETE", "", "/var/tmp/w/d/secret", ""},
		} {
			code, text := d.text(
				request{method: c.method, path: "/v1/sandboxes/a/files" + c.route + "?path=" + url.QueryEscape(c.path),
					body: c.body, token: token})
			if strings.Contains(text, secret) || c.route == "/list" && strings.Contains(text, `"/var/tmp/w/l/`) {
				t.Fatalf("%s %s %s: %d %s", c.method, c.route, c.path, code, text)
			}
			if code/100 == 2 {
				done++
			}
		}
	}
	if done < 60 {
		t.Errorf("only %d calls succeeded", done)
	}
	outside(t, out)
}

// TestRevokedToken_EndsSessions checks that revoking a token ends what was opened with it: a terminal, and an MCP
// session, which can use the forks that it creates.
func TestRevokedToken_EndsSessions(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	token, id := d.token("operate", "a")
	code, text := d.text(
		request{method: "POST", path: "/v1/sandboxes/a/exec?pty=true",
			body: `{"cmd":["sh","-c","echo ready; cat"]}`, token: token})
	var s wire.Session
	if err := json.Unmarshal([]byte(text), &s); err != nil || code != 201 {
		t.Fatalf("%d %s", code, text)
	}
	attach := func() string {
		code, text := d.text(request{method: "POST", path: "/v1/sessions/" + s.ID + "/attach", token: token})
		var a wire.AttachResult
		if err := json.Unmarshal([]byte(text), &a); err != nil || code != 200 {
			t.Fatalf("%d %s", code, text)
		}
		return a.URL
	}
	open, late := attach(), attach()
	ws, _, err := websocket.Dial(t.Context(), open, nil) //nolint:bodyclose // Dial sees to it
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if _, p, err := ws.Read(t.Context()); err != nil || !strings.Contains(string(p), "ready") {
		t.Fatalf("%q, %v", p, err)
	}

	// A model can use the forks that it creates in the same session.
	m := &mcpClient{door: d, token: token}
	m.call("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	m.call("notifications/initialized", "{}")
	if out := m.tool("head", `{"sandbox":"b"}`); !strings.Contains(out, "DID NOT EXECUTE") {
		t.Errorf("another sandbox: %s", out)
	}
	if out := m.tool("fork", `{"sandbox":"a","names":["mine"]}`); strings.Contains(out, "DID NOT EXECUTE") {
		t.Errorf("fork: %s", out)
	}
	if out := m.tool("head", `{"sandbox":"mine"}`); strings.Contains(out, "DID NOT EXECUTE") {
		t.Errorf("its fork: %s", out)
	}
	played := m.tool("tournament", `{"sandbox":"a","test":"true","candidates":[{"name":"x","cmd":"echo x >/var/tmp/x"}]}`)
	_, rest, _ := strings.Cut(played, `"sandbox":"`)
	fork, _, _ := strings.Cut(rest, `"`)
	if out := m.tool("status", `{"sandbox":"`+fork+`"}`); fork == "" || strings.Contains(out, "DID NOT EXECUTE") {
		t.Errorf("the fork of its candidate %q: %s; %s", fork, out, played)
	}
	// Forks of its sandbox that another client creates are not visible to it.
	if _, err := d.client.Fork(t.Context(), "a", wire.ForkRequest{Names: []string{"theirs"}}); err != nil {
		t.Fatal(err)
	}
	if out := m.tool("head", `{"sandbox":"theirs"}`); !strings.Contains(out, "DID NOT EXECUTE") {
		t.Errorf("a fork of another client: %s", out)
	}

	if err := d.client.RevokeToken(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	end, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if _, _, err = ws.Read(end); err != nil {
			break
		}
	}
	if end.Err() != nil {
		t.Error("the terminal is still open")
	}
	if _, res, err := websocket.Dial(t.Context(), late, nil); err == nil || res == nil || res.StatusCode != 403 { //nolint:bodyclose // there is none
		t.Errorf("a ticket of a revoked token: %v", err)
	}
	if code, text := d.text(
		request{method: "POST", path: "/mcp", body: `{"jsonrpc":"2.0","id":9,"method":"tools/list"}`, token: token,
			header: []string{"Mcp-Session-Id", m.session, "Content-Type", "application/json", "Accept",
				"application/json, text/event-stream"}}); code != 401 {
		t.Errorf("%d %s", code, text)
	}
}

// mcpClient is an MCP client over TCP.
type mcpClient struct {
	*door
	token, session string
	n              int
}

func (m *mcpClient) call(method, params string) string {
	m.t.Helper()
	m.n++
	id := fmt.Sprintf(`"id":%d,`, m.n)
	if strings.HasPrefix(method, "notifications/") {
		id = ""
	}
	header := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}
	if m.session != "" {
		header = append(header, "Mcp-Session-Id", m.session)
	}
	res := m.send(
		request{method: "POST", path: "/mcp",
			body: `{"jsonrpc":"2.0",` + id + `"method":"` + method + `","params":` + params + `}`, token: m.token,
			header: header})
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if res.StatusCode/100 != 2 {
		m.t.Fatalf("%s: %d %s", method, res.StatusCode, b)
	}
	if s := res.Header.Get("Mcp-Session-Id"); s != "" {
		m.session = s
	}
	return string(b)
}

func (m *mcpClient) tool(name, args string) string {
	m.t.Helper()
	return m.call("tools/call", `{"name":"`+name+`","arguments":`+args+`}`)
}

// TestPreview_AcceptsToken checks that a client whose token allows connections to a port can also use the token for
// the port's pages, and that the token is not forwarded to the sandbox.
func TestPreview_AcceptsToken(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	const echo = `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(s):
        s.send_response(200); s.end_headers(); s.wfile.write(str(s.headers).encode())
http.server.HTTPServer(("127.0.0.1", 38127), H).serve_forever()`
	if _, err := d.client.Run(t.Context(), "a", wire.RunRequest{Cmd: []string{"python3", "-c", echo}}); err != nil {
		t.Fatal(err)
	}
	for {
		ports, err := d.client.Ports(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(ports.Ports) > 0 {
			break
		}
	}
	operate, _ := d.token("operate", "a")
	read, _ := d.token("read")
	other, _ := d.token("operate", "b")
	hostOf := func(name, port string) string {
		st, err := d.client.Status(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return port + "--" + name + "-" + st.Sandbox.ID + ".localhost"
	}
	at := []string{"Host", hostOf("a", "38127")}
	if code, text := d.text(request{method: "GET", path: "/", token: operate, header: at}); code != 200 ||
		strings.Contains(text, "Authorization") || strings.Contains(text, operate) {
		t.Errorf("%d %s", code, text)
	}
	for who, token := range map[string]string{"no token": "", "a read token": read, "another sandbox's": other} {
		if code, text := d.text(request{method: "GET", path: "/", token: token, header: at}); code != 403 {
			t.Errorf("%s: %d %s", who, code, text)
		}
	}
	if code, _ := d.text(
		request{method: "GET", path: "/", token: operate[:len(operate)-4] + "AAAA", header: at,
			stranger: true}); code != 401 {
		t.Errorf("a wrong token: %d", code)
	}
	// With a preview link, the Authorization header of the application is forwarded.
	code, text := d.text(request{method: "POST", path: "/v1/sandboxes/a/ports/38127/preview", token: operate})
	var link wire.PreviewResult
	if err := json.Unmarshal([]byte(text), &link); err != nil || code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	u, err := url.Parse(link.URL)
	if err != nil {
		t.Fatal(err)
	}
	res := d.send(request{method: "GET", path: u.RequestURI(), header: at}) //nolint:bodyclose // send sees to it
	if len(res.Cookies()) != 1 {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	cookie := append([]string{"Cookie", res.Cookies()[0].String(), "Authorization", "Bearer of-the-app"}, at...)
	if code, text := d.text(request{method: "GET", path: "/", header: cookie}); code != 200 ||
		!strings.Contains(text, "Authorization: Bearer of-the-app") || strings.Contains(text, "coppice_preview") {
		t.Errorf("%d %s", code, text)
	}
	for _, host := range []string{hostOf("a", "38128"), hostOf("b", "38127")} {
		cookie[len(cookie)-1] = host
		if code, _ := d.text(request{method: "GET", path: "/", header: cookie}); code != 403 {
			t.Errorf("the cookie at %s: %d", host, code)
		}
	}
}
