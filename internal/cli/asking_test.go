//go:build linux

package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// TestClients_WaitForApproval runs common clients in the sandbox, each with a name that was not looked up before.
// Each client waits until the request is approved, and then works as it does on the host.
func TestClients_WaitForApproval(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.packages()
	l.box("--ask")
	for _, c := range labClients {
		t.Run(c.name, func(t *testing.T) {
			l := l.with(t)
			l.need(c.needs)
			host, port := c.name+".lab.test", c.port
			if port == 0 {
				port = 443
			}
			var out string
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				out, err = l.sh("H=" + host + "; " + c.script)
			}()
			q := l.asked(host, done)
			if q.Proto != "dns" || q.Name != host || strings.Contains(l.hits(), host) {
				t.Errorf("request %+v; requests that reached the hosts: %s", q, l.hits())
			}
			if said := l.run("net", "approve", sandbox, fmt.Sprintf("%s:%d", host, port),
				"--json"); !strings.Contains(said, `"settled":[{"place":"`+host+`"`) {
				t.Errorf("net approve printed %s", said)
			}
			<-done
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("output %q, missing %q", out, want)
				}
			}
			if c.name == "apt" { // it looks up SRV records first
				l.denied("dns", "_https._tcp."+host, "no approval is requested for names of services")
			}
			l.told("the decision", func(ev wire.NetEvent) bool {
				return ev.Kind == wire.NetAsk && ev.Name == host && ev.Verdict == wire.VerdictAllow &&
					strings.HasPrefix(ev.Rule, host)
			})
		})
	}

	// Approval of a name opens its usual port. A connection to another port is a separate request.
	t.Run("another port", func(t *testing.T) {
		l := l.with(t)
		l.need("curl")
		var out string
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			out, err = l.sh("curl -qsS http://twoports.lab.test/hello")
		}()
		l.asked("twoports.lab.test", done)
		l.run("net", "approve", sandbox, "twoports.lab.test")
		if q := l.asked("twoports.lab.test:80", done); q.Proto != "tcp" || q.Port != 80 || q.Waiting == 0 ||
			strings.Contains(l.hits(), "http twoports.lab.test") {
			t.Errorf("%+v", q)
		}
		l.run("net", "approve", sandbox, "twoports.lab.test:80")
		if <-done; err != nil || !strings.Contains(out, "hello from twoports.lab.test") {
			t.Errorf("%v: %s", err, out)
		}
	})
	l.spared("evil.lab.test")
}

// asked waits for a pending request for a place, and returns it.
func (l *lab) asked(place string, over <-chan struct{}) wire.NetQuestion {
	l.t.Helper()
	var r wire.NetAsking
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err := json.Unmarshal([]byte(l.run("net", "log", sandbox, "--asking", "--json")), &r); err != nil {
			l.t.Fatal(err)
		}
		for _, q := range r.Asking {
			if q.Place == place {
				return q
			}
		}
		select {
		case <-over:
			l.t.Fatalf("the client exited without a pending request for %s: %+v", place, r)
		default:
		}
	}
	l.t.Fatalf("no pending request for %s: %+v", place, r)
	return wire.NetQuestion{}
}
