//go:build linux && (amd64 || arm64)

package gate

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/thread"
)

func TestRefusedRoute_AllowsUnicastAlone(t *testing.T) {
	t.Parallel()
	to := netip.MustParseAddrPort("45.45.45.9:80")
	for kind := range 256 {
		fake := func(link.Route) (uint8, error) { return uint8(kind), nil }
		what, err := refusedRoute(fake, "tcp", netip.AddrPort{}, to)
		if err != nil || (what == "") != (kind == unix.RTN_UNICAST) {
			t.Errorf("type %d: %q, %v", kind, what, err)
		}
	}
	fails := func(link.Route) (uint8, error) { return unix.RTN_UNICAST, unix.ENOBUFS }
	if _, err := refusedRoute(fails, "tcp", netip.AddrPort{}, to); !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("a failed route lookup: %v", err)
	}
	unicast := func(link.Route) (uint8, error) { return unix.RTN_UNICAST, nil }
	if what, err := refusedRoute(unicast, "tcp", netip.AddrPortFrom(to.Addr(), 4000), to); what == "" || err != nil {
		t.Errorf("a socket connected to its own address: %q, %v", what, err)
	}
}

func TestRefusedRoute_ChecksAddressBehindNAT64(t *testing.T) {
	t.Parallel()
	to := netip.MustParseAddrPort("[64:ff9b::2d2d:2d09]:80")
	for _, tt := range []struct {
		kind    uint8
		err     error
		refused bool
	}{{unix.RTN_LOCAL, nil, true}, {unix.RTN_UNICAST, nil, false}, {0, unix.ENETUNREACH, false}} {
		fake := func(r link.Route) (uint8, error) {
			if r.To == to {
				return unix.RTN_UNICAST, nil
			}
			if r.To.String() != "45.45.45.9:80" {
				t.Errorf("looked up the route to %v", r.To)
			}
			return tt.kind, tt.err
		}
		if what, err := refusedRoute(fake, "tcp", netip.AddrPort{}, to); (what != "") != tt.refused || err != nil {
			t.Errorf("type %d, %v: %q, %v", tt.kind, tt.err, what, err)
		}
	}
}

// TestHostDial_RefusesLocalRoutes covers secondary addresses of the host, and routes of every type.
func TestHostDial_RefusesLocalRoutes(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs real-root: to make a network namespace with addresses")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs iproute2: ip makes the addresses")
	}
	thread.OnOwn(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Skip("needs real-root: unshare a network namespace:", err)
		}
		for _, args := range []string{
			"link set lo up", "link add d0 type veth peer name d1", "link set d0 up", "link set d1 up",
			"addr add 45.45.45.1/24 dev d0", "addr add 45.45.45.9/24 dev d0", "route add local 46.46.46.5 dev lo src 45.45.45.1",
			"route add broadcast 47.47.47.7 dev d0", "route add blackhole 48.48.48.0/24", "route add unreachable 49.49.49.0/24",
			"route add prohibit 50.50.50.0/24", "route add local 51.51.51.1 dev lo table 99",
			"rule add to 51.51.51.1 ipproto tcp dport 80 table 99", "route add 51.51.51.0/24 dev d0",
			"-6 addr add 2a00:45::1/64 dev d0 nodad", "-6 addr add 2a00:45::9/64 dev d0 nodad",
			"-6 route add local 2a00:46::5 dev lo", "-6 route add anycast 2a00:47::1 dev d0",
			"-6 route add blackhole 2a00:48::/64",
		} {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, out)
			}
		}
		// The kernel has no IPv6 route through a link, and none to its addresses, until it has noticed the carrier.
		up := func() bool {
			local, err := exec.Command("ip", "-6", "route", "show", "table", "local").Output()
			return err == nil && strings.Contains(string(local), "local 2a00:45::1 ") &&
				strings.Contains(string(local), "local 2a00:45::9 ") &&
				exec.Command("ip", "-6", "route", "get", "2a00:45::77").Run() == nil
		}
		for end := time.Now().Add(time.Minute); !up(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Error("the link d0 does not come up")
				return
			}
		}
		for _, addr := range []string{
			"45.45.45.1", "45.45.45.9", "46.46.46.5", "45.45.45.255", "47.47.47.7", "51.51.51.1", "2a00:45::1", "2a00:45::9",
			"2a00:46::5", "2a00:47::1",
		} {
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
			if c, err := dialler(denyAll{}).hostDial(t.Context(), "tcp", to); !fault.Is(err, fault.Denied) {
				t.Errorf("%s: %v, %v", addr, c, err)
			}
		}
		for addr, want := range map[string]error{
			"48.48.48.8": unix.EINVAL, "49.49.49.9": unix.EHOSTUNREACH, "50.50.50.5": unix.EACCES,
			"60.60.60.6": unix.ENETUNREACH,
			"2a00:48::8": unix.EINVAL,
		} {
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
			if c, err := dialler(policyFunc(allowAll)).hostDial(t.Context(), "tcp", to); !errors.Is(err, want) {
				t.Errorf("%s: %v, %v; want %v", addr, c, err, want)
			}
		}
		for _, addr := range []string{"45.45.45.77", "51.51.51.2", "2a00:45::77"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
			if what, err := refusedRoute(link.Route.Kind, "tcp", netip.AddrPort{}, to); what != "" || err != nil {
				t.Errorf("%s, another host: %q, %v", addr, what, err)
			}
		}
		// A policy that names the address allows it.
		l, err := net.Listen("tcp", "45.45.45.9:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		c, err := dialler(policyFunc(allowAll)).hostDial(t.Context(), "tcp", listensAt(t, l))
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
}
