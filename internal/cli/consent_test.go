//go:build linux

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestConsent_AtATerminal checks that create asks once for what a project's file requests, shows it, grants nothing
// without an answer, and asks again when the file has changed.
func TestConsent_AtATerminal(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.box() // the desk removes it
	project := t.TempDir()
	v.cwd = project
	request := func(path string) {
		t.Helper()
		text := "version: 1\nnetwork: {allow: [api.lab.test]}\nsecrets:\n  key: {hosts: [api.lab.test], sites: [{in: bearer}], " +
			"paths: [" + path + "], env: [KEY]}\n"
		if err := os.WriteFile(filepath.Join(project, "coppice.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string) *terminal {
		t.Helper()
		t.Cleanup(func() { v.try("rm", "--force", name) })
		return v.open("create", name, "--from", "host", "--no-repo")
	}
	request("/echo")
	for i, answer := range []string{"n\r", "\r", "\x04"} {
		term := create("refused")
		if shown := term.see("[y/N] "); i == 0 {
			for _, want := range []string{"coppice.yaml requests a grant:", "secret", "api.lab.test", "/echo", "bearer", "KEY", "no end",
				"unlimited"} {
				if !strings.Contains(shown, want) {
					t.Errorf("the question lacks %q: %s", want, shown)
				}
			}
		}
		term.enter(answer)
		term.see("no sandbox was created")
		term.gone()
	}
	if out := v.run("grants", "consent", "--list", "--json"); !strings.Contains(out, `"consents":[]`) {
		t.Errorf("consents: %s", out)
	}

	term := create("first")
	term.see("[y/N] ")
	term.enter("y\r")
	term.see("created first")
	term.gone()
	if g := v.grant("first"); g.State != wire.GrantLive {
		t.Errorf("%+v", g)
	}
	again := create("second")
	if shown := again.see("created second"); strings.Contains(shown, "[y/N]") {
		t.Errorf("create asks again: %s", shown)
	}
	again.gone()

	request("/*")
	term = create("third")
	term.see("[y/N] ")
	term.enter("n\r")
	term.gone()
	if out, err := v.try("status", "third"); err == nil {
		t.Errorf("a sandbox with a changed request was created: %s", out)
	}
}

// TestGrants_Ask checks that a request that would carry a secret waits for its owner, who sees what it is, and that the
// answers are recorded.
func TestGrants_Ask(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.need("curl")
	v.box("--grant", "key,host=api.lab.test,bearer,env=KEY,ask=first,uses=10", "--allow", "curl.lab.test")
	send := func() (done chan struct{}, out *string) {
		done, out = make(chan struct{}), new(string)
		go func() {
			defer close(done)
			*out, _ = v.in(sandbox, `curl -qsS -w '%{http_code}' -H "Authorization: Bearer $KEY" https://api.lab.test/echo || true`)
		}()
		return done, out
	}
	pending := func(done <-chan struct{}) wire.NetQuestion {
		t.Helper()
		var r wire.NetAsking
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if err := json.Unmarshal([]byte(v.run("net", "log", sandbox, "--asking", "--json")), &r); err != nil {
				t.Fatal(err)
			}
			if len(r.Asking) == 1 {
				return r.Asking[0]
			}
			select {
			case <-done:
				t.Fatal("the request ended without a question")
			default:
			}
		}
		t.Fatalf("%+v are pending", r.Asking)
		return wire.NetQuestion{}
	}

	done, out := send()
	q := pending(done)
	if q.Grant != "key" || q.Method != "GET" || q.Path != "/echo" || !strings.HasPrefix(q.Place, wire.GrantQuestion) {
		t.Errorf("%+v", q)
	}
	if g := v.grant(sandbox); g.Used != 0 || v.count("api.lab.test") != 0 || g.Ask != "first" {
		t.Errorf("before the answer: %+v, %s", g, v.hits())
	}
	if _, err := v.try("net", "approve", sandbox, q.Place, "other.lab.test"); err == nil {
		t.Error("a rule and a request were approved together")
	}
	v.run("net", "deny", sandbox, q.Place)
	if <-done; !strings.HasSuffix(*out, "403") || v.count("api.lab.test") != 0 {
		t.Errorf("a denied request: %s; %s", *out, v.hits())
	}
	if _, err := v.try("net", "approve", sandbox, q.Place); err == nil {
		t.Error("a request that was denied can be approved")
	}

	done, out = send()
	v.run("net", "approve", sandbox, pending(done).Place)
	if <-done; !strings.HasSuffix(*out, "200") || v.count("api.lab.test") != 1 {
		t.Errorf("an approved request: %s; %s", *out, v.hits())
	}
	// The approval outlives the processes of the sandbox.
	v.run("stop", sandbox)
	done, out = send()
	if <-done; !strings.HasSuffix(*out, "200") || v.count("api.lab.test") != 2 {
		t.Errorf("a later request: %s; %s", *out, v.hits())
	}
	v.absent("the answers", *out)
	records := v.run("ledger", "show", sandbox, "--json")
	for _, want := range []string{`"event":"denied"`, `"event":"approved"`, `GET api.lab.test/echo`} {
		if !strings.Contains(records, want) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
	if g := v.grant(sandbox); g.Used != 2 || g.Refused == nil || !strings.Contains(g.RefusedWhy, "denied by the owner") {
		t.Errorf("%+v", g)
	}
	v.absent("the audit log", records)
}
