//go:build linux && (amd64 || arm64)

package boxtest

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// onlyRoot reports whether the tier has only user root for this caller, and checks that it refuses others.
func onlyRoot(t *testing.T, tier Tier) bool {
	t.Helper()
	c := tier.Config(t)
	if tier.Name != plan.TierContainer || c.Caller.Root {
		return false
	}
	c.User = "daemon"
	if _, _, err := box.Start(t.Context(), programtest.Programs(), c); !fault.Is(err, fault.Unsupported) {
		t.Errorf("daemon: %v", err)
	}
	b := tier.Start(t, func(c *plan.Config) { c.User = plan.UserMe })
	if r := b.Sh(t, "id -u"); r.Stdout != "0\n" {
		t.Errorf("%+v", r)
	}
	return true
}

// confined are the rows for the tiers that confine.
var confined = []check{
	{"the program coppice is shown", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.Client = true })
		own, err := programtest.Programs().Client()
		if err != nil {
			t.Fatal(err)
		}
		digest := func() string {
			t.Helper()
			h := sha256.New()
			if _, err := io.Copy(h, io.NewSectionReader(own, 0, 1<<62)); err != nil {
				t.Fatal(err)
			}
			return hex.EncodeToString(h.Sum(nil))
		}
		before := digest()
		const sum = "sha256sum <" + plan.ClientAt
		if r := b.Sh(t, sum); r.Stdout != before+"  -\n" {
			t.Fatalf("the program is %+v; want %s", r, before)
		}
		r := b.Sh(t, "echo $PATH; p="+plan.ClientAt+`; test -x $p || echo not executable
(echo x >>$p) 2>/dev/null && echo written; chmod 777 $p 2>/dev/null && echo mode; touch $p 2>/dev/null && echo touched
rm -f $p 2>/dev/null && echo removed; mv $p $p-x 2>/dev/null && echo renamed; ln $p /tmp/own 2>/dev/null && echo linked
truncate -s 0 $p 2>/dev/null && echo truncated; :`)
		if !strings.HasSuffix(r.Stdout, ":"+rootspec.ClientDir+"\n") || strings.Count(r.Stdout, "\n") != 1 {
			t.Errorf("%+v", r)
		}
		if r := b.Sh(t, sum); r.Stdout != before+"  -\n" || digest() != before {
			t.Errorf("it is now %+v", r)
		}
	}},
	{"a process that stops all others keeps init from nothing", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "echo go; while :; do kill -STOP -1; done"}})
		WaitOutput(t, s, "go")
		for range 8 { // each may be stopped before or after it is executed
			r := b.Do(t, wire.ExecRequest{Cmd: []string{"true"}, TimeoutMS: 200})
			if strings.Contains(r.Exit.Message, "was not executed within") {
				t.Errorf("init waited for a command that was stopped: %+v", r.Exit)
			}
		}
		if _, err := b.Procs(t.Context()); err != nil {
			t.Error(err)
		}
	}},
	{"everything can be killed but init", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		for range 5 {
			b.Sh(t, "kill -9 -1; kill -9 1; kill -STOP 1")
			if r := b.Sh(t,
				"for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; trap '' TERM HUP INT; for s in TERM HUP INT; do kill "+
					"-$s -1; done; echo alive"); r.Stdout != "alive\n" {
				t.Fatalf("%+v", r)
			}
		}
	}},
	{"init bears made signals", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		if r := b.Sh(t, "command -v python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: to make system calls")
		}
		// sigqueue to every thread of init, with the si_code SI_QUEUE.
		b.Do(t, wire.ExecRequest{Cmd: []string{"python3", "-c", `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
info = (ctypes.c_int * 32)(); info[2] = -1
for tid in list(map(int, os.listdir("/proc/1/task"))):
    for sig in range(1, 65):
        info[0] = sig
        libc.syscall(297, 1, tid, sig, info)
        libc.syscall(129, tid, sig, info)
        libc.syscall(234, 1, tid, sig)
    fd = os.open("/proc/1/task/%d" % tid, os.O_RDONLY)
    for at in fd, os.open("/proc/1", os.O_RDONLY): # pidfd_send_signal(2) takes these as well
        for sig in range(1, 65):
            libc.syscall(424, at, sig, None, 0)
            info[0] = sig
            libc.syscall(424, at, sig, info, 0)
        os.close(at)
`}})
		time.Sleep(50 * time.Millisecond)
		if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
			t.Fatalf("%+v", r)
		}
		// A signal that is sent to the process by the number of a thread can reach that thread while it blocks signals:
		// while it starts commands or handles a signal of the scheduler.
		flood := b.Open(t, wire.ExecRequest{Cmd: []string{"python3", "-c", `
import ctypes, os
libc = ctypes.CDLL(None)
info = (ctypes.c_int * 32)(23, 0, -1)
while True:
    for tid in list(map(int, os.listdir("/proc/1/task"))):
        for sig in range(1, 65):
            libc.syscall(297, 1, tid, 23, info)
            libc.kill(tid, sig)
`}})
		defer flood.Close()
		WaitStarted(t, flood)
		for range 30 {
			if r := b.Sh(t, "echo alive"); r.Stdout != "alive\n" {
				t.Fatalf("%+v", r)
			}
		}
	}},
	{"init is closed", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		links := "/proc/1/fd/* /proc/1/ns/*"
		if tier.Name == plan.TierGvisor { // all processes have the same namespaces, those of their own kernel
			links = "/proc/1/fd/*"
		}
		r := b.Sh(t, `for f in mem maps environ fd/0 fd/3 exe cwd/etc root/etc; do
			if head -c 1 /proc/1/$f >/dev/null 2>&1 || ls /proc/1/$f/ >/dev/null 2>&1; then echo "open $f"; fi; done
			for t in /proc/1/task/*; do head -c 1 $t/mem 2>/dev/null && echo open $t; done; readlink `+links)
		if r.Stdout != "" {
			t.Errorf("%q", r.Stdout)
		}
	}},
	{"host name and process numbers are its own", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.Hostname = "wood" })
		if r := b.Sh(t, "hostname; cat /proc/1/comm"); !strings.HasPrefix(r.Stdout, "wood\n") {
			t.Errorf("%+v", r)
		}
		if r := b.Sh(t, "ls -d /proc/[0-9]* | wc -l"); atoi(r.Stdout) > 6 {
			t.Errorf("%s processes are seen", r.Stdout)
		}
	}},
	{"users", walled, func(t *testing.T, tier Tier) {
		if onlyRoot(t, tier) {
			return
		}
		for _, c := range []struct{ user, want string }{
			{plan.UserRoot, "0:0:root:/root"},
			{"daemon", "1:1:daemon:/usr/sbin"},
		} {
			b := tier.Start(t, func(p *plan.Config) { p.User = c.user })
			r := b.Sh(t, "echo $(id -u):$(id -g):$(id -un):$HOME")
			if strings.TrimSpace(r.Stdout) != c.want {
				t.Errorf("%s: %+v", c.user, r)
			}
			reopenStreams(t, b)
			if c.user != plan.UserRoot {
				if r := b.Sh(t, "grep CapPrm /proc/self/status"); !strings.Contains(r.Stdout, "0000000000000000") {
					t.Errorf("%s has capabilities: %s", c.user, r.Stdout)
				}
			}
		}
		b := tier.Start(t, func(p *plan.Config) { p.User = plan.UserMe })
		if r := b.Sh(t, "id -u"); atoi(r.Stdout) != int(b.Config.Caller.UID) {
			t.Errorf("me: %+v", r)
		}
		if r := b.Sh(t, "touch /etc/mine 2>/dev/null && stat -c %u /etc/mine"); b.Config.Caller.Root && r.Stdout != "0\n" {
			t.Errorf("me: %+v", r)
		}
	}},
	{"privileges are gone", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		r := b.Sh(t, "cat /proc/self/status")
		filter := "Seccomp:\t2"
		if tier.Name == plan.TierGvisor { // its kernel refuses calls without filters
			filter = "Seccomp:\t0"
		}
		for _, want := range []string{"NoNewPrivs:\t1", filter, "CapBnd:\t00000000a80405fb", "CapInh:\t0000000000000000",
			"CapAmb:\t0000000000000000"} {
			if !strings.Contains(r.Stdout, want) {
				t.Errorf("%q is missing in %s", want, r.Stdout)
			}
		}
		for _, s := range []string{
			"mount -t tmpfs none /mnt", "umount /proc", "unshare -U true", "unshare -m true",
			"chroot / mount -t proc proc /proc",
			"echo 1 > /proc/sys/kernel/pid_max", "echo x > /proc/sysrq-trigger", "hostname other", "echo x > /sys/x",
			"head -c 1 /proc/kcore | grep -q .", "mknod /dev/sda b 8 0 && head -c 1 /dev/sda | grep -q .",
			"nsenter -t 1 -m true",
		} {
			if r := b.Sh(t, s); r.Exit.Code == 0 {
				t.Errorf("%q is allowed: %+v", s, r)
			}
		}
	}},
	{"network", []string{plan.TierProcess}, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		if r := b.Sh(t,
			"tail -n +3 /proc/net/dev | cut -d: -f1 | xargs echo; cat /proc/net/route | wc -l"); r.Stdout != "lo\n1\n" {
			t.Errorf("off: %q", r.Stdout)
		}
		if b.Enforced.State("net") != plan.On {
			t.Errorf("%+v", b.Enforced)
		}
		host, _ := os.ReadFile("/proc/net/dev")
		b = tier.Start(t, func(c *plan.Config) { c.Net = plan.NetHost })
		if r := b.Sh(t, "wc -l < /proc/net/dev"); atoi(r.Stdout) != strings.Count(string(host), "\n") {
			t.Errorf("host: %+v", r)
		}
		if conf, err := os.ReadFile("/etc/resolv.conf"); err == nil {
			if r := b.Sh(t, "cat /etc/resolv.conf"); r.Stdout != string(conf) {
				t.Errorf("resolv.conf is %q: want %q", r.Stdout, conf)
			}
		}
	}},
	{"a fork bomb ends at its limit", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.Limits.Pids = 300 })
		if b.Enforced.State("pids") == plan.Off {
			t.Skip("needs pids-limit: nothing here enforces one")
		}
		s := b.Open(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 30"}, TimeoutMS: 1500})
		WaitStarted(t, s)
		time.Sleep(500 * time.Millisecond)
		if n, err := b.Procs(t.Context()); err != nil || n > 320 {
			t.Errorf("%d processes, %v", n, err)
		}
		Collect(s)
		b.Signal(t.Context(), "none", "TERM")
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}},
	{"a memory limit", walled, func(t *testing.T, tier Tier) {
		if looptest.Race {
			t.Skip("needs plain-build: init, with the race detector, is larger than the limit")
		}
		change := func(c *plan.Config) { c.Limits.Memory = 256 << 20 }
		if tier.Name == plan.TierGvisor && refuses(t, tier, change) {
			return // without a control group nothing could enforce it
		}
		b := tier.Start(t, change)
		if r := b.Sh(t, "head -c 600000000 /dev/zero | tail | wc -c"); r.Stdout == "600000000\n" {
			t.Errorf("%+v", r)
		}
	}},
}

func atoi(s string) int {
	n, _ := strconv.Atoi(strings.TrimSpace(s))
	return n
}
