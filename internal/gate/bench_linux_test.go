//go:build linux && (amd64 || arm64)

package gate

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/internal/gate/link"
)

// routes runs each over three ways to the same server: through the gate, over loopback without a gate, and through
// slirp4netns if it is installed and the caller is real root.
func routes(b *testing.B, serve func(net.Conn), each func(b *testing.B, s *sandbox, addr string)) {
	at := listen(b, serve)
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("loopback", func(b *testing.B) {
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{os.Args[0]},
			Env: append(os.Environ(), inside+"="+string(veth)), Stderr: os.Stderr}
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		each(b, &sandbox{cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(out)}, at)
		in.Close()
		cmd.Wait()
	})
	for _, k := range []kind{veth, socket} {
		b.Run("gate/"+string(k), func(b *testing.B) {
			to := netip.MustParseAddr("93.184.216.34")
			n, _ := strconv.Atoi(port)
			s := start(b, k, &book{
				decide: func(Request) Decision { return Decision{Verdict: Allow} },
				hosts:  map[netip.AddrPort]string{netip.AddrPortFrom(to, uint16(n)): at},
			}, func(o *Options) { o.Bounds.PerSec = 1e6 })
			each(b, s, net.JoinHostPort(to.String(), port))
		})
	}
	b.Run("slirp4netns", func(b *testing.B) {
		if _, err := exec.LookPath("slirp4netns"); err != nil || os.Getuid() != 0 || os.Getenv(inUserNS) != "" {
			b.Skip("needs real-root: slirp4netns is compared as root")
		}
		s := launch(b, veth)
		r, w, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		cmd := exec.Command("slirp4netns", "--configure", "--mtu=65520", "--ready-fd=3",
			strconv.Itoa(s.cmd.Process.Pid), "tap0")
		cmd.ExtraFiles = []*os.File{w}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		w.Close()
		if _, err := r.Read(make([]byte, 1)); err != nil {
			b.Fatal("slirp4netns does not start: ", err)
		}
		r.Close()
		each(b, s, "10.0.2.2:"+port)
		cmd.Process.Kill()
		cmd.Wait()
	})
}

// BenchmarkThroughput moves 64 KiB per operation, out of a sandbox and into it.
func BenchmarkThroughput(b *testing.B) {
	b.Run("out", func(b *testing.B) {
		routes(b, func(c net.Conn) {
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
			c.Write([]byte{1})
		}, func(b *testing.B, s *sandbox, addr string) {
			b.SetBytes(64 << 10)
			b.ResetTimer()
			s.must(b, "blast", nil, addr, strconv.Itoa(b.N))
		})
	})
	b.Run("in", func(b *testing.B) {
		routes(b, func(c net.Conn) {
			line, err := bufio.NewReader(c).ReadString('\n')
			if err != nil {
				return
			}
			n, _ := strconv.Atoi(line[:len(line)-1])
			buf := make([]byte, 64<<10)
			for range n {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		}, func(b *testing.B, s *sandbox, addr string) {
			b.SetBytes(64 << 10)
			b.ResetTimer()
			s.must(b, "fetch", nil, addr, strconv.Itoa(b.N))
		})
	})
}

// BenchmarkConnect opens and closes one connection per operation.
func BenchmarkConnect(b *testing.B) {
	routes(b, func(c net.Conn) { io.Copy(io.Discard, c) }, func(b *testing.B, s *sandbox, addr string) {
		b.ResetTimer()
		s.must(b, "connect", nil, addr, strconv.Itoa(b.N))
	})
}

// BenchmarkRoundTrip opens a connection, sends one byte there and back, and closes it.
func BenchmarkRoundTrip(b *testing.B) {
	routes(b, echo, func(b *testing.B, s *sandbox, addr string) {
		b.ResetTimer()
		s.must(b, "connect", nil, addr, strconv.Itoa(b.N), "echo")
	})
}

// BenchmarkOpenLink creates a link and a gate, and closes both.
func BenchmarkOpenLink(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := launch(b, veth)
		ns := s.netns(b)
		b.StartTimer()
		fd, err := link.Open(ns, 0)
		if err != nil {
			b.Fatal(err)
		}
		g, err := New(b.Context(), Options{FD: fd, Policy: denyAll{}})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		ns.Close()
		g.Close()
		b.StartTimer()
	}
}

// BenchmarkRule decides about a connection to an address that 200 names resolve to.
func BenchmarkRule(b *testing.B) {
	p, pins := policyFunc(allowNames("a.example:443")), newPins()
	at := netip.MustParseAddr("93.184.216.34")
	for i := range 200 {
		pins.put(name("n"+strconv.Itoa(i)+".example"), []netip.Addr{at}, time.Minute, noon)
	}
	for b.Loop() {
		rule(p, pins, TCP, at, 443, noon)
	}
}
