package sockets_test

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/internal/ports/sockets"
)

const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// line returns a line of the kernel, which has more columns than are read.
func line(addr, state, inode string) string {
	return "   0: " + addr + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 " +
		inode + " 1 0000000000000000 100 0 0 10 0\n"
}

func read(t *testing.T, text string) (all []sockets.Listener, err error) {
	t.Helper()
	err = sockets.Read(strings.NewReader(text), func(l sockets.Listener) bool { all = append(all, l); return true })
	return all, err
}

func TestRead_FindsListeners(t *testing.T) {
	t.Parallel()
	all, err := read(t, head+
		line("0100007F:1F90", "0A", "11")+
		line("00000000:0050", "0A", "12")+
		line("0100007F:1F91", "01", "13")+
		line("00000000000000000000000001000000:0BB8", "0A", "14")+
		line("0000000000000000FFFF00000200007F:0BB9", "0A", "15"))
	if err != nil {
		t.Fatal(err)
	}
	want := []sockets.Listener{
		{Addr: netip.MustParseAddrPort("127.0.0.1:8080"), Inode: 11},
		{Addr: netip.MustParseAddrPort("0.0.0.0:80"), Inode: 12},
		{Addr: netip.MustParseAddrPort("[::1]:3000"), Inode: 14},
		{Addr: netip.MustParseAddrPort("127.0.0.2:3001"), Inode: 15},
	}
	if !slices.Equal(all, want) {
		t.Errorf("%v: want %v", all, want)
	}
}

func TestRead_RefusesMalformedLines(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"x\n", line("0100007F1F90", "0A", "1"), line("0100007F:1F9", "0A", "1"), line("0100007G:1F90", "0A", "1"),
		line("0100007F:1F90", "0A", "-1"), line("0100007F:1F90", "0A", "x"), line("+100007F:1F90", "0A", "1"),
		strings.Repeat("x", 5000) + "\n",
	} {
		if all, err := read(t, head+bad); err == nil {
			t.Errorf("%.60q gives %v", bad, all)
		}
	}
}

func TestRead_StopsAfterListeners(t *testing.T) {
	t.Parallel()
	all, err := read(t,
		head+line("0100007F:1F90", "0A", "1")+strings.Repeat(line("0100007F:1F91", "01", "2"), 1000)+"rubbish\n")
	if err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	n := 0
	if err := sockets.Read(strings.NewReader(head+strings.Repeat(line("0100007F:1F90", "0A", "1"), 9)),
		func(sockets.Listener) bool { n++; return n < 3 }); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestRead_FindsListenersOfProcess(t *testing.T) {
	t.Parallel()
	for file, addr := range map[string]string{"/proc/self/net/tcp": "127.0.0.1:0", "/proc/self/net/tcp6": "[::1]:0"} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Logf("%s: %v", addr, err)
			continue
		}
		defer ln.Close()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Skip("needs " + file + ": " + err.Error())
		}
		want := ln.Addr().(*net.TCPAddr).AddrPort()
		found := false
		if err := sockets.Read(bytes.NewReader(b),
			func(l sockets.Listener) bool { found = l.Addr == want; return !found }); err != nil || !found {
			t.Errorf("%s is not in %s: %v", want, file, err)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	const port = 80
	type at struct {
		addr string
		ours bool
	}
	for name, c := range map[string]struct {
		all  []at
		want []string
	}{
		"no listener":               {nil, nil},
		"wildcard":                  {[]at{{"0.0.0.0", true}}, []string{"127.0.0.1"}},
		"wildcard, IPv6":            {[]at{{"::", true}}, []string{"127.0.0.1", "::1"}},
		"both families":             {[]at{{"::1", true}, {"127.0.0.1", true}}, []string{"127.0.0.1", "::1"}},
		"another loopback":          {[]at{{"127.0.0.2", true}}, []string{"127.0.0.2"}},
		"an address of the machine": {[]at{{"192.0.2.1", true}}, []string{"192.0.2.1"}},
		"a link-local address":      {[]at{{"fe80::1", true}}, nil},
		"two own wildcards":         {[]at{{"0.0.0.0", true}, {"0.0.0.0", true}}, []string{"127.0.0.1"}},
		"own and foreign wildcard":  {[]at{{"0.0.0.0", true}, {"0.0.0.0", false}}, nil},
		"foreign wildcard":          {[]at{{"0.0.0.0", false}}, nil},
		"foreign is more specific":  {[]at{{"0.0.0.0", true}, {"127.0.0.1", false}}, nil},
		"own is more specific":      {[]at{{"127.0.0.1", true}, {"0.0.0.0", false}}, []string{"127.0.0.1"}},
		"foreign, other loopback":   {[]at{{"127.0.0.2", true}, {"127.0.0.1", false}}, []string{"127.0.0.2"}},
		"foreign, other family":     {[]at{{"::", true}, {"0.0.0.0", false}}, []string{"::1"}},
		"wildcard and loopback":     {[]at{{"0.0.0.0", true}, {"127.0.0.1", true}}, []string{"127.0.0.1"}},
	} {
		var all []sockets.Listener
		ours := map[uint64]bool{}
		for i, a := range c.all {
			all = append(all, sockets.Listener{Addr: netip.AddrPortFrom(netip.MustParseAddr(a.addr), port), Inode: uint64(i)})
			ours[uint64(i)] = a.ours
		}
		all = append(all, sockets.Listener{Addr: netip.MustParseAddrPort("127.0.0.1:81"), Inode: 99})
		var got []string
		for _, r := range sockets.Routes(all, port, func(n uint64) bool { return ours[n] }) {
			got = append(got, r.Addr().String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(head + line("0100007F:1F90", "0A", "11")))
	f.Add([]byte(head + line("0000000000000000FFFF00000200007F:0BB9", "0A", "15")))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = sockets.Read(bytes.NewReader(b), func(l sockets.Listener) bool {
			if !l.Addr.IsValid() || l.Addr.Addr().Is4In6() {
				t.Errorf("%v", l)
			}
			for _, r := range sockets.Routes([]sockets.Listener{l}, l.Addr.Port(), func(uint64) bool { return true }) {
				if r.Addr().IsUnspecified() || r.Port() != l.Addr.Port() {
					t.Errorf("%v has the route %v", l, r)
				}
			}
			return true
		})
	})
}
