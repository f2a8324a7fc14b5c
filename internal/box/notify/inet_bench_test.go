//go:build linux && (amd64 || arm64)

package notify

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// argInetConnect is the argv[0] of a program that connects to the address in argv[1], over and over, and prints the
// nanoseconds of each socket(2) and connect(2).
const argInetConnect = "notify-inet-connect"

// Connections of each run: the first ones are not counted.
const (
	connectsWarm = 10
	connectsRun  = 50
	connectsRuns = 10
)

func beInetConnect() int {
	to := netip.MustParseAddrPort(os.Args[1])
	for i := range connectsWarm + connectsRun {
		begun := time.Now()
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		}
		took := time.Since(begun)
		if err != nil {
			return complain("%v", err)
		}
		unix.Close(s)
		if i >= connectsWarm {
			fmt.Println(took.Nanoseconds())
		}
	}
	return 0
}

// BenchmarkInet_Connect compares a connection of a sandbox with one of the host, in turns: the medians of 500. The
// entrance of the test dials the same address.
func BenchmarkInet_Connect(b *testing.B) {
	uid := os.Getuid()
	table := outside(b)
	e := newEntrance(b, uid, table)
	for b.Loop() {
		var inside, plain []int
		for range connectsRuns {
			out, err := e.run([]string{argInetConnect, "203.0.113.5:7"})
			if err != nil {
				b.Fatalf("%v %s", err, out)
			}
			inside = append(inside, numbers(b, out)...)
			direct := &exec.Cmd{Path: "/proc/self/exe", Args: []string{argInetConnect, table["203.0.113.5:7"]}}
			text, err := direct.CombinedOutput()
			if err != nil {
				b.Fatalf("%v %s", err, text)
			}
			plain = append(plain, numbers(b, string(text))...)
		}
		slices.Sort(inside)
		slices.Sort(plain)
		b.ReportMetric(float64(inside[len(inside)/2])/1e3, "µs/inside")
		b.ReportMetric(float64(plain[len(plain)/2])/1e3, "µs/plain")
	}
}

func numbers(b *testing.B, text string) (all []int) {
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.Atoi(word)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// argInetMessages is the argv[0] of a program that transports a byte over a Unix socket and a connection of loopback,
// over and over, and prints the nanoseconds of the calls.
const argInetMessages = "notify-inet-messages"

func beInetMessages() int {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return complain("%v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return complain("%v", err)
	}
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return complain("%v", err)
	}
	in, err := l.Accept()
	if err != nil {
		return complain("%v", err)
	}
	var tcp [2]int
	for i, c := range []net.Conn{out, in} {
		f, err := c.(*net.TCPConn).File()
		if err != nil {
			return complain("%v", err)
		}
		defer f.Close()
		tcp[i] = int(f.Fd())
	}
	b := []byte{1}
	for i := range connectsWarm + connectsRun {
		for name, ends := range map[string][2]int{"unix": pair, "tcp": tcp} {
			begun := time.Now()
			err := unix.Sendmsg(ends[0], b, nil, nil, unix.MSG_NOSIGNAL)
			sent := time.Now()
			if err == nil {
				_, _, _, _, err = unix.Recvmsg(ends[1], b, nil, 0)
			}
			received := time.Now()
			if err != nil {
				return complain("%v", err)
			}
			if i >= connectsWarm {
				fmt.Println(name+"-sendmsg", sent.Sub(begun).Nanoseconds())
				fmt.Println(name+"-recvmsg", received.Sub(sent).Nanoseconds())
			}
		}
	}
	return 0
}

// BenchmarkInet_Messages compares sendmsg(2) and recvmsg(2) with sockets that are not for UDP in a sandbox with those
// of the host, in turns: the medians of 500. Init records programs, as in a sandbox with a ledger.
func BenchmarkInet_Messages(b *testing.B) {
	e := newEntrance(b, os.Getuid(), outside(b))
	e.record = true
	for b.Loop() {
		all := map[string][]int{}
		add := func(where string, text []byte, err error) {
			if err != nil {
				b.Fatalf("%v %s", err, text)
			}
			for line := range strings.Lines(string(text)) {
				name, took, _ := strings.Cut(line, " ")
				all[name+"-"+where] = append(all[name+"-"+where], numbers(b, took)...)
			}
		}
		for range connectsRuns {
			out, err := e.run([]string{argInetMessages})
			add("inside", []byte(out), err)
			direct := &exec.Cmd{Path: "/proc/self/exe", Args: []string{argInetMessages}}
			text, err := direct.CombinedOutput()
			add("plain", text, err)
		}
		for name, took := range all {
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/1e3, "µs/"+name)
		}
	}
}
