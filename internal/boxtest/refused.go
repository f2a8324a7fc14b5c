//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// withCaller configures a box that contains the caller and reports refusals.
func withCaller(t testing.TB) func(*plan.Config) {
	return func(c *plan.Config) {
		giveCaller(t, c)
		giveJournal(t, c)
	}
}

// giveJournal gives a box a journal.
func giveJournal(t testing.TB, c *plan.Config) {
	t.Helper()
	if c.Journal != "" {
		return
	}
	c.Journal = filepath.Join(filepath.Dir(c.RunDir), "journal")
	if err := os.Mkdir(c.Journal, 0o700); err != nil {
		t.Fatal(err)
	}
}

// refusals returns the refusals of system calls that were reported so far.
func (b *Box) refusals(t testing.TB) []wire.NetEvent {
	t.Helper()
	evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{Kinds: []string{wire.NetRefused}})
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

// sum returns how many refusals events report, including missing ones.
func sum(evs []wire.NetEvent) (n int) {
	for _, ev := range evs {
		n += max(1, ev.Count)
	}
	return n
}

// refusedUntil waits until n refusals are reported.
func (b *Box) refusedUntil(t testing.TB, n int) []wire.NetEvent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	enough := errors.New("enough")
	var all []wire.NetEvent
	err := journal.Follow(ctx, journal.Place{Dir: b.Config.Journal}, journal.Query{Kinds: []string{wire.NetRefused}},
		func(ev wire.NetEvent) error {
			if ev.Kind != "" {
				all = append(all, ev)
			}
			if sum(all) >= n {
				return enough
			}
			return nil
		})
	if !errors.Is(err, enough) {
		t.Fatalf("%d refusals are reported, %v; want %d", sum(all), err, n)
	}
	return all
}

var refusals = []check{
	{"what is refused is refused as before, and told once", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, withCaller(t))
		quiet := tier.Start(t, func(c *plan.Config) { giveCaller(t, c) })
		want := ""
		for _, c := range refusedCalls() {
			want += fmt.Sprintln(c.name, int(c.want))
		}
		req := wire.ExecRequest{ID: "x-all", Cmd: []string{callerAt, "all"}}
		for _, box := range []*Box{b, quiet} {
			if r := box.Do(t, req); r.Stdout != want || r.Exit.Code != 0 {
				t.Errorf("%s\nwant\n%s%+v", r.Stdout, want, r)
			}
		}
		// All of them are reported by now, since the command has exited.
		evs, pid := b.refusals(t), 0
		got := map[string]int{}
		for _, ev := range evs {
			if pid == 0 {
				pid = ev.PID
			}
			if got[ev.Syscall]++; ev.Exec != "x-all" || ev.Program != callerAt || ev.PID != pid || pid <= 1 || ev.Count > 1 ||
				ev.Verdict != wire.VerdictDeny {
				t.Errorf("%+v", ev)
			}
		}
		for _, c := range refusedCalls() {
			if got[c.name] != 1 {
				t.Errorf("%s is reported %d times", c.name, got[c.name])
			}
		}
		if len(evs) != len(refusedCalls()) {
			t.Errorf("%d are reported, of %d", len(evs), len(refusedCalls()))
		}
	}},
	{"a storm of refusals is counted", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, withCaller(t))
		const n, by = 50_000, 3
		began := time.Now()
		r := b.Sh(t, strings.Repeat(fmt.Sprintf("%s many %d & ", callerAt, n), by)+"wait")
		if r.Exit.Code != 0 || strings.Count(r.Stdout, "\n") != by || r.Exit.Denials != n*by {
			t.Errorf("%+v", r)
		}
		if evs := b.refusals(t); sum(evs) != n*by || len(evs) > intervals(began)*2*by {
			t.Errorf("%d refusals in %d events", sum(evs), len(evs))
		}
	}},
	{"of many programs no refusal is left out", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, withCaller(t))
		const n = 80 // more than are reported individually, unless it takes long
		r := b.Sh(t,
			fmt.Sprintf(
				"export GORACE=atexit_sleep_ms=0; cd /tmp && cp %s p && i=0; while [ $i -lt %d ]; do ln p %s-$i; ./%[3]s-$i "+
					"many 2 >/dev/null || exit; i=$((i+1)); done", callerAt, n, CallerArgv0))
		if evs := b.refusals(t); r.Exit.Code != 0 || sum(evs) != 2*n {
			t.Errorf("%d refusals in %d events: %+v", sum(evs), len(evs), r)
		}
	}},
	{"who is killed is not told less of", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, withCaller(t))
		const n = 1000
		s := b.Open(t, wire.ExecRequest{Cmd: []string{callerAt, "wait", strconv.Itoa(n)}})
		WaitStarted(t, s)
		WaitOutput(t, s, "\n")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := b.Stop(ctx, 0); err != nil {
			t.Fatal(err)
		}
		evs := b.refusals(t)
		if sum(evs) != n {
			t.Errorf("%+v", evs)
		}
		for _, ev := range evs { // init may not have reported any
			if ev.Syscall != "bpf" && ev.Reason != wire.RefusedUntold {
				t.Errorf("%+v", ev)
			}
		}
	}},
	{"refusals belong to the command that they descend from", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, withCaller(t))
		// Its own session, with the command as a parent.
		if r := b.Do(t,
			wire.ExecRequest{ID: "x-own",
				Cmd: []string{"sh", "-c", "setsid --wait " + callerAt + " many 2"}}); r.Exit.Code != 0 || r.Exit.Denials != 2 {
			t.Errorf("%+v", r)
		}
		// The command has exited, and its session still has a process.
		if r := b.Do(t,
			wire.ExecRequest{ID: "x-gone",
				Cmd: []string{"sh", "-c",
					"mkfifo /tmp/f; (read x </tmp/f; exec " + callerAt + " many 3) >/dev/null 2>&1 &"}}); r.Exit.Code != 0 ||
			r.Exit.Denials != 0 {
			t.Errorf("%+v", r)
		}
		b.Sh(t, "echo go >/tmp/f")
		by := map[string]int{}
		for _, ev := range b.refusedUntil(t, 3) {
			by[ev.Exec] += max(1, ev.Count)
		}
		if by["x-own"] != 2 || by["x-gone"] == 0 || len(by) != 2 {
			t.Errorf("%v", by)
		}
	}},
	{"a command that the filter has killed is reported", process, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { giveJournal(t, c) })
		r := b.Do(t, wire.ExecRequest{ID: "x-killed", Cmd: []string{"sh", "-c", "kill -SYS $$"}})
		evs := b.refusals(t)
		if r.Exit.Signal != "SYS" || r.Exit.Denials != 1 || len(evs) != 1 || evs[0].Exec != "x-killed" ||
			evs[0].Reason != wire.RefusedKilled || evs[0].Syscall != "" {
			t.Errorf("%+v, %+v", r, evs)
		}
	}},
	{"ordinary programs are not told of", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { giveJournal(t, c) })
		for _, script := range []string{
			"ls -l /etc >/dev/null; id; ps ax >/dev/null; df / >/dev/null; ulimit -n 64; date",
			"command -v git >/dev/null && cd /tmp && git init -q r && cd r && git -c user.name=n -c user.email=e commit -q " +
				"--allow-empty -m m",
			"command -v python3 >/dev/null && python3 -c 'import subprocess, socket, multiprocessing, threading; " +
				"subprocess.run([\"true\"]); multiprocessing.Pool(2).map(abs, [1]); socket.getaddrinfo(\"localhost\", 80)'",
			"command -v node >/dev/null && node -e 'require(\"os\").networkInterfaces(); " +
				"require(\"fs\").readFile(\"/etc/passwd\", () => {})'",
			"command -v curl >/dev/null && curl -sS --max-time 2 http://localhost:1",
			"command -v gcc >/dev/null && cd /tmp && echo 'int main(){return 0;}' >a.c && gcc a.c && ./a.out",
			"command -v go >/dev/null && go version",
			"command -v setarch >/dev/null && setarch -R true",
			"command -v apt-get >/dev/null && apt-get --version >/dev/null",
			"su -c true; useradd nobody2; passwd -S root; getent hosts localhost; getent passwd root; getent group root",
			"tar cf /tmp/x.tar /etc/passwd; cp -a /etc/passwd /tmp/; chmod 600 /tmp/passwd; perl -e 'print 1'",
		} {
			b.Sh(t, script)
		}
		if evs := b.refusals(t); len(evs) > 0 {
			t.Errorf("%+v", evs)
		}
	}},
	{"nothing is reported where no process listens", []string{plan.TierProcess}, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { giveCaller(t, c) })
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{callerAt, "many", "5"}}); r.Exit.Code != 0 || r.Exit.Denials != 0 {
			t.Errorf("%+v", r)
		}
	}},
}

// Refusals returns a function that times n system calls in a box that does or does not report refusals: calls that are
// refused or, with free, calls that the filter examines and allows.
func (tier Tier) Refusals(t testing.TB, tell bool) func(n int, free bool) time.Duration {
	b := tier.Start(t, func(c *plan.Config) {
		giveCaller(t, c)
		if tell {
			giveJournal(t, c)
		}
	})
	return func(n int, free bool) time.Duration {
		what := "many"
		if free {
			what = "free"
		}
		r := b.Do(t, wire.ExecRequest{Cmd: []string{callerAt, what, strconv.Itoa(n)}})
		ns, err := strconv.ParseInt(strings.TrimSpace(r.Stdout), 10, 64)
		if err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		return time.Duration(ns)
	}
}
