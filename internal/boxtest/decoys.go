//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

func (b *Box) decoyPaths() (out []string) {
	for _, d := range b.Config.Access.Decoys {
		out = append(out, d.At)
	}
	return out
}

// decoyed puts honeytokens at paths of c, each with its own text.
func decoyed(t testing.TB, c *plan.Config, paths ...string) {
	t.Helper()
	project(t, c)
	if c.Journal == "" {
		c.Journal = filepath.Join(filepath.Dir(c.RunDir), "journal")
		if err := os.Mkdir(c.Journal, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range paths {
		c.Access.Decoys = append(c.Access.Decoys, rootspec.Decoy{
			At: p, Text: []byte("token of " + p + "\n"), Mode: 0o600, ModTime: time.Date(2025, 6, 7, 8, 9, 10, 0, time.UTC),
		})
	}
}

// Touched returns the reported openings of honeytokens, once one of them matches fits.
func (b *Box) Touched(t testing.TB, fits func(wire.NetEvent) bool) (all []wire.NetEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := errors.New("done")
	err := journal.Follow(ctx, journal.Place{Dir: b.Config.Journal}, journal.Query{Kinds: []string{wire.NetDecoy}},
		func(ev wire.NetEvent) error {
			if ev.Kind == "" {
				return nil
			}
			if all = append(all, ev); fits(ev) {
				return done
			}
			return nil
		})
	if !errors.Is(err, done) {
		t.Fatalf("%v; told was %+v", err, all)
	}
	return all
}

// halted reports whether a command was ended with its box for reason why, including a command of which the keeper did
// not know that it was started.
func halted(r Result, why string) bool {
	return r.Failed == nil && r.Exit.Code == 137 && r.Exit.Signal == "KILL" && strings.Contains(r.Exit.Message, why)
}

// openings are commands that open the honeytoken $1, and exit with 0 if they could.
var openings = []struct{ name, sh string }{
	{"cat", `cat "$1" >/dev/null`},
	{"nothing is read", `: <"$1"`},
	{"a child that ends at once", `(exec 3<"$1") & wait $!`},
	{"an orphan", `(setsid sh -c ': <"$1"' sh "$1" &) ; true`},
	{"through /proc/self/root", `: </proc/self/root"$1"`},
	{"through /proc/1/root, or as far as that goes", `(: </proc/1/root"$1") 2>/dev/null || : <"$1"`},
	{"through a link", `ln -s "$1" /tmp/l$$ && : </tmp/l$$`},
	{"by a relative name", `cd "$(dirname "$1")" && : <./"$(basename "$1")"`},
	{"by a descriptor of its directory", `exec 3<"$(dirname "$1")" && : </proc/self/fd/3/"$(basename "$1")"`},
	{"to copy it", `cp "$1" /tmp/copy$$`},
	{"to run it", `sh "$1" 2>/dev/null; true`},
	{"to append, which is refused after a look", `cat "$1" >/dev/null; (echo x >>"$1") 2>/dev/null; true`},
	{"by tar", `tar -cf - -C / ".$1" | cat >/dev/null`},
	{"by grep, over everything", `grep -rq token "$(dirname "$1")"`},
}

var decoys = []check{
	{"a decoy is a file that stays as it is", walled, func(t *testing.T, tier Tier) {
		paths := []string{"/home/p/.netrc", "/home/p/.config/gh/hosts.yml", "/home/p/vendor/f", "/opt.key"}
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, paths...) })
		if s := b.Enforced.State("decoys"); s != plan.On {
			t.Errorf("%q in %+v", s, b.Enforced)
		}
		look := "stat -c '%n %a %s %Y %h %F %U' " + strings.Join(paths, " ") + "; cat " + strings.Join(paths, " ")
		r := b.Sh(t, look)
		for _, p := range paths {
			want := fmt.Sprintf("%s 600 %d %d 1 regular file root\n", p, len("token of \n")+len(p),
				time.Date(2025, 6, 7, 8, 9, 10, 0, time.UTC).Unix())
			if !strings.Contains(r.Stdout, want) || !strings.Contains(r.Stdout, "token of "+p+"\n") {
				t.Errorf("want %q in %+v", want, r)
			}
			if tried := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", changes, "sh", p}}); len(tier.succeeded(tried)) > 0 {
				t.Errorf("%s: %+v", p, tried)
			}
		}
		if after := b.Sh(t, look); after.Stdout != r.Stdout {
			t.Errorf("%q became %q", r.Stdout, after.Stdout)
		}
		if r := b.Sh(t,
			"cd /home/p && echo mine >>.config/mine && mv .config/mine .config/gh/ && cat .config/gh/mine"); r.Stdout != "mine\n" {
			t.Errorf("beside them: %+v", r)
		}
	}},
	{"a decoy is not there for what reads from outside", walled, func(t *testing.T, tier Tier) {
		const at = "/home/p/.config/gh/hosts.yml"
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, at, "/home/p/.netrc") })
		if r := b.Sh(t, "ln -s .netrc /home/p/link; ln -s / /home/p/top"); r.Exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		root := b.inside(t)
		for _, p := range []string{at, "/home/p/.netrc", "/home/p/link", "/home/p/top/home/p/.netrc"} {
			if _, err := root.ReadFile(p); !fault.Is(err, fault.NotFound) {
				t.Errorf("read %s: %v", p, err)
			}
			if _, err := root.Stat(p, true); !fault.Is(err, fault.NotFound) {
				t.Errorf("look at %s: %v", p, err)
			}
			var pack strings.Builder
			if err := root.TarTo(t.Context(), p, &pack); err == nil || strings.Contains(pack.String(), "token of") {
				t.Errorf("pack %s: %v", p, err)
			}
		}
		list, err := root.List(t.Context(), "/home/p", -1)
		if err != nil ||
			!slices.ContainsFunc(list.Files, func(f wire.FileInfo) bool { return strings.HasSuffix(f.Path, "lone") }) ||
			slices.ContainsFunc(list.Files, func(f wire.FileInfo) bool {
				return strings.HasSuffix(f.Path, "hosts.yml") || strings.HasSuffix(f.Path, ".netrc")
			}) {
			t.Errorf("%+v, %v", list, err)
		}
		var pack strings.Builder
		if err := root.TarTo(t.Context(), "/home/p", &pack); err != nil || strings.Contains(pack.String(), "token of") {
			t.Errorf("pack all: %v", err)
		}
		if _, err := root.WriteFile(t.Context(), at, strings.NewReader("x"), wire.WriteOptions{}); err == nil {
			t.Error("it was written to")
		}
		if err := root.Remove(t.Context(), "/home/p/.config", true); err == nil {
			t.Error("it was removed")
		}
		if r := b.Sh(t, ": </home/p/.netrc"); r.Exit.Code != 0 { // it still exists
			t.Errorf("%+v", r)
		}
		if evs := b.Touched(t, func(wire.NetEvent) bool { return true }); evs[0].Decoy != "/home/p/.netrc" {
			t.Errorf("from outside something was opened: %+v", evs)
		}
	}},
	{"opening a decoy is recorded, in whatever way", walled, func(t *testing.T, tier Tier) {
		var paths []string
		for i := range openings {
			paths = append(paths, fmt.Sprintf("/home/p/way%d/key", i))
		}
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, paths...) })
		for i, way := range openings {
			if r := b.Do(t, wire.ExecRequest{Cmd: []string{"sh", "-c", way.sh, "sh", paths[i]}}); r.Exit.Code != 0 {
				t.Errorf("%s: %+v", way.name, r)
				continue
			}
			evs := b.Touched(t, func(ev wire.NetEvent) bool { return ev.Decoy == paths[i] })
			if last := evs[len(evs)-1]; last.Reason != wire.DecoyOpened || last.Time.IsZero() || last.Verdict != "" ||
				last.Count > 1 {
				t.Errorf("%s: %+v", way.name, last)
			}
		}
		if n, err := b.Procs(t.Context()); err != nil || n > 1 {
			t.Errorf("%d processes, %v", n, err)
		}
	}},
	{"looking at a decoy does not open it", walled, func(t *testing.T, tier Tier) {
		const quiet, other = "/home/p/.netrc", "/home/p/other"
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, quiet, other) })
		for _, sh := range []string{"stat " + quiet, "ls -la /home/p", "test -r " + quiet, "find /home/p -size +1",
			"ln " + quiet + " /home/p/hard 2>/dev/null || true", "readlink -f " + quiet} {
			if r := b.Sh(t, sh); r.Exit.Code != 0 {
				t.Errorf("%s: %+v", sh, r)
			}
		}
		if r := b.Sh(t, ": <"+other); r.Exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		// The kernel's queue is ordered.
		if evs := b.Touched(t, func(ev wire.NetEvent) bool { return ev.Decoy == other }); len(evs) != 1 {
			t.Errorf("%+v", evs)
		}
	}},
	{"what was opened as the box ended is recorded", walled, func(t *testing.T, tier Tier) {
		const at = "/home/p/.netrc"
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, at, "/home/p/b") })
		if r := b.Sh(t, "i=0; while [ $i -lt 200 ]; do : <"+at+"; : </home/p/b; i=$((i+1)); done"); r.Exit.Code != 0 {
			t.Fatalf("%+v", r)
		}
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		<-b.Gone()
		evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{Kinds: []string{wire.NetDecoy}})
		sum := map[string]int{}
		for _, ev := range evs {
			sum[ev.Decoy] += max(ev.Count, 1)
		}
		// The kernel may merge successive openings of the same file. In tier gvisor it may merge all openings.
		if tier.Name == plan.TierGvisor && err == nil && sum[at] > 0 && sum["/home/p/b"] > 0 {
			return
		}
		if err != nil || sum[at] != 200 || sum["/home/p/b"] != 200 {
			t.Errorf("%v, %v: %+v", sum, err, evs)
		}
	}},
	{"a touched decoy stops the box where that is asked for", walled, func(t *testing.T, tier Tier) {
		const at = "/home/p/.netrc"
		b := tier.Start(t, func(c *plan.Config) {
			decoyed(t, c, at)
			c.OnTouch = plan.TouchStop
		})
		other := b.Open(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "trap '' TERM HUP; echo up; while :; do sleep 100; done"}})
		WaitOutput(t, other, "up\n")
		r := b.Do(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "echo mine >/home/p/mine; : <" + at + "; while :; do sleep 100; done"}})
		for _, x := range []Result{r, Collect(other)} {
			if !halted(x, "the honeytoken "+at+" was opened") {
				t.Errorf("%+v", x)
			}
		}
		<-b.Gone()
		evs, err := journal.Read(journal.Place{Dir: b.Config.Journal}, journal.Query{})
		if err != nil || len(evs) == 0 || !slices.ContainsFunc(evs, func(ev wire.NetEvent) bool {
			return ev.Kind == wire.NetDecoy && ev.Decoy == at && ev.Verdict == wire.VerdictStop
		}) {
			t.Errorf("%+v, %v", evs, err)
		}
		if _, err := b.Exec(t.Context(), wire.ExecRequest{Cmd: []string{"true"}}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("afterwards: %v", err)
		}
	}},
	{"what cannot be recorded stops the box", walled, func(t *testing.T, tier Tier) {
		const at = "/home/p/.netrc"
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, at) })
		if err := errors.Join(os.RemoveAll(b.Config.Journal), os.WriteFile(b.Config.Journal, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if r := b.Sh(t, ": <"+at+"; while :; do sleep 100; done"); !halted(r, "could not be recorded") {
			t.Errorf("%+v", r)
		}
		<-b.Gone()
	}},
	{"a decoy leaves nothing in the file system", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t, func(c *plan.Config) { decoyed(t, c, "/home/p/lone") })
		if r := b.Sh(t,
			"cat /home/p/lone && df --output=target,fstype /home/p/lone; cat /proc/self/mountinfo"); !strings.Contains(r.Stdout,
			"token of") || strings.Contains(r.Stdout, "decoy") || strings.Contains(r.Stdout, b.Config.RunDir) {
			t.Errorf("%+v", r)
		}
		for _, o := range b.Config.Spec.Overlays {
			err := filepath.WalkDir(o.Upper, func(p string, d os.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				f, err := os.Open(p)
				if errors.Is(err, unix.EACCES) {
					return nil
				}
				if err != nil {
					return err
				}
				defer f.Close()
				if text, err := io.ReadAll(f); err != nil || strings.Contains(string(text), "token of") {
					return fmt.Errorf("%s holds it, %w", p, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	}},
}
