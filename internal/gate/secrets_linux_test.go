//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

const (
	secretToken  = "ghp_0123456789abcdefghijABCDEFGHIJ4SvFQn"
	placeholder1 = "ghp_PLACEHOLDERplaceholder0000000000AAAA"
	secretKey    = "key-9f8e7d6c5b4a39281706f5e4d3c2b1a0"
	placeholder2 = "key-PLACEHOLDER000000000000000000000"
)

// store is the broker's end: the values of grants.
type store struct {
	mu     sync.Mutex
	values map[string]string // guarded by mu
	gets   int               // guarded by mu
	err    error             // guarded by mu
}

func (s *store) Get(_ context.Context, grant, host, _, _ string) (line.Value, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	return line.Value{Bytes: []byte(s.values[grant]), Until: time.Now().Add(time.Minute)}, s.err
}

func (s *store) Fresh(string, line.Value) bool { return true }

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// granting is a sandbox with grants: github for api.example, and key for key.example.
type granting struct {
	*sandbox
	broker *store
	t      testing.TB
	ca     string
	seen   chan *http.Request // heads that arrived
	all    []grant.Issued
	mux    *http.ServeMux // of all hosts
}

func newGranting(t testing.TB, change func(name string, i *grant.Item)) *granting {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	n := policy.Network{Mode: policy.NetRules, Allow: []policy.Rule{
		httpRule(t, "api.example:80,443", nil), httpRule(t, "key.example:443", nil), httpRule(t, "free.example:443", nil),
		httpRule(t, "other.example:443", func(r *policy.Rule) { r.Methods = []string{"GET", "POST"} })}}
	h := newWebHosts(t, Rules(n), "api.example", "key.example", "other.example", "free.example")
	g := &granting{t: t, seen: make(chan *http.Request, 100),
		broker: &store{values: map[string]string{"github": secretToken, "key": secretKey}}}
	h.mux.HandleFunc("/seen/", func(_ http.ResponseWriter, r *http.Request) { g.seen <- r })
	h.mux.HandleFunc("/echo/", echoSecret)
	h.mux.HandleFunc("/odd/", echoOddly)
	h.mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		b := bytes.Repeat([]byte("{\"name\": \"a name\", \"id\": 12345, \"url\": \"https://api.example/\"},\n"), 1<<10)
		for range huge / len(b) {
			_, _ = w.Write(b)
		}
	})
	h.mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		g.seen <- r
		_, err := io.Copy(io.Discard, r.Body)
		g.seen <- r.WithContext(context.WithValue(r.Context(), broken{}, err))
	})
	g.sandbox, g.ca = h.web(t, veth)
	g.mux = h.mux
	items := map[string]grant.Item{
		"github": {Hosts: []string{"api.example"}, Sites: []grant.SiteItem{{In: "bearer"}, {In: "basic"},
			{In: "header", Name: "Authorization", Part: "token"}}},
		"key": {Hosts: []string{"key.example"}, Sites: []grant.SiteItem{{In: "header", Name: "X-Api-Key"},
			{In: "query", Name: "key"}, {In: "cookie", Name: "key"}, {In: "path"}}},
	}
	for _, name := range []string{"github", "key"} {
		i := items[name]
		if change != nil {
			change(name, &i)
		}
		one, err := i.Grant(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		issued := grant.Issued{Grant: one, Placeholder: map[string]string{"github": placeholder1, "key": placeholder2}[name]}
		if one.Mode == grant.ModeAdd {
			issued.Placeholder = ""
		}
		g.all = append(g.all, issued)
	}
	g.wallet.Connect(g.broker)
	g.give(g.all, nil)
	return g
}

type broken struct{}

func (g *granting) give(all []grant.Issued, used map[string]int64) {
	g.t.Helper()
	if err := g.SetSecrets(wallet.Grants{Sandbox: "box", Issued: all, Used: used}); err != nil {
		g.t.Fatal(err)
	}
}

// curl runs curl inside.
func (g *granting) curl(args ...string) string {
	out, err := g.do("run", nil, append([]string{"curl", "-sS", "--path-as-is", "--max-time", "60", "--cacert", g.ca},
		args...)...)
	if err != nil {
		return "curl: " + err.Error() + ": " + string(out)
	}
	return string(out)
}

// clean checks that no value is in what was given to the sandbox or in the journal, whatever its case, which names of
// headers lose.
func (g *granting) clean(texts ...string) {
	g.t.Helper()
	g.mu.Lock()
	texts = append(texts, fmt.Sprintf("%+v", g.events))
	g.mu.Unlock()
	for _, text := range texts {
		for _, value := range []string{secretToken, secretKey} {
			for name, form := range forms(value) {
				if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
					g.t.Errorf("the value as %s: %.300q", name, text)
				}
			}
		}
	}
}

func forms(value string) map[string]string {
	return map[string]string{"raw": value, "base64": base64.StdEncoding.EncodeToString([]byte(value))[:40],
		"hex": hex.EncodeToString([]byte(value))}
}

// echoSecret returns the secret of a request, in the form that the path names.
func echoSecret(w http.ResponseWriter, r *http.Request) {
	value := r.Header.Get("X-Api-Key")
	if _, v, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok {
		value = v
	}
	text := "before " + value + " after"
	switch as := strings.TrimPrefix(r.URL.Path, "/echo/"); as {
	case "base64":
		text = base64.StdEncoding.EncodeToString([]byte(text))
	case "hex":
		text = hex.EncodeToString([]byte(text))
	case "query":
		text = url.Values{"t": {value}}.Encode()
	case "json":
		b, _ := json.Marshal(map[string]string{"token": value})
		text = string(b)
	case "header":
		w.Header().Set("X-Echo", value)
		w.Header().Set("Location", "/?t="+value)
	case "early":
		w.Header().Set("Link", "<"+value+">")
		w.WriteHeader(http.StatusEarlyHints)
	case "trailer":
		w.Header().Set("Trailer", "X-Echo")
		io.WriteString(w, text)
		w.Header().Set("X-Echo", value)
		return
	case "pieces":
		for _, c := range text {
			fmt.Fprintf(w, "%c", c)
			_ = http.NewResponseController(w).Flush()
		}
		return
	case "gzip":
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, text)
		z.Close()
		return
	case "zstd":
		w.Header().Set("Content-Encoding", "zstd")
		z, _ := zstd.NewWriter(w)
		io.WriteString(z, text)
		z.Close()
		return
	case "br":
		w.Header().Set("Content-Encoding", "br")
	case "accepts":
		text = r.Header.Get("Accept-Encoding")
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(text)))
	io.WriteString(w, text)
}

// TestGrants_PutValuesIn checks what arrives at the server for what the sandbox sends, over both versions of HTTP.
func TestGrants_PutValuesIn(t *testing.T) {
	t.Parallel()
	g := newGranting(t, nil)
	head := func(name string) func(*http.Request) string {
		return func(r *http.Request) string { return strings.Join(r.Header[name], "|") }
	}
	for _, x := range []struct {
		args []string
		got  func(*http.Request) string
		want string
	}{
		{[]string{"https://api.example/seen/", "-H", "Authorization: Bearer " + placeholder1}, head("Authorization"),
			"Bearer " + secretToken},
		{[]string{"https://api.example/seen/", "-H", "Authorization: token " + placeholder1}, head("Authorization"),
			"token " + secretToken},
		{[]string{"https://api.example/seen/", "-u", "me:" + placeholder1}, func(r *http.Request) string {
			u, p, _ := r.BasicAuth()
			return u + ":" + p
		}, "me:" + secretToken},
		{[]string{"https://key.example/seen/", "-H", "X-Api-Key: " + placeholder2}, head("X-Api-Key"), secretKey},
		{[]string{"https://key.example/seen/?a=1&key=" + placeholder2}, func(r *http.Request) string { return r.URL.RawQuery },
			"a=1&key=" + secretKey},
		{[]string{"https://key.example/seen/" + placeholder2 + "/x"}, func(r *http.Request) string { return r.URL.Path },
			"/seen/" + secretKey + "/x"},
		{[]string{"https://key.example/seen/", "-H", "Cookie: a=1; key=" + placeholder2}, head("Cookie"), "a=1; key=" + secretKey},
		{[]string{"https://api.example/seen/"}, head("Authorization"), ""},
		{[]string{"https://free.example/seen/", "-H", "X: " + placeholder1, "--cacert", ""}, nil, ""},
	} {
		for _, version := range []string{"--http1.1", "--http2"} {
			if x.got == nil {
				continue
			}
			out := g.curl(append(x.args, version, "-w", "%{http_code} %{http_version}")...)
			if !strings.HasPrefix(out, "200") {
				t.Errorf("%q: %s", x.args, out)
				continue
			}
			if got := x.got(<-g.seen); got != x.want {
				t.Errorf("%q: %q, want %q", x.args, got, x.want)
			}
			g.clean(out)
		}
	}
	e := g.wait(t, "a use", func(e Event) bool { return e.Kind == KindRequest && slices.Equal(e.Grants, []string{"key"}) })
	if e.Name != "key.example" || e.Method != "GET" {
		t.Errorf("%+v", e)
	}
	if g.broker.gets > 2 {
		t.Errorf("the values were asked for %d times", g.broker.gets)
	}
}

// TestGrants_AddValues checks grants without a placeholder.
func TestGrants_AddValues(t *testing.T) {
	t.Parallel()
	g := newGranting(t, func(name string, i *grant.Item) {
		if name == "github" {
			i.Mode, i.Sites, i.Paths = "add", []grant.SiteItem{{In: "bearer"}}, []string{"/seen/mine/*"}
		}
	})
	for path, want := range map[string]string{"/seen/mine/x": "Bearer " + secretToken, "/seen/x": "Bearer own"} {
		g.curl("https://api.example"+path, "-H", "Authorization: Bearer own")
		if got := (<-g.seen).Header.Get("Authorization"); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	g.clean()
}

// TestGrants_Refuse checks requests whose placeholder would go where the grant does not let it.
func TestGrants_Refuse(t *testing.T) {
	t.Parallel()
	g := newGranting(t, func(name string, i *grant.Item) {
		if name == "github" {
			i.Paths = []string{"/seen/*"}
		}
	})
	bearer := "Authorization: Bearer " + placeholder1
	for _, x := range []struct {
		args []string
		want string
	}{
		{[]string{"https://other.example/seen/", "-H", bearer}, "reason: grant github is not for other.example:443\nhint: coppice grant box github --host other.example"},
		{[]string{"https://key.example/seen/", "-H", bearer}, "grant github is not for key.example"},
		{[]string{"https://other.example/seen/?t=" + placeholder1}, "grant github is not for other.example"},
		{[]string{"https://api.example/other", "-H", bearer}, "grant github does not allow GET /other"},
		{[]string{"https://api.example/seen/", "-H", "X-Other: " + placeholder1}, "is not at one of its sites"},
		{[]string{"https://api.example/seen/", "-H", bearer, "-H", "X-Other: " + placeholder1}, "twice"},
		{[]string{"https://api.example/seen/", "-X", "TRACE"}, "method TRACE"},
		{[]string{"https://api.example/seen/", "-H", bearer, "-H", "Connection: Authorization", "--http1.1"},
			"is not in the request that was decided about"},
	} {
		out := g.curl(append(x.args, "-w", "\n%{http_code}")...)
		if !strings.Contains(out, x.want) || !strings.HasSuffix(out, "\n403") {
			t.Errorf("%q: %s", x.args, out)
		}
		g.clean(out)
	}
	e := g.denied(t, TCP, "grant github is not for other.example:443")
	if e.Status != 403 || e.Hint == "" || !slices.Equal(e.Grants, []string{"github"}) || e.Verdict != Deny {
		t.Errorf("%+v", e)
	}
	// A placeholder in a body is sent as what it is.
	if out := g.curl("https://other.example/echo/", "-d", placeholder1, "-w", "%{http_code}"); !strings.HasSuffix(out, "200") {
		t.Errorf("%s", out)
	}
	if len(g.seen) > 0 {
		t.Errorf("a request arrived: %v", (<-g.seen).Header)
	}
	if g.broker.gets > 1 { // one for the request whose header was then missing
		t.Errorf("the value was asked for %d times", g.broker.gets)
	}
}

// TestGrants_WithoutTheBroker checks that the error says what to do.
func TestGrants_WithoutTheBroker(t *testing.T) {
	t.Parallel()
	g := newGranting(t, nil)
	get := []string{"https://api.example/seen/", "-H", "Authorization: Bearer " + placeholder1, "-w", "\n%{http_code}"}
	for _, x := range []struct {
		err  error
		want string
	}{
		{fault.New(fault.Unavailable, "the broker of secrets does not run").WithHint("coppice secret ls"),
			"reason: the broker of secrets does not run\nhint: coppice secret ls\n\n502"},
		{fault.New(fault.Denied, "the broker refuses").WithHint("ask the owner"), "reason: the broker refuses\nhint: ask the owner\n\n403"},
	} {
		g.broker.fail(x.err)
		if out := g.curl(get...); !strings.HasSuffix(out, x.want) {
			t.Errorf("%s", out)
		}
	}
	g.wallet.Connect(nil)
	if out := g.curl(get...); !strings.Contains(out, "coppice secret ls") || !strings.HasSuffix(out, "502") {
		t.Errorf("%s", out)
	}
	g.denied(t, TCP, "the broker of secrets does not run")
	g.broker.fail(nil)
	g.wallet.Connect(g.broker)
	if out := g.curl(get...); !strings.HasSuffix(out, "200") {
		t.Errorf("%s", out)
	}
	g.wait(t, "a use", func(e Event) bool { return e.Kind == KindRequest && len(e.Grants) == 1 })
}

// TestGrants_CleanAnswers has the server return the secret in many forms.
func TestGrants_CleanAnswers(t *testing.T) {
	t.Parallel()
	g := newGranting(t, nil)
	for _, version := range []string{"--http1.1", "--http2"} {
		for as, want := range map[string]string{"": "before " + placeholder1 + " after", "base64": "200", "hex": "200",
			"query": "t=" + placeholder1, "json": `{"token":"` + placeholder1 + `"}`, "header": placeholder1, "early": placeholder1,
			"trailer": placeholder1, "pieces": placeholder1[3:] + " after", "accepts": "identity", "gzip": "curl: ", "zstd": "curl: ",
			"br": "cannot be searched for secrets"} {
			out := g.curl("https://api.example/echo/"+as, version, "-H", "Authorization: Bearer "+placeholder1, "-i",
				"-H", "Accept-Encoding: gzip, br", "-w", "%{http_code}")
			if !strings.Contains(out, want) {
				t.Errorf("%s %s: %s", as, version, out)
			}
			g.clean(out)
		}
	}
	g.denied(t, TCP, "the answer had the secret of grant github, which was replaced")
	g.denied(t, TCP, "the encoded body has the secret of grant github")
	// A host without a grant is not searched, and answers are as they were.
	out := g.curl("https://other.example/echo/accepts", "-H", "Accept-Encoding: gzip")
	if !strings.Contains(out, "gzip") {
		t.Errorf("%s", out)
	}
}

// TestGrants_UsesAreCounted checks that a use is in the journal before the request arrives, and that none is beyond the
// limit.
func TestGrants_UsesAreCounted(t *testing.T) {
	t.Parallel()
	g := newGranting(t, func(_ string, i *grant.Item) { i.Uses = 5 })
	g.give(g.all, map[string]int64{"github": 2})
	get := []string{"https://api.example/seen/", "-H", "Authorization: Bearer " + placeholder1, "-w", "\n%{http_code}"}
	for i := range 5 {
		out := g.curl(get...)
		if ok := strings.HasSuffix(out, "200"); ok != (i < 3) || !ok && !strings.Contains(out, "grant github is used up") {
			t.Errorf("request %d: %s", i, out)
		}
		g.give(g.all, map[string]int64{"github": 2}) // counts since stay
	}
	if len(g.seen) != 3 {
		t.Errorf("%d requests arrived", len(g.seen))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	uses := 0
	for _, e := range g.events {
		if e.Kind == KindRequest && slices.Contains(e.Grants, "github") {
			uses++
		}
	}
	if uses != 3 {
		t.Errorf("%d uses are in the journal", uses)
	}
}

// TestGrants_Revoke checks that a running upload and a kept connection end, and that later requests are refused.
func TestGrants_Revoke(t *testing.T) {
	t.Parallel()
	g := newGranting(t, nil)
	upload := fmt.Sprintf(`(curl -sS --cacert %s -H 'Authorization: Bearer %s' -T - https://api.example/upload < /dev/zero &
pid=$!; wait $pid; echo ended $?)`, g.ca, placeholder1)
	out := make(chan string)
	go func() {
		b, _ := g.do("run", nil, "sh", "-c", upload)
		out <- string(b)
	}()
	g.wait(t, "the upload", func(e Event) bool { return e.Kind == KindRequest && e.Path == "/upload" })
	<-g.seen // otherwise it may be revoked before it leaves
	revoked := slices.Clone(g.all)
	revoked[0].Revoked = true
	begin := time.Now()
	g.give(revoked, nil)
	if r := <-g.seen; r.Context().Value(broken{}) == nil {
		t.Error("the upload ended without an error")
	}
	t.Logf("the server saw the end after %v", time.Since(begin))
	if got := <-out; !strings.Contains(got, "ended") || strings.Contains(got, "ended 0") {
		t.Errorf("%s", got)
	}
	g.wait(t, "the end", func(e Event) bool {
		return e.Kind == KindEnd && e.Reason == "grant github was revoked or changed"
	})
	if got := g.curl("https://api.example/seen/", "-H", "Authorization: Bearer "+placeholder1); !strings.Contains(got,
		"reason: grant github was revoked, or is one of another sandbox\nhint: coppice grant box github\n") {
		t.Errorf("%s", got)
	}
	// The other grant was not changed.
	if got := g.curl("https://key.example/seen/", "-H", "X-Api-Key: "+placeholder2, "-w", "%{http_code}"); got != "200" {
		t.Errorf("%s", got)
	}
	g.clean()
}

// TestGrants_CutKeptConnections checks a connection without a request in progress, which has carried a secret, and one
// that was not inspected before a grant.
func TestGrants_CutKeptConnections(t *testing.T) {
	t.Parallel()
	g := newGranting(t, func(name string, i *grant.Item) {
		if i.Insecure = true; name == "github" {
			i.Ports = []uint16{80}
		} else {
			i.Ports = []uint16{443}
		}
	})
	request := func(path string) []byte {
		return []byte("GET " + path + " HTTP/1.1\r\nHost: api.example\r\nAuthorization: Bearer " + placeholder1 + "\r\n\r\n")
	}
	none := func() { g.give(nil, nil) }
	for name, x := range map[string]struct{ before, change func() }{
		"carried": {func() { g.give(g.all, nil) }, none}, "spliced": {none, func() { g.give(g.all, nil) }}} {
		x.before()
		g.must(t, "drop", nil)
		if got := g.must(t, "hold", request("/echo/"), "api.example:80"); !bytes.Contains(got, []byte("200 OK")) {
			t.Errorf("%s: %q", name, got)
		}
		x.change()
		if got, err := g.do("ended", nil, "0"); err == nil && !strings.Contains(string(got), "reset") && !strings.Contains(string(got), "EOF") {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	g.wait(t, "an end", func(e Event) bool { return e.Kind == KindEnd && e.Reason == "the grants were changed" })
	g.wait(t, "an end", func(e Event) bool { return e.Kind == KindEnd && e.Reason == "grant github was revoked or changed" })
}

const huge = 32 << 20

// BenchmarkGrants_Download downloads from a host whose answers are not searched, because it has no grant, and from one
// with 1 and with 24 grants whose values are known. BenchmarkGrants_Requests makes requests without and with a secret.
// Both report the time on CPUs, of gate and server.
func BenchmarkGrants_Download(b *testing.B) {
	for _, n := range []int{0, 1, 24} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g, host := newGranting(b, nil), "api.example"
			var all []grant.Issued
			for i := range n {
				one, err := grant.Item{Hosts: []string{host}, Sites: []grant.SiteItem{{In: "header",
					Name: fmt.Sprintf("X-Key-%d", i)}}}.Grant(fmt.Sprintf("g%d", i), time.Now())
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, grant.Issued{Grant: one, Placeholder: fmt.Sprintf("PLACEHOLDER-%028d", i)})
				g.broker.values[one.Name] = fmt.Sprintf("%040x", sha256.Sum256([]byte(one.Name)))[:40]
			}
			if n == 0 {
				host = "other.example"
			}
			g.give(all, nil)
			for i := range n {
				if out := g.curl("https://"+host+"/seen/", "-H", fmt.Sprintf("X-Key-%d: PLACEHOLDER-%028d", i, i)); out != "" {
					b.Fatal(out)
				}
			}
			b.SetBytes(huge)
			begin := cpuTime()
			g.must(b, "run", nil, "sh", "-c", fmt.Sprintf("for i in $(seq %d); do curl -sS --cacert %s -o /dev/null https://%s/huge; done",
				b.N, g.ca, host))
			b.ReportMetric(float64(huge)*float64(b.N)/1e6/(cpuTime()-begin).Seconds(), "MB/cpu-s")
		})
	}
}

func BenchmarkGrants_Requests(b *testing.B) {
	for name, url := range map[string]string{"plain": "https://other.example/", "secret": "https://key.example/x?key=" + placeholder2} {
		b.Run(name, func(b *testing.B) {
			g := newGranting(b, nil)
			begin := cpuTime()
			g.must(b, "https", nil, g.ca, fmt.Sprint(b.N), url)
			b.ReportMetric(float64((cpuTime()-begin).Microseconds())/float64(b.N), "cpu-us/op")
		})
	}
}

// cpuTime returns the time of this process on CPUs: the time on the wall depends on what else runs.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
