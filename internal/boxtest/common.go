//go:build linux && (amd64 || arm64)

package boxtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

var common = []check{
	{"exit codes", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		for _, c := range []struct {
			cmd    []string
			code   int
			signal string
		}{
			{[]string{"true"}, 0, ""},
			{[]string{"false"}, 1, ""},
			{[]string{"sh", "-c", "exit 255"}, 255, ""},
			{[]string{"sh", "-c", "kill -TERM $$"}, 143, "TERM"},
			{[]string{"sh", "-c", "kill -KILL $$"}, 137, "KILL"},
			{[]string{"no-such-command"}, 127, ""},
			{[]string{"/no/such/command"}, 127, ""},
			{[]string{"/etc/passwd"}, 126, ""},
			{[]string{"/etc"}, 126, ""},
			{[]string{""}, 127, ""},
		} {
			r := b.Do(t, wire.ExecRequest{Cmd: c.cmd})
			if r.Failed != nil || r.Exit.Code != c.code || r.Exit.Signal != c.signal {
				t.Errorf("%q: exit %+v, failed %v: want %d %s", c.cmd, r.Exit, r.Failed, c.code, c.signal)
			}
			if (c.code == 126 || c.code == 127) != (r.Exit.Message != "") {
				t.Errorf("%q: message %q with code %d", c.cmd, r.Exit.Message, c.code)
			}
		}
	}},
	{"a FIFO as a program", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		made := b.Sh(t, `d=$(mktemp -d) && mkfifo $d/fifo && echo "#!$d/fifo" >$d/script && chmod 755 $d/* && printf $d`)
		if made.Exit.Code != 0 {
			t.Fatalf("%+v", made)
		}
		for _, name := range []string{"fifo", "script"} { // in gVisor execve(2) of the second waits for a writer
			cmd := made.Stdout + "/" + name
			if r := b.Do(t, wire.ExecRequest{Cmd: []string{cmd}}); r.Failed != nil || r.Exit.Code != 126 ||
				r.Exit.Message == "" {
				t.Errorf("%s: %+v", cmd, r)
			}
			if r := b.Sh(t, "echo next"); r.Stdout != "next\n" {
				t.Errorf("after %s: %+v", cmd, r)
			}
		}
	}},
	{"faults of requests", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		for _, c := range []struct {
			req  wire.ExecRequest
			kind string
		}{
			{wire.ExecRequest{Cmd: []string{"true"}, Dir: "/no/such/directory"}, "not_found"},
			{wire.ExecRequest{Cmd: []string{"true"}, Dir: "relative"}, "invalid"},
			{wire.ExecRequest{}, "invalid"},
			{wire.ExecRequest{Attach: "nothing"}, "not_found"},
		} {
			if r := b.Do(t, c.req); r.Failed == nil || r.Failed.Kind != c.kind {
				t.Errorf("%+v: %+v: want %s", c.req, r, c.kind)
			}
		}
	}},
	{"output and errors are apart", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		r := b.Sh(t, "printf out; printf err >&2")
		if r.Stdout != "out" || r.Stderr != "err" {
			t.Errorf("stdout %q, stderr %q", r.Stdout, r.Stderr)
		}
	}},
	{"stdin is carried and closed", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"cat"}, Stdin: true})
		big := strings.Repeat("0123456789abcdef", 64<<10)
		go func() {
			for i := 0; i < len(big); i += 64 << 10 {
				_ = wire.WriteFrame(s, wire.FrameStdin, []byte(big[i:i+64<<10]))
			}
			_ = wire.WriteFrame(s, wire.FrameStdinEOF, nil)
		}()
		if r := Collect(s); r.Stdout != big || r.Exit.Code != 0 || r.Err != nil {
			t.Errorf("%d bytes came back of %d: exit %+v, %v", len(r.Stdout), len(big), r.Exit, r.Err)
		}
		if r := b.Sh(t, "cat; readlink /proc/self/fd/0"); r.Exit.Code != 0 || r.Stdout != "/dev/null\n" {
			t.Errorf("without stdin: %+v", r)
		}
	}},
	{"a process that reads the output of its command delays no exit", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) {
			if tier.Name != plan.TierWorkspace {
				c.User = plan.UserMe
			}
		})
		if r := b.Sh(t, "command -v python3"); r.Exit.Code != 0 {
			t.Skip("needs python3: to open a pipe for reading without waiting")
		}
		// The test does not read the stream yet, so the pipe fills up, and the parent exits. Then the child takes a byte
		// from the pipe, and continues to run.
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"python3", "-c", `
import os, time
thief = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(0.2)
    os.read(thief, 1)
    open("stolen", "w").close()
    time.sleep(1000)
os.set_blocking(1, False)
full = 0
while full < 20:
    try:
        os.write(1, b"x" * 4096)
        full = 0
    except BlockingIOError:
        full += 1
        time.sleep(0.01)
os._exit(7)`}})
		b.Sh(t, "until test -e stolen; do sleep 0.05; done")
		if r := Collect(s); r.Err != nil || r.Exit.Code != 7 {
			t.Errorf("%+v, %v, %q", r.Exit, r.Err, r.Stderr)
		}
	}},
	{"the standard streams can be opened by name", nil, func(t *testing.T, tier Tier) {
		users := []string{""}
		if tier.Name != plan.TierWorkspace {
			users = []string{plan.UserRoot, plan.UserMe}
		}
		for _, user := range users {
			reopenStreams(t, tier.Start(t, func(c *plan.Config) { c.User = user }))
		}
	}},
	{"a command that closes its stdin", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "exec <&-; sleep 0.2; echo done"}, Stdin: true})
		go func() {
			for range 64 {
				if wire.WriteFrame(s, wire.FrameStdin, make([]byte, 64<<10)) != nil {
					return
				}
			}
		}()
		if r := Collect(s); r.Stdout != "done\n" || r.Exit.Code != 0 {
			t.Errorf("%+v", r)
		}
	}},
	{"much output, read slowly", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		const size = 64 << 20
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}})
		n, buf := 0, make([]byte, 64<<10)
		for {
			k, p, err := wire.ReadFrame(s, buf)
			if err != nil {
				t.Fatal(err)
			}
			if k == wire.FrameExit {
				break
			}
			if k == wire.FrameDropped {
				t.Fatal("output was dropped although a reader is attached")
			}
			if k == wire.FrameStdout {
				n += len(p)
			}
		}
		if n != size {
			t.Errorf("%d bytes of %d", n, size)
		}
	}},
	{"the end of the output is read late", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		const size = 1 << 20
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}})
		WaitStarted(t, s)
		time.Sleep(300 * time.Millisecond) // by now it is blocked, or has exited with its pipe full
		if r := Collect(s); len(r.Stdout) != size || r.Exit.Code != 0 || r.Dropped != 0 {
			t.Errorf("%d bytes of %d, %d dropped, exit %+v", len(r.Stdout), size, r.Dropped, r.Exit)
		}
	}},
	{"background children do not delay the exit", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		start := time.Now()
		r := b.Sh(t, "sleep 1000 & echo done")
		if r.Stdout != "done\n" || time.Since(start) > patience {
			t.Errorf("%+v after %v", r, time.Since(start))
		}
		if n, err := b.Procs(t.Context()); err != nil || n != 1 {
			t.Errorf("%d processes, %v: want the sleep", n, err)
		}
	}},
	{"a background child may continue to write", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f := b.scratch() + "/alive"
		b.Sh(t, "(sleep 0.3; yes | head -c 1000000; echo $? > "+f+") & :")
		for range 50 {
			time.Sleep(50 * time.Millisecond)
			if r := b.Sh(t, "cat "+f+" 2>/dev/null"); r.Stdout == "0\n" {
				return
			}
		}
		t.Error("it did not finish writing")
	}},
	{"signals reach the process group", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "sleep 1000 & echo ready; wait"}})
		WaitOutput(t, s, "ready")
		Send(t, s, wire.FrameSignal, wire.Signal{Name: "TERM"})
		if r := Collect(s); r.Exit.Code != 143 || r.Exit.Signal != "TERM" {
			t.Errorf("%+v", r)
		}
		for range 100 {
			if n, err := b.Procs(t.Context()); err != nil || n == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n, err := b.Procs(t.Context()); err != nil || n != 0 {
			t.Errorf("%d processes are left, %v", n, err)
		}
		s = b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", "trap 'echo usr; exit 7' USR1; echo ready; while :; do sleep 0.01; done"}})
		id := WaitStarted(t, s).Exec
		WaitOutput(t, s, "ready")
		if err := b.Signal(t.Context(), id, "USR1"); err != nil {
			t.Error(err)
		}
		if r := Collect(s); r.Exit.Code != 7 && r.Exit.Code != 138 {
			t.Errorf("%+v", r)
		}
	}},
	{"a timeout asks and then kills", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		start := time.Now()
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"sleep", "1000"}, TimeoutMS: 100}); r.Exit.Code != 124 ||
			!r.Exit.TimedOut || time.Since(start) > patience {
			t.Errorf("%+v after %v", r, time.Since(start))
		}
		start = time.Now()
		r := b.Do(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "trap '' TERM; (trap '' TERM; sleep 1001) & sleep 1002; sleep 1003"},
				TimeoutMS: 100})
		if r.Exit.Code != 124 || time.Since(start) > patience {
			t.Errorf("%+v after %v", r, time.Since(start))
		}
		time.Sleep(50 * time.Millisecond)
		if n, err := b.Procs(t.Context()); err != nil || n != 0 {
			t.Errorf("%d processes were left, %v", n, err)
		}
	}},
	{"the environment is made from nothing", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.Env = []string{"A=1", "B=2"} })
		r := b.Do(t, wire.ExecRequest{Cmd: []string{"env"}, Env: []string{"B=3", "C=a=b"}})
		got := map[string]string{}
		for l := range strings.Lines(r.Stdout) {
			k, v, _ := strings.Cut(strings.TrimSpace(l), "=")
			got[k] = v
		}
		for _, k := range []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG"} {
			if got[k] == "" {
				t.Errorf("%s is not set", k)
			}
			delete(got, k)
		}
		delete(got, "APT_CONFIG")
		want := map[string]string{"A": "1", "B": "3", "C": "a=b", "COPPICE_SANDBOX": b.Config.Name}
		if b.Config.Locked() { // it has no /tmp
			want["TMPDIR"] = b.Config.RunDir + "/tmp"
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("environment %v: want %v", got, want)
		}
	}},
	{"no descriptor is inherited", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		for _, tty := range []bool{false, true} {
			r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "ls /proc/$$/fd; :"}, TTY: tty})
			for f := range strings.FieldsSeq(r.Stdout) {
				n := f
				// A shell may keep its script or terminal open as descriptor 10 or 255.
				if n > "2" && n != "10" && n != "255" {
					t.Errorf("tty %v: %s", tty, r.Stdout)
				}
			}
		}
	}},
	{"long command lines", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		cmd := []string{"sh", "-c", "echo $#", "sh"}
		for range 1000 {
			cmd = append(cmd, strings.Repeat("x", 1000))
		}
		if r := b.Do(t, wire.ExecRequest{Cmd: cmd}); r.Stdout != "1000\n" {
			t.Errorf("%.200q %+v %v", r.Stdout, r.Exit, r.Failed)
		}
	}},
	{"many at once", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		done := make(chan string)
		for i := range 50 {
			go func() {
				s, err := b.Exec(t.Context(),
					wire.ExecRequest{Cmd: []string{"sh", "-c", fmt.Sprintf("sleep 0.1; echo %d; exit %d", i, i)}})
				if err != nil {
					done <- err.Error()
					return
				}
				defer s.Close()
				if r := Collect(s); r.Stdout != fmt.Sprintln(i) || r.Exit.Code != i {
					done <- fmt.Sprintf("%d: %+v", i, r)
					return
				}
				done <- ""
			}()
		}
		for range 50 {
			if s := <-done; s != "" {
				t.Error(s)
			}
		}
	}},
	{"working directory", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"pwd"}, Dir: "/usr/bin"}); r.Stdout != "/usr/bin\n" {
			t.Errorf("%+v", r)
		}
		if r := b.Do(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "umask; exec pwd"}}); !strings.HasPrefix(r.Stdout, "0022\n/") {
			t.Errorf("%+v", r)
		}
	}},
}

// scratch returns a writable directory inside.
func (b *Box) scratch() string {
	if b.Config.Tier == plan.TierWorkspace {
		return b.Config.Spec.Bind
	}
	return "/tmp"
}

// reopenStreams checks that a command without a terminal can open its pipes again by their names.
func reopenStreams(t *testing.T, b *Box) {
	t.Helper()
	s := b.Open(t, wire.ExecRequest{Stdin: true, Cmd: []string{"sh", "-c",
		"cat /dev/stdin; echo out >/dev/stdout; echo err | tee /dev/stderr >/dev/null; echo fd >/proc/self/fd/1"}})
	if err := wire.WriteFrame(s, wire.FrameStdin, []byte("in\n")); err != nil {
		t.Fatal(err)
	}
	if err := wire.WriteFrame(s, wire.FrameStdinEOF, nil); err != nil {
		t.Fatal(err)
	}
	if r := Collect(s); r.Stdout != "in\nout\nfd\n" || r.Stderr != "err\n" || r.Exit.Code != 0 || r.Err != nil {
		t.Errorf("as user %q: %+v", b.Config.User, r)
	}
}
