//go:build linux && (amd64 || arm64)

package procs

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
)

func TestParseStat_OwnProcess(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	p, name, ok := parseStat(b)
	if !ok || p.PID != os.Getpid() || p.ppid != os.Getppid() || p.start == 0 || p.rss == 0 || p.threads < 1 ||
		!strings.HasPrefix("procs.test", string(name)) {
		t.Errorf("%+v %q %v", p, name, ok)
	}
	up := time.Since(bootTime().Add(time.Duration(p.start) * time.Second / ticks))
	if up < -time.Second || up > time.Hour {
		t.Errorf("this process runs for %v", up)
	}
}

func TestParseStat_AcceptsAnyName(t *testing.T) {
	t.Parallel()
	const rest = " S 1 2 3 0 -1 4 5 6 7 8 11 22 0 0 20 0 9 0 77 1000 12 18446744073709551615"
	for _, name := range []string{"sh", ") R 9 9 9 (", "a b", "\n", "\xff", ""} {
		p, got, ok := parseStat([]byte("42 (" + name + ")" + rest))
		if !ok || string(got) != name ||
			p != (Stat{PID: 42, ppid: 1, pgrp: 2, session: 3, threads: 9, state: 'S', cpu: 33, start: 77, rss: 12}) {
			t.Errorf("%q: %+v %q %v", name, p, got, ok)
		}
	}
}

// TestReadStat_RefusesReaped reads what gVisor shows of a process that was reaped while its file was open.
func TestReadStat_RefusesReaped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"7 (sleep) S 1 5 5 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 77 1000 12": true,
		"0 (sleep) Z 0 5 5 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 77 1000 12": false,
	} {
		name := filepath.Join(t.TempDir(), "stat")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, ok := readStat(name); ok != want {
			t.Errorf("%q: %+v, %v", text, p, ok)
		}
	}
}

func TestSplitArgs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in  string
		n   int
		cut bool
	}{
		{"", 0, false}, {"a\x00", 1, false}, {"a\x00\x00", 2, false}, {"a", 1, false}, {"\x00", 1, false},
		{strings.Repeat("x", maxCmdline+1), 1, true},
		{strings.Repeat("\x00", maxCmdline), maxCmdline / 16, true},
	} {
		args, cut := splitArgs([]byte(c.in))
		if len(args) != c.n || cut != c.cut {
			t.Errorf("%.20q: %d arguments, cut %v", c.in, len(args), cut)
		}
	}
}

func TestAnswers_FitIntoFrame(t *testing.T) {
	t.Parallel()
	for name, arg := range map[string]string{"one long argument": strings.Repeat("\xff", maxCmdline),
		"many of one byte": strings.Repeat("\xff\x00", maxCmdline/2)} {
		s := initlink.Seen{ID: 1 << 60, More: 1 << 30}
		left := maxListArgs
		for i := range maxListed {
			p := initlink.Process{PID: 4194304 - i, PPID: 4194304, State: "S", Start: 1 << 40,
				Started: time.Date(2026, 12, 31, 23, 59, 59, 990e6, time.UTC), CPUMS: 1 << 40, RSS: 1 << 50,
				Name: []byte("\xff23456789012345")}
			if left > 0 {
				p.Args, p.Cut = splitArgs([]byte(arg))
				for _, a := range p.Args {
					left -= len(a) + argCost
				}
			}
			s.Processes = append(s.Processes, p)
		}
		b, err := json.Marshal(s)
		if err != nil || len(b) > wire.MaxFrame {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	var s initlink.Seen
	for range maxPorts {
		s.Ports = append(s.Ports,
			initlink.Port{Addr: netip.MustParseAddrPort("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"), Inode: 1 << 60,
				PID: 4194304, Name: bytes.Repeat([]byte{0xff}, 64)})
	}
	if b, err := json.Marshal(s); err != nil || len(b) > wire.MaxFrame {
		t.Errorf("ports: %d bytes, %v", len(b), err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (sh) S 1 2 3 0 -1 4 5 6 7 8 11 22 0 0 20 0 9 0 77 1000 12 1"))
	f.Add([]byte("1 )("))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, name, ok := parseStat(b); ok && len(name) >= len(b) {
			t.Errorf("%+v %q", p, name)
		}
		args, _ := splitArgs(b)
		n := 0
		for _, a := range args {
			n += len(a)
		}
		if n > maxCmdline {
			t.Errorf("%s bytes", strconv.Itoa(n))
		}
	})
}
