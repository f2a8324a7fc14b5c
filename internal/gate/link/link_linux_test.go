//go:build linux && (amd64 || arm64)

package link

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFilter_DropsReportsOnly sends frames through a socket with the filter of the link.
func TestFilter_DropsReportsOnly(t *testing.T) {
	t.Parallel()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	filter := withoutReports
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(pair[1], unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		t.Fatal(err)
	}
	// report is what Linux sends (igmp6_send and mld_newpack of net/ipv6/mcast.c).
	report := func(kind byte) []byte {
		b := make([]byte, 14+40+8+20)
		copy(b, BoxMAC+"\x33\x33\x00\x00\x00\x16\x86\xdd\x60")
		b[14+6], b[14+24] = unix.IPPROTO_HOPOPTS, 0xff
		copy(b[14+40:], []byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0, kind})
		return b
	}
	with := func(at int, v byte) []byte {
		b := report(143)
		b[at] = v
		return b
	}
	for name, c := range map[string]struct {
		frame  []byte
		passes bool
	}{
		"a report of version 1":    {report(131), false},
		"a done message":           {report(132), false},
		"a report of version 2":    {report(143), false},
		"a query":                  {report(130), true},
		"an echo request":          {report(128), true},
		"to a host":                {with(14+24, 0x20), true},
		"another option":           {with(14+40+2, 1), true},
		"another router alert":     {with(14+40+5, 1), true},
		"longer options":           {with(14+40+1, 1), true},
		"UDP after the options":    {with(14+40, unix.IPPROTO_UDP), true},
		"a fragment":               {with(14+6, unix.IPPROTO_FRAGMENT), true},
		"IPv4":                     {with(12, 0x08), true},
		"options without the rest": {report(143)[:14+40+4], true},
		"a short packet":           {report(143)[:14+20], true},
	} {
		if err := unix.Send(pair[0], c.frame, 0); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 200)
		n, err := unix.Read(pair[1], b)
		switch {
		case err != nil && !errors.Is(err, unix.EAGAIN):
			t.Fatal(err)
		case (err == nil) != c.passes:
			t.Errorf("%s: passes %t, want %t", name, err == nil, c.passes)
		case err == nil && !slices.Equal(b[:n], c.frame):
			t.Errorf("%s: %d bytes of %d", name, n, len(c.frame))
		}
	}
}
