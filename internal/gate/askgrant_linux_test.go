//go:build linux && (amd64 || arm64)

package gate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/gate/wallet"
	"github.com/coppice-dev/coppice/internal/grant"
)

const bearer1 = "Authorization: Bearer " + placeholder1

// sent starts a request inside, in the background, and returns its output when it has ended.
func (g *granting) sent(args ...string) <-chan string {
	g.t.Helper()
	name, out := filepath.Join(g.t.TempDir(), "out"), make(chan string, 1)
	const script = `f=$1; shift; (curl -sS --max-time 120 -w ' %{http_code}' "$@" >"$f.part" 2>&1; mv "$f.part" "$f") ` +
		`>/dev/null 2>&1 &`
	all := append([]string{"sh", "-c", script, "sh", name, "--cacert", g.ca}, args...)
	if text, err := g.do("run", nil, all...); err != nil {
		g.t.Fatalf("%v: %s", err, text)
	}
	go func() {
		for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			if text, err := os.ReadFile(name); err == nil {
				out <- string(text)
				return
			}
		}
		out <- "the request did not end"
	}()
	return out
}

// asked waits until n requests are pending, and returns them.
func (g *granting) asked(n int, out <-chan string) []Question {
	g.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if all := g.Stats().Asking; len(all) == n {
			return all
		}
		select {
		case text := <-out:
			g.t.Fatalf("the request ended without a question: %s", text)
		default:
		}
	}
	g.t.Fatalf("%+v are pending, want %d", g.Stats().Asking, n)
	return nil
}

// approve replaces the approved hosts of the grant github.
func (g *granting) approve(hosts ...string) {
	g.t.Helper()
	err := g.SetSecrets(wallet.Grants{Sandbox: "box", Issued: g.all, Approved: map[string][]string{"github": hosts}})
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *granting) gets() int {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	return g.broker.gets
}

func askingGrant(mode string) func(string, *grant.Item) {
	return func(name string, i *grant.Item) {
		if i.Ask = mode; name == "github" {
			i.Uses = 2
		}
	}
}

// TestGrantAsk_First checks that the first request to a host waits, that it has neither a use nor a value of the grant
// meanwhile, and that an approval of the host holds for others.
func TestGrantAsk_First(t *testing.T) {
	t.Parallel()
	g := newGranting(t, askingGrant("first"))
	one := g.sent("-X", "POST", "-d", "body", "-H", bearer1, "https://api.example/echo/raw?q=private")
	q := g.asked(1, one)[0]
	if q.Grant != "github" || q.Name != "api.example" || q.Method != "POST" || q.Path != "/echo/raw" || q.ID == "" ||
		q.Waiting != 1 || q.Port != 443 {
		t.Errorf("%+v", q)
	}
	if g.gets() != 0 {
		t.Error("a value was fetched for a request that is not approved")
	}
	// Another request joins the question, and one without the placeholder does not wait.
	two := g.sent("-H", bearer1, "https://api.example/echo/raw")
	if text := g.curl("https://key.example/echo/raw"); !strings.Contains(text, "before  after") {
		t.Error(text)
	}
	for deadline := time.Now().Add(2 * time.Minute); g.Stats().Asking[0].Waiting < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second request does not wait")
		}
	}
	g.approve("api.example")
	for _, out := range []<-chan string{one, two} {
		if text := <-out; text != "before "+placeholder1+" after 200" {
			t.Errorf("an approved request: %s", text)
		}
	}
	// Both uses are gone now, and none was lost while the requests waited.
	if text := <-g.sent("-H", bearer1, "https://api.example/echo/raw"); !strings.HasSuffix(text, " 403") ||
		!strings.Contains(text, "is used up") {
		t.Errorf("a third request: %s", text)
	}
	g.settled(t, Allow)
	g.clean()
}

// settled checks the events about the only question.
func (g *granting) settled(t *testing.T, last Verdict) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var verdicts []Verdict
	for _, e := range g.events {
		if e.Kind == KindAsk {
			verdicts = append(verdicts, e.Verdict)
			if e.Question == "" || len(e.Grants) != 1 || e.Method == "" || strings.Contains(e.Path, "private") {
				t.Errorf("%+v", e)
			}
		}
	}
	if len(verdicts) != 2 || verdicts[0] != Ask || verdicts[1] != last {
		t.Errorf("verdicts %v", verdicts)
	}
}

// TestGrantAsk_Each checks that an approval is for one request, and that a denial, the end of the time, a change of the
// grant and its revocation deny a request that waits.
func TestGrantAsk_Each(t *testing.T) {
	t.Parallel()
	g := newGranting(t, func(_ string, i *grant.Item) { i.Ask = "each" })
	send := func() <-chan string { return g.sent("-H", bearer1, "https://api.example/echo/raw") }

	one, two := send(), send()
	all := g.asked(2, one)
	if all[0].ID == all[1].ID {
		t.Fatalf("%+v", all)
	}
	g.Answer("no-such-id", true)
	g.Answer("", true)
	g.Answer(all[0].ID, true)
	var first string
	select {
	case first = <-one:
		one = two
	case first = <-two:
	}
	if first != "before "+placeholder1+" after 200" {
		t.Errorf("an approved request: %s", first)
	}
	g.asked(1, one) // the other one still waits
	g.Answer(all[0].ID, true)
	g.Answer(all[1].ID, false)
	if text := <-one; !strings.HasSuffix(text, " 403") || !strings.Contains(text, "denied by the owner") {
		t.Errorf("a denied request: %s", text)
	}
	for what, deny := range map[string]func(){
		"not approved within": func() { g.desk.sweep(time.Now().Add(time.Hour)) },
		"was revoked or changed": func() {
			revoked := g.all[0]
			revoked.Revoked = true
			g.give([]grant.Issued{revoked, g.all[1]}, nil)
		},
	} {
		g.give(g.all, nil)
		out := send()
		g.asked(1, out)
		deny()
		if text := <-out; !strings.HasSuffix(text, " 403") || !strings.Contains(text, what) {
			t.Errorf("%s: %s", what, text)
		}
	}
	g.give(g.all, nil)
	out := send()
	id := g.asked(1, out)[0].ID
	g.SetPolicy(nil) // nothing may leave any more
	g.Answer(id, true)
	if text := <-out; strings.Contains(text, "200") {
		t.Errorf("after a change of the policy: %s", text)
	}
	if g.gets() != 1 {
		t.Errorf("%d values were fetched for one approved request", g.gets())
	}
	g.clean()
}
