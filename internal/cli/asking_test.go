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

// TestClients_WaitForApproval runs common clients inside, with a name that was not looked up
// before: each waits until a person approves the request, and then works as it does outside.
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
				t.Errorf("%+v, and the hosts were asked for %s", q, l.hits())
			}
			if said := l.run("net", "approve", sandbox, fmt.Sprintf("%s:%d", host, port),
				"--json"); !strings.Contains(said, `"settled":[{"place":"`+host+`"`) {
				t.Errorf("it settled %s", said)
			}
			<-done
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("it wrote %q, without %q", out, want)
				}
			}
			if c.name == "apt" { // which asks for the names of services first
				l.denied("dns", "_https._tcp."+host, "no approval is requested for names of services")
			}
			l.told("the answer", func(ev wire.NetEvent) bool {
				return ev.Kind == wire.NetAsk && ev.Name == host && ev.Verdict == wire.VerdictAllow &&
					strings.HasPrefix(ev.Rule, host)
			})
		})
	}

	// A name that was agreed to opens its port; another is asked about as it is connected to.
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

// asked waits until a place is asked about, and gives the question.
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
			l.t.Fatalf("it ended, and nobody was asked about %s: %+v", place, r)
		default:
		}
	}
	l.t.Fatalf("nobody is asked about %s: %+v", place, r)
	return wire.NetQuestion{}
}
