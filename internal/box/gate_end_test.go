//go:build linux && (amd64 || arm64)

package box_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxtest"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// TestGate_StopResetsConnections checks that the connections that are open when a box stops are recorded as ended, and
// that the host outside sees a reset: something may be missing, and an orderly end would hide that.
func TestGate_StopResetsConnections(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]func(testing.TB) plan.Config{"supervised": supervised, "ruled": ruled} {
		for which, then := range map[string]string{
			"open":                    "echo received; read -r <&3",
			"closed by its processes": "exec 3<&-; echo received",
		} {
			t.Run(name+", "+which, func(t *testing.T) {
				t.Parallel()
				l, err := net.Listen("tcp", netip.AddrPortFrom(outside(t).Addr(), 0).String())
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				at := l.Addr().(*net.TCPAddr).AddrPort()
				b := (boxtest.Tier{Config: config}).Start(t, func(c *plan.Config) {
					c.Phases = []plan.Phase{phase(t, time.Time{}, at.String())}
				})
				s := b.Open(t, wire.ExecRequest{Cmd: []string{"bash", "-c",
					fmt.Sprintf("exec 3<>/dev/tcp/%s/%d; read -r <&3; %s", at.Addr(), at.Port(), then)}})
				boxtest.WaitStarted(t, s)
				host, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer host.Close()
				if _, err := host.Write([]byte("x\n")); err != nil { // then the gate has completed the connection
					t.Fatal(err)
				}
				boxtest.WaitOutput(t, s, "received")
				if err := b.Stop(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				if _, err := host.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the host sees no reset: %v", err)
				}
				evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{})
				if err != nil || !slices.ContainsFunc(evs, func(e wire.NetEvent) bool {
					return e.Kind == wire.NetEnd && e.Port == int(at.Port()) && e.Reason == "the gate was closed"
				}) {
					t.Errorf("no end is recorded: %+v, %v", evs, err)
				}
			})
		}
	}
}
