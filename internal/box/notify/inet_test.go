//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSockaddr_DecodesWhatItEncodes(t *testing.T) {
	t.Parallel()
	for address, f := range map[string]uint32{"127.0.0.1:80": unix.AF_INET, "0.0.0.0:0": unix.AF_INET,
		"[::1]:80": unix.AF_INET6, "[::]:7": unix.AF_INET6, "[::ffff:10.0.0.1]:7": unix.AF_INET6} {
		want := netip.MustParseAddrPort(address)
		b := sockaddr(f, want)
		got, err := addressOf(b)
		if err != nil || got != want || family(b) != f {
			t.Errorf("%s: %v %v", address, got, err)
		}
		if _, err := addressOf(b[:inetSize-1]); err != unix.EINVAL {
			t.Errorf("%s, cut: %v", address, err)
		}
	}
	b := sockaddr(unix.AF_INET6, netip.MustParseAddrPort("10.0.0.1:7"))
	if !bytes.Contains(b, []byte("\xff\xff\x0a\x00\x00\x01")) {
		t.Errorf("an IPv4 address for IPv6: %x", b)
	}
	if _, err := addressOf(make([]byte, inet6Size)); err != unix.EAFNOSUPPORT {
		t.Errorf("no family: %v", err)
	}
}

// TestNames_ForgetsTheOldest checks that the number of names is bounded, and that names in use are kept.
func TestNames_ForgetsTheOldest(t *testing.T) {
	t.Parallel()
	var n names
	for i := range uint64(10 * maxRecent) {
		n.set(i+1, endpoint{packet: true})
		n.get(1)
	}
	if _, ok := n.get(1); !ok {
		t.Error("a name that is used is forgotten")
	}
	if _, ok := n.get(2); ok {
		t.Error("a name that is not used is kept")
	}
	if all := len(n.recent) + len(n.older); all > 2*maxRecent {
		t.Errorf("%d names, want at most %d", all, 2*maxRecent)
	}
}

// TestInterrupted_TellsDeathFromSignals checks that a caller that dies is not taken for one that handles a signal, whose
// dial goes on.
func TestInterrupted_TellsDeathFromSignals(t *testing.T) {
	t.Parallel()
	const none, kill, usr1, stop = "0000000000000000", "0000000000000100", "0000000000000200", "0000000000040000"
	for _, c := range []struct {
		own, shared, blocked, pid string
		want                      unix.Errno
	}{
		{none, none, none, "7", 0},
		{usr1, none, none, "8", restart},
		{none, usr1, none, "7", restart},
		{none, usr1, none, "8", unix.EINTR},
		{usr1, usr1, usr1, "7", 0},
		{stop, stop, none, "7", 0},
		{kill, none, none, "8", unix.ESRCH},
		{none, kill, none, "7", unix.ESRCH},
		{kill, usr1, usr1, "7", unix.ESRCH},
	} {
		f := map[string]string{"SigPnd": c.own, "ShdPnd": c.shared, "SigBlk": c.blocked, "Pid": c.pid, "Tgid": "7"}
		if got := interrupted(f); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
