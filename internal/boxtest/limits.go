//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/looptest"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

// groupCounts reports whether a control group enforces a limit, and counts how often it was reached. Other mechanisms,
// such as an rlimit, report it only to the program.
func groupCounts(b *Box, limit string) bool {
	for _, i := range b.Enforced.Items {
		if i.Name == limit {
			return strings.HasSuffix(i.Detail, "control group")
		}
	}
	return false
}

// refuses reports whether a box with a change does not start, with an error that names what is missing.
func refuses(t *testing.T, tier Tier, change func(*plan.Config)) bool {
	t.Helper()
	c := tier.Config(t)
	change(&c)
	b, _, err := box.Start(t.Context(), programtest.Programs(), c)
	if err == nil {
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
		b.Close()
		return false
	}
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	return true
}

// startLimited starts a box with a low limit of processors. Beside forty busy processes, the kernel's scheduler makes a
// new group with such a limit wait for tens of seconds, whatever the limit is, and the start may then fail with a
// timeout. So it is tried again.
func (tier Tier) startLimited(t *testing.T, change func(*plan.Config)) *Box {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		c := tier.Config(t)
		change(&c)
		b, err := start(t, c)
		if err == nil {
			return b
		}
		if t.Log(err); !fault.Is(err, fault.Timeout) || time.Now().After(end) {
			t.Fatal("the box does not start")
		}
	}
}

// limited are the rows about limits, except those of memory and tasks.
var limited = []check{
	{"open files are half of the host's", process, func(t *testing.T, tier Tier) {
		var host unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &host); err != nil {
			t.Fatal(err)
		}
		b := tier.Start(t)
		if r := b.Do(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "ulimit -Hn"}}); r.Stdout != fmt.Sprintln(
			limit.OpenFilesOfHost(host.Max)) {
			t.Errorf("commands may open %q files, and their keeper %d", r.Stdout, host.Max)
		}
	}},
	{"locked memory is half of the owner's", process,
		func(t *testing.T, tier Tier) {
			var host unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &host); err != nil {
				t.Fatal(err)
			}
			b := tier.Start(t)
			if r := b.Do(t,
				wire.ExecRequest{
					Cmd: []string{"python3", "-c",
						"import resource; print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])"}}); r.Stdout != fmt.Sprintln(
				host.Max/2) {
				t.Errorf("commands may lock %q bytes, and their owner %d: %s", r.Stdout, host.Max, r.Stderr)
			}
		}},
	{"a limit of time", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.Limits.TimeMS = 500 })
		if b.Enforced.State("time") != plan.On {
			t.Errorf("%+v", b.Enforced)
		}
		for about, c := range map[string]struct {
			req   wire.ExecRequest
			code  int
			limit string
		}{
			"its time is up":     {wire.ExecRequest{Cmd: []string{"sleep", "1000"}}, 124, wire.LimitTime},
			"less was asked for": {wire.ExecRequest{Cmd: []string{"sleep", "1000"}, TimeoutMS: 100}, 124, ""},
			"more was asked for": {wire.ExecRequest{Cmd: []string{"sleep", "1000"}, TimeoutMS: 1 << 62}, 124,
				wire.LimitTime},
			"on a terminal": {wire.ExecRequest{Cmd: []string{"sleep", "1000"}, TTY: true}, 124, wire.LimitTime},
			"heeding no SIGTERM": {
				wire.ExecRequest{Cmd: []string{"sh", "-c", "trap '' TERM; (trap '' TERM; sleep 1001) & sleep 1002; sleep 1003"}},
				124, wire.LimitTime},
			"stopped": {wire.ExecRequest{Cmd: []string{"sh", "-c", "kill -STOP $$; sleep 1004"}}, 124,
				wire.LimitTime},
			"ended by SIGTERM, kept": {wire.ExecRequest{Cmd: []string{"sleep", "1000"}, Keep: true}, 124, wire.LimitTime},
		} {
			r := b.Do(t, c.req)
			if r.Exit.Code != c.code || r.Exit.Limit != c.limit || r.Exit.TimedOut != (c.code == 124) ||
				(c.limit != "") != (r.Exit.Message != "") {
				t.Errorf("%s: %+v", about, r.Exit)
			}
		}
		ample := tier.Start(t, func(c *plan.Config) { c.Limits.TimeMS = time.Hour.Milliseconds() })
		if r := ample.Sh(t, "exit 3"); r.Exit.Code != 3 || r.Exit.TimedOut || r.Exit.Limit != "" || r.Exit.Message != "" {
			t.Errorf("within its time: %+v", r.Exit)
		}
		for n, end := 1, time.Now().Add(patience); n > 0; {
			var err error
			if n, err = b.Procs(t.Context()); err != nil || time.Now().After(end) {
				t.Fatalf("%d processes were left, %v", n, err)
			}
		}
	}},
	{"a limit of output", walled, func(t *testing.T, tier Tier) {
		const most = 100_000
		b := tier.Start(t, func(c *plan.Config) { c.Limits.Output = most })
		if b.Enforced.State("output") != plan.On {
			t.Errorf("%+v", b.Enforced)
		}
		for script, over := range map[string]bool{
			"head -c 100000 /dev/zero":                                    false,
			"head -c 50000 /dev/zero; head -c 50000 /dev/zero >&2":        false,
			"head -c 100001 /dev/zero":                                    true,
			"head -c 100000 /dev/zero; head -c 1 /dev/zero >&2":           true,
			"head -c 300000 /dev/zero":                                    true,
			"yes":                                                         true,
			"trap '' TERM PIPE; while :; do head -c 1000 /dev/zero; done": true,
			"(sleep 0.1; yes) & (sleep 0.1; yes >&2) & wait":              true,
		} {
			r := b.Sh(t, script)
			got := len(r.Stdout) + len(r.Stderr)
			switch {
			case !over && (r.Exit.Code != 0 || r.Exit.Limit != "" || got != most):
				t.Errorf("%s: %d bytes, %+v", script, got, r.Exit)
			case over &&
				(r.Exit.Code != 153 || r.Exit.Limit != wire.LimitOutput || r.Exit.TimedOut || r.Exit.Message == "" || got != most):
				t.Errorf("%s: %d bytes, %+v", script, got, r.Exit)
			}
		}
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"yes"}, TTY: true}); r.Exit.Limit != wire.LimitOutput ||
			len(r.Stdout) != most {
			t.Errorf("on a terminal: %d bytes, %+v", len(r.Stdout), r.Exit)
		}
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"yes"}, Keep: true})
		id := WaitStarted(t, s).Exec
		s.Close()
		if x, err := b.Wait(t.Context(), id); err != nil || x.Code != 153 || x.Limit != wire.LimitOutput {
			t.Errorf("without a client: %+v, %v", x, err)
		}
		if r := b.Do(t, wire.ExecRequest{Attach: id}); len(r.Stdout) != most || r.Exit.Limit != wire.LimitOutput {
			t.Errorf("afterwards: %d bytes, %+v", len(r.Stdout), r.Exit)
		}
	}},
	{"a limit of open files", walled, func(t *testing.T, tier Tier) {
		const most = 20
		state := "grep -E '^(Sig[PBIC]|Shd|Cap|Seccomp|NoNew|Uid|Gid|Groups)' /proc/self/status; readlink " +
			"/proc/self/fd/0; ps -o pid= -o sid= -o pgid= -p $$ | awk '{print $1==$2, $1==$3}'"
		free := tier.Start(t).Sh(t, state).Stdout
		b := tier.Start(t, func(c *plan.Config) { c.Limits.Files = most })
		if b.Enforced.State("files") != plan.On {
			t.Errorf("%+v", b.Enforced)
		}
		if got := b.Sh(t, state).Stdout; got != free || !strings.Contains(got, "NoNewPrivs:\t1") {
			t.Errorf("commands are otherwise started differently: %s, and without the limit: %s", got, free)
		}
		if r := b.Sh(t,
			"ulimit -Sn; ulimit -Hn; ulimit -n 21 || echo no; sh -c 'ulimit -Hn 1000 || ulimit -Hn'"); r.Stdout != "20\n20\nno\n20\n" {
			t.Errorf("%+v", r)
		}
		// The shell has three descriptors open, opens the rest in order, and uses one itself.
		const all = "i=3; while [ $i -lt 30 ]; do eval \"exec $i</dev/null\" 2>/dev/null || break; i=$((i+1)); done; echo $i"
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"bash", "-c", all}}); atoi(r.Stdout) > most ||
			atoi(r.Stdout) < most-1 {
			t.Errorf("%+v", r)
		}
		for cmd, code := range map[string]int{"true": 0, "false": 1, "no-such-command": 127,
			"/etc/passwd": 126, "/etc": 126} {
			if r := b.Do(t, wire.ExecRequest{Cmd: []string{cmd}}); r.Failed != nil || r.Exit.Code != code {
				t.Errorf("%s: %+v", cmd, r)
			}
		}
		if r := b.Do(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", "test -t 0 && test -t 2 && echo yes; ulimit -n; exec 3</dev/tty && echo tty"},
				TTY: true}); r.Stdout != "yes\r\n20\r\ntty\r\n" {
			t.Errorf("on a terminal: %+v", r)
		}
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"pwd"}, Dir: "/usr"}); r.Stdout != "/usr\n" {
			t.Errorf("%+v", r)
		}
		// Init has its own limit, independent of that of commands.
		done := make(chan int)
		for range 3 * most {
			go func() {
				s, err := b.Exec(context.Background(), wire.ExecRequest{Cmd: []string{"sh", "-c", "sleep 0.2; exit 9"}})
				if err != nil {
					done <- -1
					return
				}
				defer s.Close()
				done <- Collect(s).Exit.Code
			}()
		}
		for range 3 * most {
			if code := <-done; code != 9 {
				t.Errorf("one of many ended with %d", code)
			}
		}
	}},
	{"a limit of processors", walled, func(t *testing.T, tier Tier) {
		change := func(c *plan.Config) { c.Limits.MilliCPUs = 200 }
		if err := cgroup.CanLimitCPU(tier.Config(t).Caller.Root); err != nil {
			c := tier.Config(t)
			change(&c)
			if _, _, err := box.Start(t.Context(), programtest.Programs(), c); !fault.Is(err, fault.Unsupported) ||
				fault.HintOf(err) == "" {
				t.Errorf("it begins without: %v", err)
			}
			return
		}
		b := tier.startLimited(t, change)
		if b.Enforced.State("cpus") != plan.On {
			t.Errorf("%+v", b.Enforced)
		}
		before := b.below(t)
		// Two busy processes run for two seconds, and get at most a fifth of that time; less on a busy machine.
		r := b.Do(t,
			wire.ExecRequest{
				Cmd: []string{"bash", "-c",
					"TIMEFORMAT='%U %S %R'; time { timeout 2 sh -c 'while :; do :; done' & timeout 2 sh -c 'while :; do :; done' & " +
						"wait; }"}})
		f := strings.Fields(r.Stderr)
		if len(f) != 3 {
			t.Fatalf("%+v", r)
		}
		var s [3]float64
		for i := range f {
			s[i], _ = strconv.ParseFloat(f[i], 64)
		}
		used := s[0] + s[1]
		if tier.Name == plan.TierGvisor { // its kernel counts time during which the host makes it wait
			used = b.below(t).seconds() - before.seconds()
		}
		if used <= 0 || used > 0.3*s[2] {
			t.Errorf("%.2f s of processors in %.2f s", used, s[2])
		}
		for end := time.Now().Add(patience); ; { // as a start: see startLimited
			err := b.Stop(t.Context(), 0)
			if err == nil {
				break
			}
			if t.Log(err); time.Now().After(end) {
				t.Fatal("the box does not stop")
			}
		}
	}},
	{"a reached limit is reported", walled, func(t *testing.T, tier Tier) {
		if looptest.Race {
			t.Skip("needs plain-build: init, with the race detector, is larger than the limit")
		}
		change := func(c *plan.Config) { c.Limits.Memory, c.Limits.Pids = 128<<20, 20 }
		if tier.Name == plan.TierGvisor {
			change = func(c *plan.Config) { c.Limits.Pids = 20 } // its own kernel is killed instead: "a memory limit"
		}
		b := tier.Start(t, change)
		for _, x := range []struct {
			about, script, limit string
			counted              bool
		}{
			{"neither", "exit 0", "", false},
			{"memory", "head -c 300000000 /dev/zero | tail -c 290000000 | wc -c", wire.LimitMemory, groupCounts(b, "memory")},
			{"tasks", "i=0; while [ $i -lt 60 ]; do sleep 30 & i=$((i+1)); done", wire.LimitPids, groupCounts(b, "pids")},
			{"neither, later", "exit 0", "", false},
		} {
			if tier.Name == plan.TierGvisor && x.limit == wire.LimitMemory {
				continue
			}
			r := b.Sh(t, x.script)
			var want []string
			if x.counted {
				want = []string{x.limit}
			}
			if !slices.Equal(r.Exit.Hits, want) {
				t.Errorf("%s: %q, want %q; %+v", x.about, r.Exit.Hits, want, r)
			}
			if x.limit == wire.LimitMemory && strings.TrimSpace(r.Stdout) == "290000000" {
				t.Errorf("more memory than there may be: %+v", r)
			}
			b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "kill -KILL -1"}})
		}
	}},
	{"a strong box is whole, or does not begin", walled, func(t *testing.T, tier Tier) {
		for about, change := range map[string]func(*plan.Config){
			"plain": func(*plan.Config) {},
			"limits": func(c *plan.Config) {
				c.Limits = plan.Limits{TimeMS: 1000, Output: 1 << 20, Files: 100}
			},
			"memory, without a group": func(c *plan.Config) { c.NoCgroup, c.Limits.Memory = true, 1<<30 },
			"ids that are the host's": func(c *plan.Config) { c.NoIDMap = true },
			"pids, fewer than can be": func(c *plan.Config) { c.NoCgroup, c.Limits.Pids = true, 5 },
		} {
			if tier.Name == plan.TierGvisor && strings.HasPrefix(about, "memory") {
				if !refuses(t, tier, change) {
					t.Errorf("%s: it begins", about)
				}
				continue
			}
			weak := tier.Start(t, change)
			lacks := weak.Enforced.Lacks()
			c := tier.Config(t)
			change(&c)
			c.Strong = true
			b, _, err := box.Start(t.Context(), programtest.Programs(), c)
			if err == nil {
				if err := b.Stop(t.Context(), 0); err != nil {
					t.Error(err)
				}
				b.Close()
			}
			switch {
			case len(lacks) == 0 && err != nil:
				t.Errorf("%s: %v, and nothing is weak", about, err)
			case len(lacks) > 0 &&
				(!fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" || !strings.Contains(err.Error(), lacks[0].Name)):
				t.Errorf("%s: %v, and %+v", about, err, lacks)
			}
			if len(lacks) == 0 && strings.HasPrefix(about, "memory") {
				t.Errorf("%s: nothing is weak", about)
			}
		}
	}},
	{"tier workspace takes no limits", []string{plan.TierWorkspace}, func(t *testing.T, tier Tier) {
		for _, l := range []plan.Limits{{TimeMS: 1}, {Output: 1}, {Files: 1}, {MilliCPUs: 1}, {Memory: 1}} {
			c := tier.Config(t)
			c.Limits = l
			if _, _, err := box.Start(t.Context(), programtest.Programs(), c); !fault.Is(err, fault.Unsupported) ||
				fault.HintOf(err) == "" {
				t.Errorf("%+v: %v", l, err)
			}
		}
	}},
}
