//go:build linux

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// writer is a shell that stays in a sandbox, so that changes can be made without the snapshot at the end of each
// exec.
type writer struct {
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
}

func (b *bench) writer(name string) *writer {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	w := &writer{in: inW, out: bufio.NewReader(outR), done: make(chan error, 1)}
	go func() {
		_, err := b.c.Exec(b.ctx, name, wire.ExecRequest{Cmd: []string{"bash"}, Stdin: true},
			client.Streams{Stdin: inR, Stdout: outW})
		outW.CloseWithError(io.EOF)
		w.done <- err
	}()
	return w
}

// do runs a line of shell and waits for it.
func (w *writer) do(line string) error {
	if _, err := fmt.Fprintf(w.in, "%s\necho done\n", line); err != nil {
		return err
	}
	_, err := w.out.ReadString('\n')
	return err
}

func (w *writer) close() error {
	w.in.Close()
	return <-w.done
}

// files returns shell code that writes n files of one line, at most 1,000 per directory.
func files(dir string, n int, tag string) string {
	return fmt.Sprintf(
		`for ((i=0;i<%d;i++)); do ((i%%1000)) || { d=%s/$((i/1000)); mkdir -p $d; }; echo %s$i >$d/$i; done`, n, dir, tag)
}

func (b *bench) snapshots(scale int) error {
	for _, already := range []int{0, 10_000, 100_000} {
		name, err := b.sandbox(wire.Source{})
		if err != nil {
			return err
		}
		w := b.writer(name)
		home := "/var/tmp/bench"
		if already > 0 {
			if err := w.do(files(home+"/old", already/scale, "old")); err != nil {
				return err
			}
			if _, err := b.c.Commit(b.ctx, name, "the entries that are there already"); err != nil {
				return err
			}
		}
		for _, n := range []int{1, 1000, 100_000} {
			if n == 100_000 && already > 0 {
				continue
			}
			if err := b.snapshot(w, name, home, already/scale, n, scale); err != nil {
				return err
			}
		}
		if err := w.close(); err != nil {
			return err
		}
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) snapshot(w *writer, name, dir string, already, n, scale int) error {
	reps := map[int]int{1: 100, 1000: 30, 100_000: 3}[n]
	reps = max(2, reps/scale)
	if n == 100_000 {
		n /= scale
	}
	var ours []time.Duration
	for i := range reps {
		if err := w.do(files(dir+"/new", n, fmt.Sprintf("r%d-", i))); err != nil {
			return err
		}
		t := time.Now()
		r, err := b.c.Commit(b.ctx, name, "bench")
		if err != nil {
			return err
		}
		ours = append(ours, time.Since(t))
		if !r.Changed || r.Paths < n {
			return fmt.Errorf("a snapshot of %d files holds %d", n, r.Paths)
		}
	}
	theirs, err := b.gitCommit(already, n, min(reps, 10))
	if err != nil {
		return err
	}
	budget := map[string]string{"1/0": "4 ms", "1000/0": "15 ms", "1/100000": "60 ms"}[fmt.Sprintf("%d/%d", n, already)]
	b.add(fmt.Sprintf("snapshot of %d changed files, %d in the upper already", n, already), "a process runs meanwhile",
		statOf(ours), budget, "git add -A && git commit", theirs)
	return nil
}

// atRest times the capture of a large upper layer of a sandbox without running processes: by renaming it.
func (b *bench) atRest(scale int) error {
	n := 100_000 / scale
	var ours []time.Duration
	for range 3 {
		name, err := b.sandbox(wire.Source{})
		if err != nil {
			return err
		}
		w := b.writer(name)
		if err := w.do(files("/var/tmp/bench", n, "r")); err != nil {
			return err
		}
		// The exit of the writer would also capture the changes, so the writer is stopped with the sandbox.
		t := time.Now()
		if _, err := b.c.Stop(b.ctx, name); err != nil {
			return err
		}
		ours = append(ours, time.Since(t))
		if err := w.close(); err != nil {
			return err
		}
		if s, err := b.c.Head(b.ctx, name); err != nil || s.Head == "" {
			return fmt.Errorf("no snapshot after the stop: %w", err)
		}
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	b.add(fmt.Sprintf("stop, and snapshot of %d new files", n), "by renaming", statOf(ours), "", "", stat{})
	return nil
}

// gitCommit times the same change as a git commit.
func (b *bench) gitCommit(already, n, reps int) (stat, error) {
	dir, err := os.MkdirTemp(b.dir, "git")
	if err != nil {
		return stat{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	git := func(args ...string) error {
		return b.host(
			append([]string{"git", "-C", dir, "-c", "user.name=b", "-c", "user.email=b@b", "-c", "gc.auto=0"}, args...)...)
	}
	if err := git("init", "-q"); err != nil {
		return stat{}, err
	}
	if err := b.host("bash", "-c", files(dir+"/old", already, "old")); err != nil {
		return stat{}, err
	}
	var ds []time.Duration
	for i := range reps + 1 {
		if err := b.host("bash", "-c", files(dir+"/new", n, fmt.Sprintf("r%d-", i))); err != nil {
			return stat{}, err
		}
		t := time.Now()
		if err := git("add", "-A"); err != nil {
			return stat{}, err
		}
		if err := git("commit", "-q", "-m", "bench"); err != nil {
			return stat{}, err
		}
		if i > 0 {
			ds = append(ds, time.Since(t))
		}
	}
	return statOf(ds), nil
}

func (b *bench) moves(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	if err := b.exec(name, "sh", "-c", "mkdir -p /var/tmp/m; echo one >/var/tmp/m/f"); err != nil {
		return err
	}
	one, err := b.c.Head(b.ctx, name)
	if err != nil {
		return err
	}
	if err := b.exec(name, "sh", "-c", "echo two >/var/tmp/m/f"); err != nil {
		return err
	}
	two, err := b.c.Head(b.ctx, name)
	if err != nil {
		return err
	}
	to := []string{one.Head, two.Head}
	ours, err := times(60/scale, func(i int) error {
		if _, err := b.c.Checkout(b.ctx, name, wire.CheckoutRequest{Node: to[i%2]}); err != nil {
			return err
		}
		return b.exec(name, "true")
	})
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "co")
	script := `git init -q $0 && cd $0 && git config user.name b && git config user.email b@b && echo 1 >f && git add f && git commit -qm 1 && git branch one && echo 2 >f && git commit -qam 2 && git branch two`
	if err := b.host("bash", "-c", script, dir); err != nil {
		return err
	}
	theirs, err := times(60/scale, func(i int) error {
		return b.host("git", "-C", dir, "checkout", "-q", []string{"one", "two"}[i%2])
	})
	if err != nil {
		return err
	}
	b.add("rollback, and the first command after it", "", ours, "15 ms", "git checkout of one file", theirs)
	return b.c.Remove(b.ctx, name, true)
}

// inPlace measures rewinds back and forth under a running command, with one file that differs and with a
// thousand.
func (b *bench) inPlace(scale int) error {
	for _, n := range []int{1, 1000} {
		if err := b.inPlaceOf(n, scale); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) inPlaceOf(n, scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	var to []string
	for _, text := range []string{"one", "two"} {
		script := fmt.Sprintf("mkdir -p /var/tmp/m; for i in $(seq %d); do echo %s $i >/var/tmp/m/$i; done", n, text)
		if err := b.exec(name, "sh", "-c", script); err != nil {
			return err
		}
		head, err := b.c.Head(b.ctx, name)
		if err != nil {
			return err
		}
		to = append(to, head.Head)
	}
	if err := b.exec(name, "sh", "-c", "sleep 1000 >/dev/null 2>&1 &"); err != nil {
		return err
	}
	ours, err := times(60/scale, func(i int) error {
		r, err := b.c.Checkout(b.ctx, name, wire.CheckoutRequest{Node: to[i%2], InPlace: true})
		if err == nil && !r.InPlace {
			err = fmt.Errorf("nothing ran: %+v", r)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.add(fmt.Sprintf("rollback in place, files that differ: %d", n), "", ours, "", "", stat{})
	return b.c.Remove(b.ctx, name, true)
}

func (b *bench) forks(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	if err := b.exec(name, "sh", "-c", "echo x >/var/tmp/forked"); err != nil {
		return err
	}
	var made []string
	note := func(r wire.ForkResult, err error) error {
		for _, s := range r.Sandboxes {
			made = append(made, s.Name)
		}
		return err
	}
	ours, err := times(100/scale, func(int) error { return note(b.c.Fork(b.ctx, name, wire.ForkRequest{N: 1})) })
	if err != nil {
		return err
	}
	b.add("fork", "", ours, "2 ms", "", stat{})
	t := time.Now()
	if err := note(b.c.Fork(b.ctx, name, wire.ForkRequest{N: 1000 / scale})); err != nil {
		return err
	}
	b.add(fmt.Sprintf("%d forks at once", 1000/scale), "", statOf([]time.Duration{time.Since(t)}), "3 s", "", stat{})
	if err := b.exec(made[len(made)-1], "grep", "-q", "x", "/var/tmp/forked"); err != nil {
		return err
	}
	for _, n := range append(made, name) {
		if err := b.c.Remove(b.ctx, n, true); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) imports(int) error {
	src := "/usr/share"
	var ours, cp, tar []time.Duration
	for i := range 3 {
		t := time.Now()
		name, err := b.sandbox(wire.Source{Kind: wire.SourceDir, Path: src})
		if err != nil {
			return err
		}
		ours = append(ours, time.Since(t))
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
		dst := filepath.Join(b.dir, fmt.Sprintf("cp%d", i))
		t = time.Now()
		if err := b.host("cp", "-a", src, dst); err != nil {
			return err
		}
		cp = append(cp, time.Since(t))
		t = time.Now()
		if err := b.host("tar", "-cf", dst+".tar", "-C", src, "."); err != nil {
			return err
		}
		tar = append(tar, time.Since(t))
		if err := b.host("rm", "-rf", dst, dst+".tar"); err != nil {
			return err
		}
	}
	b.add("import of "+src, "", statOf(ours), "half of cp -a", "cp -a", statOf(cp))
	b.add("import of "+src, "", statOf(ours), "", "tar -cf", statOf(tar))
	t := time.Now()
	name, err := b.sandbox(wire.Source{Kind: wire.SourceHostCopy})
	if err != nil {
		return err
	}
	b.add("import of the host's system directories", "host-copy, the first time", statOf([]time.Duration{time.Since(t)}),
		"", "", stat{})
	t = time.Now()
	again, err := b.sandbox(wire.Source{Kind: wire.SourceHostCopy})
	if err != nil {
		return err
	}
	b.add("the same", "the second time", statOf([]time.Duration{time.Since(t)}), "", "", stat{})
	for _, n := range []string{name, again} {
		if err := b.c.Remove(b.ctx, n, true); err != nil {
			return err
		}
	}
	return nil
}

// goProgram is a program whose build is mostly the standard library's.
const goProgram = `package main
import ("net/http"; "encoding/json"; "os")
func main() { json.NewEncoder(os.Stdout).Encode(http.StatusText(200)) }
`

func (b *bench) builds(int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	prepare := func(dir string) string {
		return fmt.Sprintf(
			"mkdir -p %[1]s && cd %[1]s && printf 'module m\\ngo 1.24\\n' >go.mod && cat >main.go <<'X'\n%[2]sX\n",
			dir, goProgram)
	}
	build := func(dir string) string {
		return fmt.Sprintf(
			"cd %[1]s && rm -rf cache && PATH=$PATH:/usr/local/go/bin GOCACHE=%[1]s/cache GOFLAGS=-mod=mod GOTOOLCHAIN=local "+
				"HOME=%[1]s go build -o m .", dir)
	}
	in, out := "/var/tmp/gobuild", filepath.Join(b.dir, "gobuild")
	if err := b.exec(name, "bash", "-c", prepare(in)); err != nil {
		return err
	}
	if err := b.host("bash", "-c", prepare(out)); err != nil {
		return err
	}
	var ours, theirs []time.Duration
	for range 3 {
		t := time.Now()
		if err := b.host("bash", "-c", build(out)); err != nil {
			return err
		}
		theirs = append(theirs, time.Since(t))
		w := b.writer(name)
		t = time.Now()
		if err := w.do(build(in) + " || exit 1"); err != nil {
			return fmt.Errorf("go build in the sandbox: %w", err)
		}
		ours = append(ours, time.Since(t))
		if err := w.close(); err != nil {
			return err
		}
	}
	b.add("go build with an empty cache", "inside", statOf(ours), "1.05 x", "outside", statOf(theirs))
	return b.c.Remove(b.ctx, name, true)
}

// npm installs packages from a cache that is filled first, inside and outside.
func (b *bench) npm(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	const install = `mkdir -p %[1]s && cd %[1]s && rm -rf node_modules && echo '{"dependencies":{"express":"4","typescript":"5","eslint":"8"}}' >package.json &&
		HOME=%[1]s npm install --no-audit --no-fund --no-update-notifier --loglevel=error --cache %[1]s/cache %[2]s >/dev/null`
	in, out := "/var/tmp/npm", filepath.Join(b.dir, "npm")
	if err := b.host("bash", "-c", fmt.Sprintf(install, out, "")); err != nil {
		return fmt.Errorf("fill npm's cache: %w", err)
	}
	// The bench's own directory is not visible inside, so the files are copied.
	pack, err := exec.CommandContext(b.ctx, "tar", "-C", out, "-cf", "-", "cache", "package-lock.json").Output()
	if err != nil {
		return err
	}
	x, err := b.c.Exec(b.ctx, name,
		wire.ExecRequest{Cmd: []string{"sh", "-c", "mkdir -p " + in + " && tar -C " + in + " -xf -"}, Stdin: true},
		client.Streams{Stdin: bytes.NewReader(pack)})
	if err != nil || x.Code != 0 {
		return fmt.Errorf("hand npm's cache in: exit code %d, %w", x.Code, err)
	}
	var ours, theirs []time.Duration
	for range max(2, 5/scale) {
		t := time.Now()
		if err := b.host("bash", "-c", fmt.Sprintf(install, out, "--offline")); err != nil {
			return err
		}
		theirs = append(theirs, time.Since(t))
		w := b.writer(name)
		t = time.Now()
		if err := w.do(fmt.Sprintf(install, in, "--offline") + " || exit 1"); err != nil {
			return fmt.Errorf("npm install in the sandbox: %w", err)
		}
		ours = append(ours, time.Since(t))
		if err := w.close(); err != nil {
			return err
		}
	}
	b.add("npm install from a full cache", "inside", statOf(ours), "1.05 x", "outside", statOf(theirs))
	return b.c.Remove(b.ctx, name, true)
}

// memory measures the proportional set sizes of Coppice's processes.
func (b *bench) memory(int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	if err := b.exec(name, "true"); err != nil {
		return err
	}
	time.Sleep(time.Second) // measure the idle state
	box, err := pss(b.daemon, false)
	if err != nil {
		return err
	}
	daemon, err := pss(b.daemon, true)
	if err != nil {
		return err
	}
	b.add("memory of an idle live sandbox", "PSS of keeper and init", box, "12 MB", "", stat{})
	b.add("memory of the daemon", "PSS, after all of the above", daemon, "", "", stat{})
	return b.c.Remove(b.ctx, name, true)
}

// family returns a process and its descendants.
func family(pid int) ([]int, error) {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i]))
		if err != nil {
			return nil, err
		}
		for _, t := range threads {
			list, err := os.ReadFile(t)
			if err != nil {
				return nil, err
			}
			for f := range strings.FieldsSeq(string(list)) {
				kid, err := strconv.Atoi(f)
				if err != nil {
					return nil, err
				}
				pids = append(pids, kid)
			}
		}
	}
	return pids, nil
}

// pss returns the sum of the proportional set sizes of the descendants of the process pid, or of the process
// itself if own is true.
func pss(pid int, own bool) (sum kibibytes, err error) {
	pids, err := family(pid)
	if err != nil {
		return 0, err
	}
	for i := range pids {
		if (i == 0) != own {
			continue
		}
		roll, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pids[i]))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(roll)) {
			var n kibibytes
			if _, err := fmt.Sscanf(line, "Pss: %d kB", &n); err == nil {
				sum += n
			}
		}
	}
	return sum, nil
}
