//go:build linux

package cli_test

import (
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// grantLab is a lab whose sandbox is granted a secret.
type grantLab struct {
	*lab
	value  string
	secret needle // the part of the value that is random, and of all other values of the lab
}

// newGrantLab creates a lab with the secret key. The daemon's host trusts the lab's authority.
func newGrantLab(t *testing.T) *grantLab {
	l := newLab(t)
	l.trusted()
	random := rand.Text()
	v := &grantLab{l, "v" + random + "7", newNeedle(random)}
	v.store("key", v.value)
	return v
}

// store stores a secret.
func (v *grantLab) store(name, value string) {
	v.t.Helper()
	if out, err := v.feed(strings.NewReader(value+"\n"), "secret", "set", name); err != nil {
		v.t.Fatalf("%v: %s", err, out)
	}
}

// with returns the lab for a subtest.
func (v *grantLab) with(t *testing.T) *grantLab { return &grantLab{v.lab.with(t), v.value, v.secret} }

// box creates the sandbox. Its gate inspects, so that it trusts what the daemon's host trusts.
func (v *grantLab) box(flags ...string) {
	v.t.Helper()
	v.run(slices.Concat([]string{"create", sandbox, "--from", "host", "--no-repo"}, plainEnv(), flags)...)
}

// placeholder returns that of the grant key of a sandbox.
func (v *grantLab) placeholder(of string) string {
	v.t.Helper()
	return v.grant(of).Placeholder
}

func (v *grantLab) grant(of string) wire.Grant {
	v.t.Helper()
	all := v.grants(of)
	if len(all) != 1 {
		v.t.Fatalf("grants of %s: %+v", of, all)
	}
	return all[0]
}

func (v *grantLab) grants(of string) []wire.Grant {
	v.t.Helper()
	var r wire.GrantsResult
	if err := json.Unmarshal([]byte(v.run("grants", of, "--json")), &r); err != nil {
		v.t.Fatal(err)
	}
	return r.Grants
}

// in runs a script in a sandbox, and returns its output.
func (v *grantLab) in(of, script string) (string, error) {
	return v.try("exec", of, "--timeout", "3m", "--", "bash", "-c", "exec 2>&1; set -e; "+script)
}

// mustIn is in for scripts that must succeed.
func (v *grantLab) mustIn(of, script string) string {
	v.t.Helper()
	out, err := v.in(of, script)
	if err != nil {
		v.t.Fatalf("%s: %v: %s", script, err, out)
	}
	return out
}

// count returns how many requests to /echo of a host had the value.
func (v *grantLab) count(host string) int {
	return strings.Count(v.hits(), "echo "+host+" Bearer "+v.value+"\n")
}

// absent fails if the value, in any form, is in output.
func (v *grantLab) absent(what, output string) {
	v.t.Helper()
	if form := v.secret.in([]byte(output)); form != "" {
		v.t.Errorf("%s has the value, as %s: %s", what, form, output)
	}
}

// searchHome fails if the value is in a file of the home, or in what it reports about the sandbox.
func (v *grantLab) searchHome() {
	v.t.Helper()
	v.secret.inFiles(v.t, v.dir, func(path, form string) { v.t.Errorf("%s has the value, as %s", path, form) })
	for what, args := range map[string][]string{
		"the audit log":   {"ledger", "show", sandbox, "--json", "-n", "-1"},
		"the bundle":      {"ledger", "export", sandbox},
		"the network log": {"net", "log", sandbox, "--json", "-n", "-1"},
		"the grants":      {"grants", sandbox, "--json"},
		"the secrets":     {"secret", "ls", "--json"},
	} {
		v.absent(what, v.run(args...))
	}
}

// TestGrants_OverHTTP grants a secret for requests to one host, and checks what the host, the sandbox and the files of
// the home get.
func TestGrants_OverHTTP(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.need("curl")
	v.box("--grant", "key,host=api.lab.test,bearer,env=KEY,uses=100", "--allow", "other.lab.test", "--allow", "curl.lab.test")
	placeholder := v.placeholder(sandbox)
	const get = `curl -qsS -H "Authorization: Bearer $KEY" `

	t.Run("replaced", func(t *testing.T) {
		v := v.with(t)
		out := v.mustIn(sandbox, `echo "$KEY"; `+get+`-D- https://api.lab.test/echo; `+get+`--http1.1 -D- https://api.lab.test/echo`)
		v.absent("the answer", out)
		if !strings.Contains(out, "Authorization: Bearer "+placeholder) || !strings.HasPrefix(out, placeholder+"\n") {
			t.Errorf("the answer does not have the placeholder %s: %s", placeholder, out)
		}
		if v.count("api.lab.test") != 2 {
			t.Errorf("the host got: %s", v.hits())
		}
	})

	t.Run("not in other places", func(t *testing.T) {
		v := v.with(t)
		out := v.mustIn(sandbox, `curl -qsS -d "body $KEY" https://api.lab.test/echo`)
		if !strings.Contains(out, "body "+placeholder) || v.count("api.lab.test") != 2 {
			t.Errorf("answer %s; hits %s", out, v.hits())
		}
		out = v.mustIn(sandbox, `curl -qsS -w '%{http_code}' -H "X-Other: $KEY" https://api.lab.test/echo`)
		if !strings.HasSuffix(out, "403") {
			t.Errorf("another header: %s", out)
		}
	})

	t.Run("not to other hosts", func(t *testing.T) {
		v := v.with(t)
		out := v.mustIn(sandbox, get+`-w '%{http_code}' https://other.lab.test/echo || true; `+
			get+`-L "https://api.lab.test/away?to=https://other.lab.test/echo" || true`)
		v.absent("the answer", out)
		if v.count("other.lab.test") != 0 {
			t.Errorf("another host got the value: %s", v.hits())
		}
	})

	t.Run("the uses are listed", func(t *testing.T) {
		v := v.with(t)
		ev := v.told("a use", func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetHTTP && ev.Path == "/echo" && len(ev.Grants) == 1 && ev.Grants[0] == "key"
		})
		if ev.Name != "api.lab.test" {
			t.Errorf("%+v", ev)
		}
		if out := v.run("grants", sandbox, "--uses"); !strings.Contains(out, "/echo") || !strings.Contains(out, "grant key") {
			t.Errorf("uses: %s", out)
		}
		if g := v.grant(sandbox); g.Used < 2 || g.LastUsed == nil {
			t.Errorf("%+v", g)
		}
	})

	t.Run("no value in the home", func(t *testing.T) {
		v := v.with(t)
		v.run("stop", sandbox)
		v.searchHome()
	})

	t.Run("after a stop", func(t *testing.T) {
		v := v.with(t)
		before := v.count("api.lab.test")
		v.mustIn(sandbox, get+`https://api.lab.test/echo`)
		if v.count("api.lab.test") != before+1 || v.placeholder(sandbox) != placeholder {
			t.Errorf("the grant did not survive a stop: %s", v.hits())
		}
	})

	t.Run("with another daemon and broker", func(t *testing.T) {
		v := v.with(t)
		v.killDaemon()
		if err := killBroker(v.dir); err != nil {
			t.Fatal(err)
		}
		before := v.count("api.lab.test")
		v.run("ls") // starts both
		out := ""
		for deadline := time.Now().Add(patience); v.count("api.lab.test") == before; {
			if time.Now().After(deadline) {
				t.Fatalf("the grant does not work again: %s", out)
			}
			out, _ = v.in(sandbox, get+`https://api.lab.test/echo`)
		}
	})
}

// TestGrants_Revoked checks that a revoked grant refuses the next request, also on a connection that is kept alive.
func TestGrants_Revoked(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.need("curl")
	v.box("--grants-later", "--allow", "api.lab.test", "--allow", "curl.lab.test")
	v.run("grant", sandbox, "key", "--host", "api.lab.test", "--bearer", "--env", "KEY")
	placeholder := v.placeholder(sandbox)
	get := `curl -qsS -w '%{http_code}\n' -H "Authorization: Bearer ` + placeholder + `" https://api.lab.test/echo`
	if out := v.mustIn(sandbox, get); !strings.HasSuffix(out, "200\n") || v.count("api.lab.test") != 1 {
		t.Fatalf("%s; %s", out, v.hits())
	}

	v.run("revoke", sandbox, "key")
	out := v.mustIn(sandbox, get+` || true; echo "<$KEY>"`)
	if v.count("api.lab.test") != 1 || strings.Contains(out, "200\n") || !strings.Contains(out, "<>") {
		t.Errorf("after the revocation: %s; %s", out, v.hits())
	}
	if g := v.grant(sandbox); g.State != wire.GrantRevoked {
		t.Errorf("%+v", g)
	}

	// A grant of one use allows one request.
	v.run("grant", sandbox, "key", "--host", "api.lab.test", "--bearer", "--env", "KEY", "--uses", "1")
	once := `curl -qsS -w '%{http_code}\n' -H "Authorization: Bearer $KEY" https://api.lab.test/echo || true; `
	out = v.mustIn(sandbox, once+once)
	if v.count("api.lab.test") != 2 || !strings.Contains(out, "403\n") {
		t.Errorf("a grant of one use: %s; %s", out, v.hits())
	}
}

// TestGrants_InForks checks that a fork has only the grants that are issued again, with another placeholder.
func TestGrants_InForks(t *testing.T) {
	t.Parallel()
	v := newGrantLab(t)
	v.need("curl")
	v.box("--grant", "key,host=api.lab.test,bearer,env=KEY", "--allow", "curl.lab.test")
	t.Cleanup(func() { v.try("rm", "--force", "with", "without") })
	v.run("fork", sandbox, "without")
	v.run("fork", sandbox, "with", "--grants", "reissue")
	const get = `curl -qsS -w '%{http_code}\n' -H "Authorization: Bearer $KEY" https://api.lab.test/echo`
	v.mustIn("with", get)
	if v.count("api.lab.test") != 1 || v.placeholder("with") == v.placeholder(sandbox) {
		t.Errorf("placeholder %s of %s; hits %s", v.placeholder("with"), v.placeholder(sandbox), v.hits())
	}
	out := v.mustIn("without", `echo "<$KEY>"; curl -qsS -w '%{http_code}\n' -H "Authorization: Bearer `+
		v.placeholder(sandbox)+`" https://api.lab.test/echo || true`)
	if !strings.Contains(out, "<>") || v.count("api.lab.test") != 1 {
		t.Errorf("a fork without the grant: %s; %s", out, v.hits())
	}
	v.absent("a fork", out)
}
