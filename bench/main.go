//go:build linux

// Command bench compares Coppice with its alternatives, in one run, and prints a table. It drives its own daemon
// over the API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/program"
)

func main() {
	run := run
	switch {
	case len(os.Args) == 2 && os.Args[1] == "gaps": // started inside by pauses
		run = func() error {
			stop := make(chan os.Signal, 1)
			signal.Notify(stop, os.Interrupt)
			return gaps(stop, os.Stdout)
		}
	case len(os.Args) == 3 && os.Args[1] == "plain": // started by plainServer
		run = func() error { return plain(os.Args[2], os.Stdin, os.Stdout) }
	case len(os.Args) == 3 && os.Args[1] == "sink": // started by gates
		run = func() error { return sink(os.Args[2], os.Stdin, os.Stdout) }
	case len(os.Args) == 4 && os.Args[1] == "reach": // started inside by gates
		run = func() error { return reach(os.Args[2], os.Args[3], os.Stdout) }
	case len(os.Args) > 2 && os.Args[1] == "notified": // started by denials
		run = func() error { return notified(os.Args[2:]) }
	case (len(os.Args) == 4 || len(os.Args) == 5) && os.Args[1] == "visit": // the same
		run = func() error { return visit(os.Args[2:], os.Stdout) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run: its client, its scratch directory and its results.
type bench struct {
	ctx  context.Context //nolint:containedctx // one run, one context
	bin  string
	dir  string
	c    *client.Client
	rows []row
	seq  int

	helpers *program.Set // for boxes without a daemon

	daemon int           // its pid
	tcp    string        // its URL on TCP
	load   time.Duration // duration of the load test
}

// row is one line of the table. Times are per operation.
type row struct {
	what, how string
	ours      figure
	budget    string
	base      string
	theirs    figure
}

// figure is the value of a row: times, a rate, or an amount of memory.
type figure interface {
	fmt.Stringer
	count() int
	value() float64 // to compare with another of its kind; 0: not comparable
}

type stat struct {
	n        int
	p50, p99 time.Duration
}

func (s stat) count() int     { return s.n }
func (s stat) value() float64 { return float64(s.p50) }

func (s stat) String() string {
	switch s.n {
	case 0:
		return "-"
	case 1:
		return round(s.p50)
	}
	return fmt.Sprintf("%s / %s", round(s.p50), round(s.p99))
}

// kibibytes is an amount of memory.
type kibibytes int

func (k kibibytes) count() int     { return 1 }
func (k kibibytes) value() float64 { return float64(k) }

func (k kibibytes) String() string { return fmt.Sprintf("%.1f MB", float64(k)*1024/1e6) }

func round(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}

// times runs fn n times after one uncounted run.
func times(n int, fn func(i int) error) (stat, error) {
	var ds []time.Duration
	for i := range n + 1 {
		t := time.Now()
		if err := fn(i); err != nil {
			return stat{}, err
		}
		if d := time.Since(t); i > 0 {
			ds = append(ds, d)
		}
	}
	return statOf(ds), nil
}

func statOf(ds []time.Duration) stat {
	slices.Sort(ds)
	return stat{n: len(ds), p50: ds[len(ds)/2], p99: ds[min(len(ds)-1, len(ds)*99/100)]}
}

func run() error {
	bin := flag.String("coppice", "bin/coppice", "the binary to measure")
	quick := flag.Bool("quick", false, "fewer repetitions, smaller trees")
	only := flag.String("only", "",
		"a regular expression of what to measure: startup, exec, create, snapshot, rest, rollback, inplace, fork, import, "+
			"go, npm, delay, slowdown, pause, rewind, idle, tournament, memory, doors, head, output, files, streams, load, "+
			"gate, programs, denials, repo, gvisor, image, tiers")
	load := flag.Duration("for", 10*time.Second, "how long to load the daemon")
	flag.Parse()
	want, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	abs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "coppice-bench")
	if err != nil {
		return err
	}
	home := filepath.Join(dir, "home")
	ctx := context.Background()
	daemon := exec.CommandContext(ctx, abs, "serve", "--home", home, "--http", "127.0.0.1:0")
	daemon.Env = append(os.Environ(), "COPPICE_HOME="+home)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		return err
	}
	b := &bench{helpers: program.New("", os.Getenv("COPPICE_EXEC_PATH")), ctx: ctx, bin: abs, dir: dir, load: *load,
		c: client.New(client.Options{Socket: filepath.Join(home, "daemon.sock")})}
	defer func() {
		b.c.Close()
		_ = daemon.Process.Signal(os.Interrupt)
		_ = daemon.Wait()
		_ = exec.CommandContext(ctx, "chmod", "-R", "u+rwx", dir).Run()
		_ = os.RemoveAll(dir)
	}()
	if err := b.ready(); err != nil {
		return err
	}
	steps := []struct {
		name string
		run  func(scale int) error
	}{
		{"startup", b.startup}, {"exec", b.execs}, {"create", b.creates}, {"snapshot", b.snapshots}, {"rest", b.atRest},
		{"rollback", b.moves}, {"inplace", b.inPlace}, {"fork", b.forks}, {"import", b.imports}, {"go", b.builds},
		{"npm", b.npm},
		{"delay", b.delays}, {"slowdown", b.slowdowns}, {"pause", b.pauses}, {"rewind", b.rewinds}, {"idle", b.idles},
		{"tournament", b.tournaments}, {"memory", b.memory},
		{"doors", b.doors}, {"head", b.heads}, {"output", b.outputs}, {"files", b.transfers}, {"streams", b.streams},
		{"load", b.loads},
		{"gate", b.gates}, {"programs", b.programs}, {"denials", b.denials}, {"repo", b.repos}, {"gvisor", b.gvisor},
		{"image", b.images}, {"tiers", b.tiers},
	}
	scale := 1
	if *quick {
		scale = 10
	}
	for _, step := range steps {
		if !want.MatchString(step.name) {
			continue
		}
		if err := step.run(scale); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", step.name, err), b.print(os.Stdout))
		}
	}
	return b.print(os.Stdout)
}

func (b *bench) ready() error {
	for range 200 {
		if d, err := b.c.Daemon(b.ctx); err == nil {
			b.daemon = d.PID
			for _, l := range d.Listeners {
				if l.Auth == wire.AuthToken {
					b.tcp = l.URL
				}
			}
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the daemon does not answer")
}

func (b *bench) add(what, how string, ours figure, budget, base string, theirs figure) {
	b.rows = append(b.rows, row{what, how, ours, budget, base, theirs})
	fmt.Fprintf(os.Stderr, "%-60s %s %-24s %s %s\n", what, how, ours, base, theirs)
}

func (b *bench) print(w io.Writer) error {
	host, _ := exec.CommandContext(b.ctx, "uname", "-sr").Output()
	fmt.Fprintf(w, "%s, %s, %d cores, uid %d, %s\n\n", time.Now().UTC().Format("2006-01-02"),
		strings.TrimSpace(string(host)), runtime.NumCPU(), os.Getuid(), runtime.Version())
	fmt.Fprintln(w, "| what | n | Coppice, median / p99 | budget | beside it | median / p99 | ratio |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, r := range b.rows {
		ratio := "-"
		if theirs := r.theirs.value(); theirs > 0 {
			ratio = fmt.Sprintf("%.2f", r.ours.value()/theirs)
		}
		what := r.what
		if r.how != "" {
			what += " (" + r.how + ")"
		}
		fmt.Fprintf(w, "| %s | %d | %s | %s | %s | %s | %s |\n", what, r.ours.count(), r.ours, r.budget, r.base,
			r.theirs, ratio)
	}
	return nil
}

// sandbox creates a sandbox with a unique name.
func (b *bench) sandbox(from wire.Source) (string, error) {
	b.seq++
	name := fmt.Sprintf("bench-%d", b.seq)
	_, err := b.c.Create(b.ctx, wire.CreateRequest{Name: name, From: from}, nil)
	return name, err
}

// exec runs a command, and fails if the command fails.
func (b *bench) exec(name string, cmd ...string) error {
	var errs strings.Builder
	x, err := b.c.Exec(b.ctx, name, wire.ExecRequest{Cmd: cmd}, client.Streams{Stderr: &errs})
	if err == nil && x.Code != 0 {
		err = fmt.Errorf("%q: exit code %d: %s%s", cmd, x.Code, x.Message, errs.String())
	}
	return err
}

func (b *bench) host(cmd ...string) error {
	out, err := exec.CommandContext(b.ctx, cmd[0], cmd[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%q: %w: %s", cmd, err, out)
	}
	return nil
}

func (b *bench) startup(scale int) error {
	ours, err := times(200/scale, func(int) error { return b.host(b.bin, "--version") })
	if err != nil {
		return err
	}
	theirs, err := times(200/scale, func(int) error { return b.host("git", "--version") })
	if err != nil {
		return err
	}
	b.add("start-up", "coppice --version", ours, "", "git --version", theirs)
	return nil
}

func (b *bench) execs(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	if err := b.exec(name, "true"); err != nil {
		return err
	}
	ours, err := times(500/scale, func(int) error { return b.exec(name, "true") })
	if err != nil {
		return err
	}
	theirs, err := times(500/scale, func(int) error { return b.host("true") })
	if err != nil {
		return err
	}
	b.add("exec true in a live sandbox, over the API", "", ours, "2 ms", "fork+exec", theirs)
	cli, err := times(100/scale, func(int) error {
		cmd := exec.CommandContext(b.ctx, b.bin, "exec", name, "--", "true")
		cmd.Env = append(os.Environ(), "COPPICE_HOME="+filepath.Join(b.dir, "home"))
		return cmd.Run()
	})
	if err != nil {
		return err
	}
	b.add("the same by the command line", "coppice exec", cli, "", "fork+exec", theirs)
	return b.c.Remove(b.ctx, name, true)
}

func (b *bench) creates(scale int) error {
	var ours []time.Duration
	for range 100 / scale {
		t := time.Now()
		name, err := b.sandbox(wire.Source{})
		if err != nil {
			return err
		}
		if err := b.exec(name, "true"); err != nil {
			return err
		}
		ours = append(ours, time.Since(t))
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	theirs, err := times(100/scale, func(int) error {
		return b.host("bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs",
			"/tmp", "true")
	})
	if err != nil {
		return err
	}
	b.add("create a sandbox from the host and run true", "", statOf(ours), "8 ms", "bubblewrap", theirs)
	return nil
}
