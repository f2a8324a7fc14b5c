//go:build linux && (amd64 || arm64)

package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/coppice-dev/coppice/internal/fault"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// echoDatagrams echoes datagrams until the test ends, and returns its address.
func echoDatagrams(t *testing.T) (addr string) {
	t.Helper()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			u.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() {
		u.Close()
		<-done
	})
	return u.LocalAddr().String()
}

func TestDatagrams_PassByRuleOnly(t *testing.T) { overBoth(t, testDatagramsPassByRuleOnly) }

func testDatagramsPassByRuleOnly(t *testing.T, k kind) {
	t.Parallel()
	echo := echoDatagrams(t)
	a := netip.MustParseAddr("93.184.216.34")
	b := &book{
		decide: func(r Request) Decision {
			if r.Host == name("time.example") && (!r.Addr.IsValid() || r.Proto == UDP && r.Port == 123) {
				return Decision{Verdict: Allow, Rule: "udp://time.example:123"}
			}
			return Decision{}
		},
		names: map[string][]netip.Addr{"time.example": {a}},
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(a, 123): echo},
		ttl:   time.Minute,
	}
	s := start(t, k, b, func(o *Options) { o.Bounds = Bounds{Flows: 2, UDPIdle: time.Second} })
	if _, err := s.do("ask", []byte("early"), "udp", "93.184.216.34:123", "none"); err == nil {
		t.Error("an address that was not resolved is reached")
	}
	s.must(t, "look", nil, "time.example")
	for _, m := range [][]byte{[]byte("what time is it"), bytes.Repeat([]byte{'x'}, 60000)} {
		if got := s.must(t, "ask", m, "udp", "93.184.216.34:123"); !bytes.Equal(got, m) {
			t.Errorf("%d bytes of %d", len(got), len(m))
		}
	}
	// QUIC and other UDP ports are unreachable; connected sockets get the error at once.
	if _, err := s.do("ask", []byte("x"), "udp", "93.184.216.34:443"); err == nil ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	if _, err := s.do("exchange", []byte("x"), "tcp", "93.184.216.34:123"); err == nil {
		t.Error("a rule for UDP opens TCP")
	}
	if _, err := s.do("ask", []byte("third"), "udp", "93.184.216.34:123", "none"); err == nil {
		s.wait(t, "an end before the third", func(e Event) bool { return e.Kind == KindEnd })
	}
	e := s.wait(t, "an end", func(e Event) bool { return e.Kind == KindEnd && e.Proto == UDP && e.In == 60000 })
	if e.Out != 60000 || e.Name != "time.example" || e.Reason != "idle for 1s" {
		t.Errorf("%+v", e)
	}
}

// TestRealPrograms runs common programs unmodified.
func TestRealPrograms(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("93.184.216.34")
	conf := serverTLS(t)
	httpd := func(c net.Conn) {
		b := make([]byte, 4096)
		c.Read(b)
		c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n"))
	}
	b := &book{
		names: map[string][]netip.Addr{"a.example": {a}, "b.example": {a}},
		hosts: map[netip.AddrPort]string{
			netip.AddrPortFrom(a, 80): listen(t, httpd),
			netip.AddrPortFrom(a, 443): listen(t, func(c net.Conn) {
				x := tlsServer(c, conf)
				httpd(x)
				x.Close()
			}),
		},
		ttl: time.Minute,
	}
	// The policy is as a user would write it.
	s := start(t, veth, b, func(o *Options) { o.Policy = Rules(network(t, "a.example:80 a.example:443", "")) })
	s.must(t, "look", nil, "a.example") // pins the address
	const py = "import ssl,sys,urllib.request as " +
		"u;print(u.urlopen(sys.argv[1],timeout=10,context=ssl._create_unverified_context() if " +
		"sys.argv[1].startswith('https') else None).read().decode().strip())"
	for program, args := range map[string][]string{"curl": {"-sSk", "--noproxy", "*", "--max-time", "20"},
		"/usr/bin/python3": {"-c", py}} {
		if _, err := exec.LookPath(program); err != nil {
			t.Errorf("needs %s: it is a common client", program)
			continue
		}
		for url, ok := range map[string]bool{
			"http://a.example/": true, "https://a.example/": true, "http://93.184.216.34/": true,
			"http://b.example/": false, "https://93.184.216.34/": false, "http://a.example:81/": false,
			"http://169.254.169.254/latest/meta-data/": false,
		} {
			out, err := s.do("run", nil, append(append([]string{program}, args...), url)...)
			if got := strings.TrimSpace(string(out)); (got == "hello") != ok || (err == nil) != ok {
				t.Errorf("%s %s: %v\n%s", program, url, err, out)
			}
		}
	}
}

// TestClose_LeavesNothing checks that Close leaves no goroutines or descriptors, whatever is in progress.
func TestClose_LeavesNothing(t *testing.T) {
	const rounds = 3
	before, eventfds := descriptors(t, "socket:"), descriptors(t, "anon_inode:[eventfd]")
	t.Run("underway", func(t *testing.T) { // a subtest, so that its hosts have closed their sockets at its end
		for round := range rounds {
			closeAll(t, veth, round)
			closeAll(t, socket, round)
		}
	})
	if left := goroutines(); left != "" {
		t.Errorf("goroutines are left:\n%s", left)
	}
	if sockets := descriptors(t, "socket:"); sockets > before {
		t.Errorf("%d sockets before, %d after", before, sockets)
	}
	if events := descriptors(t, "anon_inode:[eventfd]"); events > eventfds+1 { // one is the Go runtime's own
		t.Errorf("%d eventfds before, %d after", eventfds, events)
	}
}

// closeAll closes a gate with connections, lookups and dials in every state.
func closeAll(t *testing.T, k kind, round int) {
	a, silent := netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("93.184.216.35")
	late, answer := netip.MustParseAddr("93.184.216.36"), make(chan struct{})
	b := &book{
		decide: func(r Request) Decision { return Decision{Verdict: Allow, TLS: r.Port == 444} },
		names:  map[string][]netip.Addr{"a.example": {a}},
		hosts: map[netip.AddrPort]string{netip.AddrPortFrom(a, 80): listen(t, echo),
			netip.AddrPortFrom(a, 444): listen(t, echo)},
		ttl: time.Minute,
	}
	s := launch(t, k)
	asked := make(chan struct{}, 10)
	established := make(chan struct{})
	mtu := 1500
	if k == socket {
		mtu = 0
	}
	g, err := New(t.Context(), Options{FD: s.link(t, mtu), MTU: mtu, Policy: b, Report: s.report,
		Dial: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			if to.Addr() == silent {
				asked <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if to.Addr() == late {
				asked <- struct{}{}
				<-answer
				defer close(established)
				return net.Dial(network, b.hosts[netip.AddrPortFrom(a, 80)])
			}
			return b.dial(ctx, network, to)
		},
		Lookup: func(ctx context.Context, name string) ([]netip.Addr, time.Duration, error) {
			if name == "slow.example" {
				asked <- struct{}{}
				<-ctx.Done()
				return nil, 0, ctx.Err()
			}
			return b.lookup(ctx, name)
		}})
	if err != nil {
		t.Fatal(err)
	}
	s.Gate = g
	if fds, err := inherited(); err != nil || len(fds) > 0 {
		t.Errorf("a child inherits %v, %v", fds, err)
	}
	s.must(t, "many", nil, "93.184.216.34:80", "20") // idle
	s.must(t, "many", nil, "93.184.216.34:444", "5") // without a ClientHello
	s.must(t, "many", nil, "192.0.0.1:53", "3")      // DNS without a query
	s.must(t, "hold", make([]byte, 1000), "93.184.216.34:80")
	s.must(t, "begin", nil, "93.184.216.35:80") // being dialled
	s.must(t, "begin", ask("slow.example", dnsmessage.TypeA, false), "192.0.0.1:53")
	s.must(t, "begin", nil, "93.184.216.36:80")
	<-asked
	<-asked
	<-asked
	if round == 1 && k == veth { // the sandbox's interface goes down first, so nothing is received any more
		s.must(t, "run", nil, "ip", "link", "set", "eth0", "down")
	}
	close(answer)
	<-established
	if err := errors.Join(g.Close(), g.Close()); err != nil {
		t.Error(err)
	}
	g.SetPolicy(b)
	if st := g.Stats(); st.Conns != 0 || st.Flows != 0 {
		t.Errorf("%+v", st)
	}
	s.must(t, "drop", nil)
}

// goroutines returns the running goroutines of the gate and its stack. Because one that was stopped may take a moment
// to exit, it retries for a while.
func goroutines() string {
	buf := make([]byte, 1<<22)
	var left []string
	for range 1000 {
		left = nil
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "gvisor.dev/") || strings.Contains(g, "gate.(*") && !strings.Contains(g, "testing.tRunner") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
		runtime.Gosched()
	}
	return strings.Join(left, "\n\n")
}

// descriptors counts the open descriptors of a kind.
func descriptors(t *testing.T, kind string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, kind) {
			n++
		}
	}
	return n
}

func TestNew_RefusesInvalidLink(t *testing.T) {
	t.Parallel()
	if _, err := New(t.Context(), Options{}); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := link.Open(f, 100); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	if _, err := link.Open(f, 0); err == nil {
		t.Error("/dev/null is accepted as a network namespace")
	}
	s := launch(t, veth)
	fd := s.link(t, 0)
	defer fd.Close()
	ns := s.netns(t)
	defer ns.Close()
	if _, err := link.Open(ns, 0); err == nil {
		t.Error("two interfaces have the same name")
	}
	// Without a gate there is no reply.
	if _, err := s.do("ask", []byte("x"), "udp", "192.0.0.1:53", "none"); err == nil {
		t.Error("got a reply without a gate")
	}
}

// TestNeighboursAndEcho checks that the sandbox's kernel can resolve its neighbour again after it has forgotten it, and
// that pings to allowed addresses are answered.
func TestNeighboursAndEcho(t *testing.T) { overBoth(t, testNeighboursAndEcho) }

func testNeighboursAndEcho(t *testing.T, k kind) {
	t.Parallel()
	b := &book{decide: allowNames("a.example:80"),
		names: map[string][]netip.Addr{"a.example": addrs("93.184.216.34", "2606:2800:220:1::1")}, ttl: time.Minute}
	s := start(t, k, b, nil)
	if k == veth {
		for _, v := range []string{"-4", "-6"} {
			s.must(t, "run", nil, "ip", v, "neigh", "flush", "dev", "eth0", "nud", "permanent")
		}
	}
	for _, server := range []string{"192.0.0.1:53", "[fdc0:71ce:9a7e::1]:53"} {
		if a := s.must(t, "ask", ask("a.example", dnsmessage.TypeA, false), "udp", server); len(a) == 0 {
			t.Errorf("%s does not answer", server)
		}
	}
	var neighbours string
	if k == veth {
		neighbours = string(s.must(t, "run", nil, "ip", "neigh"))
	}
	for _, gw := range []string{g4, g6} {
		if k == veth && !strings.Contains(neighbours, gw+" dev eth0 lladdr 02:c0:99:1c:e0:01") {
			t.Errorf("%s is not among the neighbours:\n%s", gw, neighbours)
		}
	}
	for ip, ok := range map[string]bool{g4: true, g6: true, "93.184.216.34": true, "2606:2800:220:1::1": true,
		"8.8.8.8": false, "2606::1": false} {
		if _, err := s.do("ping", nil, ip); (err == nil) != ok {
			t.Errorf("ping %s: %v", ip, err)
		}
	}
	s.wait(t, "a ping", func(e Event) bool {
		return e.Kind == KindDeny && e.Proto == ICMP && e.Addr == netip.MustParseAddr("8.8.8.8")
	})
}

// TestLinkLoss_IsReported covers a sandbox that removes its own network interface, and so loses its network.
func TestLinkLoss_IsReported(t *testing.T) {
	t.Parallel()
	b := &book{decide: func(Request) Decision { return Decision{Verdict: Allow} }, names: map[string][]netip.Addr{}}
	s := start(t, veth, b, nil)
	s.must(t, "run", nil, "ip", "link", "del", "eth0")
	s.denied(t, "", "link failed")
}

// TestClose_AfterLinkLossReportsNoDenial covers a sandbox that stops: its interface disappears just before its monitor
// closes the gate.
func TestClose_AfterLinkLossReportsNoDenial(t *testing.T) {
	t.Parallel()
	s, g, box := bare(t)
	box.Close()
	g.link.Wait() // the reader has returned
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == KindDeny {
			t.Errorf("%+v", e)
		}
	}
}

// TestHostDial_OwnAddressRequiresAddressRule covers the host's own addresses, which look public but lead to services
// that trust the host.
func TestHostDial_OwnAddressRequiresAddressRule(t *testing.T) {
	t.Parallel()
	at := ownAddress(t)
	l, err := net.Listen("tcp", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to := netip.MustParseAddrPort(l.Addr().String())
	g := &Gate{desk: newDesk(nil, time.Now, Bounds{})}
	g.SetPolicy(policyFunc(func(r Request) Decision {
		if !r.Host.IsZero() {
			return Decision{Verdict: Allow}
		}
		return Decision{}
	}))
	if c, err := g.hostDial(t.Context(), "tcp", to); !fault.Is(err, fault.Denied) {
		t.Errorf("%v, %v", c, err)
	}
	g.SetPolicy(Rules(network(t, fmt.Sprintf("own.example:%d,private", to.Port()), "")))
	if c, err := g.hostDial(t.Context(), "tcp", to); !fault.Is(err, fault.Denied) {
		t.Errorf("by a name whose rule has private: %v, %v", c, err)
	}
	g.SetPolicy(policyFunc(func(r Request) Decision {
		if r == (Request{Proto: TCP, Addr: to.Addr(), Port: to.Port()}) {
			return Decision{Verdict: Allow}
		}
		return Decision{}
	}))
	c, err := g.hostDial(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
