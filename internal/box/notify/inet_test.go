//go:build linux && (amd64 || arm64)

package notify

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHeader(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"203.0.113.5:443":  "\x01\x00\x01\xbb\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xcb\x00\x71\x05",
		"[2001:db8::1]:53": "\x01\x00\x00\x35\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
	} {
		if got := header(netip.MustParseAddrPort(address)); string(got) != want || len(got) != headerSize {
			t.Errorf("%s: %x, want %x", address, got, want)
		}
	}
	for _, tt := range []struct {
		b    string
		want unix.Errno
	}{{"\x00\x00\x00\x00", 0}, {"\x6f\x00\x00\x00", unix.ECONNREFUSED}, {"\x6e\x00\x00\x00", unix.ETIMEDOUT},
		{"\xff\xff\xff\xff", unix.ECONNREFUSED}, {"\x00\x10\x00\x00", unix.ECONNREFUSED}} {
		if got := statusOf([]byte(tt.b)); got != tt.want {
			t.Errorf("status %x: %v, want %v", tt.b, got, tt.want)
		}
	}
}

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
