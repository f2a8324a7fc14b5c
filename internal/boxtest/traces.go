//go:build linux && (amd64 || arm64)

package boxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

func traced(c *plan.Config) { c.Trace = true }

// programs freezes and thaws a box, and returns the programs since the previous freeze.
func (b *Box) programs(t testing.TB) []wire.Program {
	t.Helper()
	f, err := b.Freeze(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Thaw(); err != nil {
		t.Fatal(err)
	}
	return f.Programs()
}

// lines returns the command lines of programs, or only those of roots.
func lines(list []wire.Program, roots bool) []string {
	var out []string
	for _, p := range list {
		if !roots || p.Parent == 0 {
			out = append(out, strings.Join(p.Args, " "))
		}
	}
	return out
}

// typist returns a function that types lines into a running shell.
func (b *Box) typist(t *testing.T) func(line string) {
	t.Helper()
	s := b.Open(t, wire.ExecRequest{Stdin: true, Cmd: []string{"sh"}})
	WaitStarted(t, s)
	do := func(line string) {
		t.Helper()
		Send(t, s, wire.FrameStdin, []byte(line+"\necho did it\n"))
		WaitOutput(t, s, "did it\n")
	}
	do("cd /") // the shell has started by now
	return do
}

var traces = []check{
	{"programs are seen from one freeze to the next", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		do := b.typist(t)
		if got := lines(b.programs(t), false); !slices.Equal(got, []string{"sh"}) {
			t.Errorf("the command itself: %q", got)
		}
		if got := b.programs(t); len(got) != 0 {
			t.Errorf("nothing was started, but %+v", got)
		}
		start := time.Now()
		do("true a 'b c' ''; cd /usr; echo x | cat -u | wc -l; /bin/sh -c 'ls -d / >/dev/null; :'; cd /")
		list := b.programs(t)
		want := []string{"cat -u", "wc -l", "/bin/sh -c ls -d / >/dev/null; :"}
		got := lines(list, true)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) { // true and echo are built into the shell
			t.Errorf("roots %q, want %q", got, want)
		}
		for _, p := range list {
			if p.Started.Before(start) || p.PID <= 1 || p.Parent == 0 && p.Dir != "/usr" {
				t.Errorf("%+v", p)
			}
			if p.Args[0] == "ls" &&
				!slices.ContainsFunc(list, func(up wire.Program) bool { return up.PID == p.Parent && up.Args[0] == "/bin/sh" }) {
				t.Errorf("%+v: its parent is not the shell", p)
			}
		}
		if !slices.Contains(lines(list, false), "ls -d /") {
			t.Errorf("a detail is missing: %q", lines(list, false))
		}
	}},
	{"no program is seen that was not started", hosts, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		b.typist(t)("/bin/true")
		if got := b.programs(t); len(got) != 0 {
			t.Errorf("%+v", got)
		}
	}},
	{"a workspace starts where programs are to be seen", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		if state := b.Enforced.State("programs"); (state == plan.On) != slices.Contains(walled, tier.Name) {
			t.Errorf("programs are %q", state)
		}
	}},
	{"every way to start a program is seen", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		do := b.typist(t)
		if r := b.Sh(t, "command -v /usr/bin/python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: to make system calls")
		}
		do(`mkdir -p /tmp/d; printf '#!/bin/sh\n:\n' > /tmp/d/script; chmod +x /tmp/d/script
export PATH=/nowhere:/not/there:$PATH
cat > /tmp/d/p.py <<'X'
import os, ctypes, threading
def child(f):
    p = os.fork()
    if p == 0:
        f()
        os._exit(1)
    os.waitpid(p, 0)
fd = os.open("/bin/true", os.O_RDONLY)
child(lambda: os.execve(fd, ["by-fd"], {}))
libc = ctypes.CDLL(None)
argv = (ctypes.c_char_p * 3)(b"by-at", b"x", None)
child(lambda: libc.syscall({"x86_64": 322, "aarch64": 281}[os.uname().machine], fd, b"", argv, None, 0x1000))
child(lambda: os.execvp("true", ["by-path"]))
child(lambda: os.execvp("no-such-program", ["in-vain"]))
os.waitpid(os.posix_spawn("/bin/true", ["by-spawn"], {}), 0)
child(lambda: os.execv("/bin/true", ["long", "y" * 8000]))
child(lambda: os.execv("/bin/true", ["many"] + [str(n) for n in range(1000)]))
def threads():
    threading.Thread(target=lambda: os.execv("/bin/true", ["by-thread"])).start()
    threading.Event().wait()
child(threads)
X`)
		b.programs(t)
		do("/tmp/d/script a; /usr/bin/python3 /tmp/d/p.py")
		list := b.programs(t)
		all := lines(list, false)
		script := "/bin/sh /tmp/d/script a"
		if tier.Name == plan.TierGvisor {
			script = "/tmp/d/script a"
		}
		for _, want := range []string{script, "/usr/bin/python3 /tmp/d/p.py", "by-fd", "by-at x", "by-path",
			"by-spawn", "by-thread"} {
			if n := len(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s != want })); n != 1 {
				t.Errorf("%q was seen %d times in %q", want, n, all)
			}
		}
		for _, p := range list {
			switch bytes := len(strings.Join(p.Args, " ")); {
			case len(p.Args) > 65 || bytes > 4<<10+3:
				t.Errorf("%d arguments, %d bytes", len(p.Args), bytes)
			case (p.Args[0] == "long" || p.Args[0] == "many") && !strings.HasSuffix(p.Args[len(p.Args)-1], "..."):
				t.Errorf("nothing says that something was left out: %.100q", p.Args)
			case p.Args[0] == "in-vain":
				t.Error("a program is seen that did not start")
			}
		}
		if got := lines(list, true); len(got) != 2 {
			t.Errorf("roots %q", got)
		}
	}},
	{"a program in Go is seen once", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		// Not go: once in a while it starts itself again, for its telemetry.
		if r := b.Sh(t, "command -v /usr/local/go/bin/gofmt"); r.Exit.Code != 0 {
			t.Skip("needs go: a program without a C library")
		}
		do := b.typist(t)
		b.programs(t)
		do("/usr/local/go/bin/gofmt -l /dev/null")
		if got := lines(b.programs(t), false); !slices.Equal(got, []string{"/usr/local/go/bin/gofmt -l /dev/null"}) {
			t.Errorf("%q", got)
		}
	}},
	{"a flood of programs is bounded", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		do := b.typist(t)
		b.programs(t)
		n := 1000
		if tier.Name == plan.TierGvisor { // starting a process takes ten times as long there
			n = 400
		}
		do(fmt.Sprintf("i=0; while [ $i -lt %d ]; do /bin/true $i; i=$((i+1)); done", n))
		count := func(list []wire.Program) int {
			sum := len(list)
			for _, p := range list {
				sum += p.Unlisted
			}
			return sum
		}
		if list := b.programs(t); len(list) != 256 || count(list) != n || list[255].Args[1] != fmt.Sprint(n-1) {
			t.Errorf("%d listed, %d in all, the last %q", len(list), count(list), list[len(list)-1].Args)
		}
		// Details are left out first.
		do(fmt.Sprintf(
			"sh -c 'i=0; while [ $i -lt %d ]; do /bin/true detail; i=$((i+1)); done'; i=0; while [ $i -lt 200 ]; do "+
				"/bin/true root; i=$((i+1)); done", n))
		list := b.programs(t)
		if got := lines(list, true); len(got) != 201 || !strings.HasPrefix(got[0], "sh -c ") || count(list) != n+201 {
			t.Errorf("%d roots, %d in all, the first %.40q", len(got), count(list), got)
		}
		big := strings.Repeat("x", 900)
		do(fmt.Sprintf("i=0; while [ $i -lt 300 ]; do /bin/true %s %[1]s %[1]s %[1]s; i=$((i+1)); done", "'\x01"+big+"'"))
		if list := b.programs(t); count(list) != 300 || len(list) < 20 {
			t.Errorf("%d listed, %d in all", len(list), count(list))
		}
	}},
	{"freezes and starts and promotions do not wait for each other", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, traced)
		// Renames of directories of a lower layer, each of which freezes all processes.
		b.Open(t, wire.ExecRequest{
			Cmd: []string{"sh", "-c",
				`cd /etc; while :; do for d in */; do mv "$d" "x-${d%/}" 2>/dev/null && mv "x-${d%/}" "$d"; done; done`}})
		b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "while :; do /bin/true; (/bin/true &); done"}})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 40 {
				if r := b.Do(t, wire.ExecRequest{Cmd: []string{"true"}}); r.Exit.Code != 0 || r.Failed != nil {
					t.Errorf("%+v", r)
				}
			}
		}()
		seen := 0
		for i := 0; ; i++ {
			select {
			case <-done:
				if seen == 0 {
					t.Error("no program was seen")
				}
				return
			default:
				seen += len(b.programs(t))
			}
		}
	}},
}
