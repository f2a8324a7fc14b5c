//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program/programtest"
)

var lifetimes = []check{
	{"a command runs on without its reader, and is taken up again", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "echo one; read x; echo two-$x; exit 9"}, Stdin: true})
		id := WaitStarted(t, s).Exec
		WaitOutput(t, s, "one\n")
		s.Close()
		time.Sleep(50 * time.Millisecond)
		other, err := box.Attach(t.Context(), b.Config.RunDir)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		st, err := other.Status(t.Context())
		if err != nil || len(st.Execs) != 1 || st.Execs[0].ID != id || st.Execs[0].Exit != nil || st.ID != b.Config.ID {
			t.Errorf("status %+v, %v", st, err)
		}
		s2, err := other.Reattach(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer s2.Close()
		Send(t, s2, wire.FrameStdin, []byte("x\n"))
		if r := Collect(s2); r.Stdout != "one\ntwo-x\n" || r.Exit.Code != 9 || r.Started.Exec != id {
			t.Errorf("%+v", r)
		}
		// The keeper forgets the exec after its last frame was sent, and the test may read the frame before that.
		r := b.Do(t, wire.ExecRequest{Attach: id})
		for end := time.Now().Add(patience); r.Failed == nil && time.Now().Before(end); {
			r = b.Do(t, wire.ExecRequest{Attach: id})
		}
		if r.Failed == nil || r.Failed.Kind != string(fault.NotFound) {
			t.Errorf("after it was collected: %+v", r)
		}
	}},
	{"a command's end says whether anything is left", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		alone := func(want bool, script string) {
			t.Helper()
			if r := b.Sh(t, script); r.Exit.Alone != want {
				t.Errorf("%s: alone %v", script, r.Exit.Alone)
			}
		}
		alone(true, "true")
		alone(true, "sleep 0.01 & wait")
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "echo ready; read x; sleep 0.05"}, Stdin: true})
		WaitOutput(t, s, "ready\n")
		alone(false, "true")
		Send(t, s, wire.FrameStdin, []byte("x\n"))
		if r := Collect(s); !r.Exit.Alone {
			t.Error("the last one is not alone")
		}
		alone(false, "sleep 1000 >/dev/null 2>&1 &")
		alone(false, "true")
	}},
	{"nothing outlives a stop", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		mark := "left-" + filepath.Base(filepath.Dir(b.Config.RunDir)) // boxes of other runs have the same id
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", `
loop='trap "" TERM HUP; echo ready; while :; do sleep 0.01; done'
setsid sh -c "$loop" "$0" & sh -c "$loop" "$0" & wait`, mark}})
		WaitOutput(t, s, "ready\nready\n")
		host := func() int { return marked(t, mark) }
		if tier.Name == plan.TierGvisor { // the host sees the box's kernel, and none of its processes
			before := b.below(t)
			host = func() int { return len(before.left(t)) }
		}
		if n := host(); n < 3 {
			t.Fatalf("%d processes of it before the stop", n)
		}
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if n := host(); n != 0 {
			t.Errorf("%d processes of it after the stop", n)
		}
	}},
	{"a result waits for its reader", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		let := b.outside(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", let.await() + "echo late; exit 4"}})
		id := WaitStarted(t, s).Exec
		s.Close()
		b.Sh(t, "touch "+let.inside)
		b.waitExit(t, id)
		if r := b.Do(t, wire.ExecRequest{Attach: id}); r.Stdout != "late\n" || r.Exit.Code != 4 {
			t.Errorf("%+v", r)
		}
	}},
	{"without a reader the newest output is kept", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		const size = 20 << 20
		let := b.outside(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", let.await() + "head -c 20971520 /dev/zero; echo end"}})
		id := WaitStarted(t, s).Exec
		s.Close()
		b.Sh(t, "touch "+let.inside)
		b.waitExit(t, id)
		r := b.Do(t, wire.ExecRequest{Attach: id})
		if !strings.HasSuffix(r.Stdout, "end\n") || len(r.Stdout) < 900<<10 || len(r.Stdout) > 1<<20+128<<10 ||
			int64(len(r.Stdout))+r.Dropped != size+4 {
			t.Errorf("%d bytes kept, %d dropped", len(r.Stdout), r.Dropped)
		}
	}},
	{"an offset leaves out what was had", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		let := b.outside(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "echo 12345; " + let.await() + "echo 67890"}})
		id := WaitStarted(t, s).Exec
		WaitOutput(t, s, "12345\n")
		s.Close()
		b.Sh(t, "touch "+let.inside)
		if r := b.Do(t, wire.ExecRequest{Attach: id, Offset: 6}); r.Stdout != "67890\n" {
			t.Errorf("%+v", r)
		}
	}},
	{"a box without work ends automatically", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { c.IdleAfter = 3 * time.Second }) // enough time to start a command
		pid := strings.TrimSpace(b.Sh(t, "sleep 1000 >/dev/null 2>&1 & echo $!").Stdout)
		select {
		case <-b.Gone():
			t.Fatal("it ended with a process in it")
		case <-time.After(4 * time.Second):
		}
		b.Sh(t, "kill "+pid)
		select {
		case <-b.Gone():
		case <-time.After(patience):
			t.Fatal("it did not end")
		}
		if _, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("exec in a box that is gone: %v", err)
		}
		if _, err := box.Attach(t.Context(), b.Config.RunDir); !fault.Is(err, fault.NotFound) {
			t.Errorf("attach to a box that is gone: %v", err)
		}
	}},
	{"a keeper that does not answer is killed", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		st, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(st.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := box.Kill(t.Context(), b.Config.RunDir); err != nil {
			t.Errorf("kill: %v", err)
		}
		select {
		case <-b.Gone():
		case <-time.After(patience):
			t.Fatal("the keeper lives on")
		}
		if err := box.Kill(t.Context(), b.Config.RunDir); !fault.Is(err, fault.NotFound) {
			t.Errorf("kill of a box that is gone: %v", err)
		}
	}},
	{"stop asks first", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f := b.outside(t)
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c",
					"trap 'echo heard > " + f.inside + "; exit 3' TERM; echo ready; while :; do sleep 0.01; done"}})
		WaitOutput(t, s, "ready")
		if err := b.Stop(t.Context(), patience); err != nil {
			t.Fatal(err)
		}
		if r := Collect(s); r.Err != nil || r.Exit.Code != 3 {
			t.Errorf("%+v", r)
		}
		if got, err := os.ReadFile(f.host); err != nil || string(got) != "heard\n" {
			t.Errorf("%q, %v", got, err)
		}
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Errorf("stopped twice: %v", err)
		}
	}},
	{"stop kills what does not heed", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"}})
		WaitOutput(t, s, "ready")
		start := time.Now()
		if err := b.Stop(t.Context(), 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if r := Collect(s); r.Err != nil || r.Exit.Code != 137 {
			t.Errorf("%+v", r)
		}
		if d := time.Since(start); d < 150*time.Millisecond || d > patience {
			t.Errorf("it took %v", d)
		}
	}},
	{"stop thaws", nil, func(t *testing.T, tier Tier) {
		for _, grace := range []time.Duration{0, time.Second} {
			b := tier.Start(t)
			s := b.Open(t,
				wire.ExecRequest{Cmd: []string{"sh", "-c", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"}})
			WaitOutput(t, s, "ready")
			f, err := b.Freeze(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := b.Stop(t.Context(), grace); err != nil || time.Since(start) > patience {
				t.Errorf("stop with grace %v: %v after %v", grace, err, time.Since(start))
			}
			if r := Collect(s); r.Err != nil || (grace > 0) != (r.Exit.Code == 3) {
				t.Errorf("stop with grace %v: %+v", grace, r)
			}
			f.Drop()
		}
	}},
	{"nothing outlives the keeper", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f := b.outside(t)
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c",
					"echo x > " + f.inside + "; echo ready; while :; do echo x >> " + f.inside + "; sleep 0.01; done"}})
		WaitOutput(t, s, "ready")
		st, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.Gone():
		case <-time.After(patience):
			t.Fatal("the keeper's end goes unnoticed")
		}
		if r := Collect(s); r.Err == nil {
			t.Errorf("%+v", r)
		}
		for last, calm := int64(-1), 0; calm < 3; time.Sleep(100 * time.Millisecond) {
			now, err := os.Stat(f.host)
			if err != nil {
				t.Fatal(err)
			}
			if calm++; now.Size() != last {
				last, calm = now.Size(), 0
			}
			if last > 4000 {
				t.Fatal("the command writes on")
			}
		}
		again, _, err := box.Start(t.Context(), programtest.Programs(), b.Config)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if err := again.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}},
	{"a killed keeper leaves no control group", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		st, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		groups := groupsOf(t, st.PID)
		for _, dir := range groups {
			if _, err := os.Lstat(dir); err != nil {
				t.Errorf("while it lives: %v", err)
			}
		}
		if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.Gone():
		case <-time.After(patience):
			t.Fatal("the keeper's end goes unnoticed")
		}
		for _, dir := range groups {
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
	}},
	{"two starts in one place", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		if _, _, err := box.Start(t.Context(), programtest.Programs(), b.Config); !fault.Is(err, fault.Conflict) {
			t.Errorf("%v", err)
		}
	}},
	{"a start that is given up leaves nothing", nil, func(t *testing.T, tier Tier) {
		c := tier.Config(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := box.Start(ctx, programtest.Programs(), c); !fault.Is(err, fault.Cancelled) {
			t.Errorf("%v", err)
		}
		b, _, err := box.Start(t.Context(), programtest.Programs(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}},
	{"started again", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		f := b.outside(t)
		b.Sh(t, "echo kept > "+f.inside)
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		b2, _, err := box.Start(t.Context(), programtest.Programs(), b.Config)
		if err != nil {
			t.Fatal(err)
		}
		defer b2.Close()
		again := &Box{Box: b2, Config: b.Config}
		if r := again.Sh(t, "cat "+f.inside); r.Stdout != "kept\n" {
			t.Errorf("%+v", r)
		}
		if err := b2.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}},
}

// file is a file in the root's layers, as seen from inside and on the host.
type file struct{ inside, host string }

// await is shell code that waits until the file exists.
func (f file) await() string { return "until test -e " + f.inside + "; do sleep 0.02; done; " }

func (b *Box) outside(t testing.TB) file {
	t.Helper()
	if b.Config.Tier == plan.TierWorkspace {
		p := b.Config.Spec.Bind + "/file"
		return file{p, p}
	}
	for _, o := range b.Config.Spec.Overlays {
		if o.Target == "/etc" {
			return file{"/etc/file", o.Upper + "/file"}
		}
	}
	t.Fatal("the root has no part at /etc")
	return file{}
}

// waitExit waits until a command exits, without reading its output.
func (b *Box) waitExit(t *testing.T, id string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		st, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(st.Execs, func(x protocol.ExecStatus) bool { return x.ID == id })
		if i < 0 || time.Now().After(end) {
			t.Fatalf("command %s has not exited, or its result was not kept: %+v", id, st.Execs)
		}
		if st.Execs[i].Exit != nil {
			return
		}
	}
}

// marked counts the processes of this machine that have mark as an argument.
func marked(t *testing.T, mark string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if cmd, err := os.ReadFile(p); err == nil && slices.Contains(strings.Split(string(cmd), "\x00"), mark) {
			n++
		}
	}
	return n
}

// groupsOf lists the control groups that a keeper has created. It skips the test if there are none.
func groupsOf(t testing.TB, keeper int) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/coppice*-%d", "/sys/fs/cgroup/*/coppice*-%d",
		"/sys/fs/cgroup/*/*/coppice*-%d"} {
		found, err := filepath.Glob(fmt.Sprintf(pattern, keeper))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		t.Skip("needs cgroup: the sandbox has none")
	}
	return all
}
