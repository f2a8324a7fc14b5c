//go:build linux && (amd64 || arm64)

package boxtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// intervals returns in how many intervals of package refusals, at most, refusals since began were reported.
func intervals(began time.Time) int { return int(time.Since(began)/(10*time.Second)) + 2 }

// watchesFiles configures a box that reports refused accesses to files. It has the project, in which /home/p/vendor is
// read-only, and hides some paths. Its user may not read /etc/shadow.
func watchesFiles(t testing.TB) func(*plan.Config) {
	return func(c *plan.Config) {
		giveCaller(t, c)
		giveJournal(t, c)
		project(t, c)
		vendor := filepath.Join(filepath.Dir(c.RunDir), "layer/p/vendor")
		if err := errors.Join(os.Chmod(vendor, 0o777), os.Chmod(vendor+"/f", 0o666)); err != nil {
			t.Fatal(err)
		}
		c.Access.ReadOnly = places("/home/p/vendor")
		c.Denials, c.HiddenAt = plan.DenialsAuto, []string{"/home/p/secret", "/home/p/keys/*", "/home/gone/deep/file"}
		if c.Caller.Root {
			c.User = "daemon"
		}
	}
}

// files returns the refusals of files, in short form.
func files(evs []wire.NetEvent) (out []string) {
	for _, ev := range evs {
		if ev.Op != "" {
			out = append(out, fmt.Sprintf("%s %s %s %s %s %d", ev.Op, ev.Path, ev.Rule, ev.Reason,
				filepath.Base(ev.Program), max(1, ev.Count)))
		}
	}
	slices.Sort(out)
	return out
}

// own is the tier whose kernel belongs to the sandbox.
var own = []string{plan.TierGvisor}

var denied = []check{
	{"refused files are recorded", own, func(t *testing.T, tier Tier) {
		b := tier.Start(t, watchesFiles(t))
		if s := b.Enforced.State(plan.FileDenials); s != plan.On {
			t.Errorf("%q in %+v", s, b.Enforced)
		}
		r := b.Do(t, wire.ExecRequest{ID: "x-files", Cmd: []string{"sh", "-c", `
			cd /home/p
			cat secret; cat ../p/secret; cat secret/below
			ln -s /home/p/secret /tmp/l; cat /tmp/l
			ln -s /home/p /tmp/d; cat /tmp/d/keys/a
			cat /home/gone/deep/file
			sh -c 'echo x >/home/p/vendor/f'
			sh -c ': >>vendor/new'
			rm -f vendor/f
			chmod 777 vendor/f
			cat /etc/shadow
			mkdir -p /usr/new || true
			# not recorded:
			cat none keys /home/gone/other /tmp/d/none
			stat secret; test -r /etc/shadow; ls -d vendor
			mkdir /tmp/own; touch /tmp/own/f; chmod 000 /tmp/own/f /tmp/own; cat /tmp/own/f; ls /tmp/own
			true`}})
		if r.Exit.Code != 0 {
			t.Errorf("%+v", r)
		}
		shell, err := filepath.EvalSymlinks("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		shell = filepath.Base(shell)
		evs := b.refusals(t)
		want := []string{
			"create /home/p/vendor/new read-only EROFS " + shell + " 1",
			"read /etc/shadow permission EACCES cat 1",
			"read /home/gone/deep/file hidden ENOENT cat 1",
			"read /home/p/keys/a hidden ENOENT cat 1",
			"read /home/p/secret hidden ENOENT cat 1",
			"read /home/p/secret hidden ENOENT cat 2",
			"read /home/p/secret/below hidden ENOENT cat 1",
			"remove /home/p/vendor/f read-only EROFS rm 1",
			"write /home/p/vendor/f read-only EROFS " + shell + " 1",
		}
		if c := b.Config.Caller; c.Root { // otherwise the user is root inside
			want = append(want, "create /usr/new permission EACCES mkdir 1",
				"change /home/p/vendor/f permission EPERM chmod 1")
		}
		got := files(evs)
		for _, w := range want {
			if strings.HasPrefix(w, "read /home/p/secret hidden") {
				continue // how often it is reported depends on time
			}
			if !slices.Contains(got, w) {
				t.Errorf("%q is not recorded", w)
			}
		}
		secrets := 0
		for _, ev := range evs {
			if ev.Path == "/home/p/secret" && ev.Rule == wire.RuleHidden {
				secrets += max(1, ev.Count)
			}
			if ev.Op != "" && (ev.Exec != "x-files" || ev.PID <= 1 || ev.First.IsZero() || ev.Last.Before(ev.First) ||
				ev.Syscall == "" || ev.Verdict != wire.VerdictDeny || !slices.Contains(want, line(ev))) {
				t.Errorf("%+v", ev)
			}
		}
		if secrets != 3 {
			t.Errorf("the hidden file is recorded %d times", secrets)
		}
		if int(r.Exit.Denials) != sum(evs) {
			t.Errorf("%d denials, %d recorded", r.Exit.Denials, sum(evs))
		}
		if t.Failed() {
			t.Logf("recorded:\n%s\n%s", strings.Join(got, "\n"), r.Stderr)
		}
	}},
	{"a storm of refused files is counted", own, func(t *testing.T, tier Tier) {
		b := tier.Start(t, watchesFiles(t))
		const n, by = 20_000, 2
		began := time.Now()
		r := b.Sh(t, strings.Repeat(fmt.Sprintf("%s open %d /etc/shadow & ", callerAt, n), by)+"wait")
		if r.Exit.Code != 0 || r.Exit.Denials != n*by {
			t.Errorf("%+v", r)
		}
		evs := b.refusals(t)
		if sum(evs) != n*by || len(evs) > intervals(began)*2*by {
			t.Errorf("%d refusals in %d events", sum(evs), len(evs))
		}
	}},
	{"a storm of different files leaves no call out", own, func(t *testing.T, tier Tier) {
		b := tier.Start(t, watchesFiles(t))
		const n = 5000
		began := time.Now()
		r := b.Sh(t, fmt.Sprintf("%s each %d /home/p/secret/; %[1]s many 1", callerAt, n))
		if r.Exit.Code != 0 {
			t.Errorf("%+v", r)
		}
		evs, untold, calls := b.refusals(t), 0, 0
		for _, ev := range evs {
			switch {
			case ev.Reason == wire.RefusedFiles:
				untold += max(1, ev.Count)
			case ev.Syscall == "bpf":
				calls++
			}
		}
		// In an interval, 64 files are listed, each perhaps with the number of those that were not; and the call.
		most := intervals(began) * (2*64 + 2)
		if sum(evs) != n+1 || len(evs) > most || untold == 0 || calls != 1 {
			t.Errorf("%d refusals in %d events, %d of them not listed; %d calls", sum(evs), len(evs), untold, calls)
		}
	}},
	{"hostile names of refused files", own, func(t *testing.T, tier Tier) {
		b := tier.Start(t, watchesFiles(t))
		r := b.Sh(t, `
			n=$(printf 'x%.0s' $(seq 1 250)); p=/home/p/secret
			for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do p=$p/$n; done
			cat $p
			cat "$(printf '/home/p/secret/a\033[2J\n\377b')"
			ln -s loop /tmp/loop; cat /tmp/loop
			p=/home/p/secret; for i in $(seq 1 1500); do p=$p/a; done; cat $p
			ln -s /home/p/secret/$n /tmp/0; i=0; while [ $i -lt 60 ]; do ln -s $i /tmp/$((i+1)); i=$((i+1)); done; cat /tmp/60
			cd /tmp; mkdir gone; cd gone; rmdir ../gone; cat ../../home/p/secret x; true`)
		if r.Exit.Code != 0 {
			t.Errorf("%+v", r)
		}
		for _, ev := range b.refusals(t) {
			if len(ev.Path) > 1024+8 || ev.Rule != wire.RuleHidden || !strings.HasPrefix(ev.Path, "/home/p/secret") {
				t.Errorf("%+v", ev)
			}
		}
	}},
	{"refused files are not recorded unless the policy says so", own, func(t *testing.T, tier Tier) {
		b := tier.Start(t, watchesFiles(t), func(c *plan.Config) { c.Denials = plan.DenialsNone })
		r := b.Sh(t, "cat /home/p/secret /etc/shadow; true")
		if evs := b.refusals(t); len(evs) > 0 || r.Exit.Denials != 0 || b.Enforced.State(plan.FileDenials) != plan.Off {
			t.Errorf("%+v, %+v, %+v", evs, r, b.Enforced)
		}
	}},
	{"that refused files are not recorded is reported", process, func(t *testing.T, tier Tier) {
		b := tier.Start(t, watchesFiles(t))
		r := b.Sh(t, "cat /home/p/secret /etc/shadow; true")
		if evs := b.refusals(t); len(files(evs)) > 0 || b.Enforced.State(plan.FileDenials) != plan.Off {
			t.Errorf("%+v, %+v, %+v", evs, r, b.Enforced)
		}
	}},
}

// line returns an event as files does.
func line(ev wire.NetEvent) string { return files([]wire.NetEvent{ev})[0] }
