//go:build linux && (amd64 || arm64)

package notify

import (
	"fmt"
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
