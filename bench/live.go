//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client"
	"github.com/coppice-dev/coppice/client/wire"
)

// share is a part of one processor's time.
type share float64

func (s share) count() int     { return 1 }
func (s share) value() float64 { return float64(s) }
func (s share) String() string { return fmt.Sprintf("%.3f %% of a core", float64(s)*100) }

// supervised is a writer whose shell is the supervised command of a sandbox.
func (b *bench) supervised(name string, capture wire.Capture) *writer {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	w := &writer{in: inW, out: bufio.NewReader(outR), done: make(chan error, 1)}
	go func() {
		_, err := b.c.RunAttached(b.ctx, name, wire.RunRequest{Cmd: []string{"bash"}, Stdin: true, Capture: capture},
			client.Streams{Stdin: inR, Stdout: outW})
		outW.CloseWithError(io.EOF)
		w.done <- err
	}()
	return w
}

// ask runs a line of shell that prints one line, and returns that.
func (w *writer) ask(line string) (string, error) {
	if _, err := fmt.Fprintln(w.in, line); err != nil {
		return "", err
	}
	s, err := w.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// delays measures the time from the last write of an idle process until the snapshot is in the history.
func (b *bench) delays(scale int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	w := b.supervised(name, wire.Capture{})
	if err := w.do("cd /var/tmp; :"); err != nil {
		return err
	}
	var ours []time.Duration
	for range max(5, 50/scale) {
		before, err := b.settled(name)
		if err != nil {
			return err
		}
		if err := w.do("{ sleep 0.7; echo $EPOCHREALTIME >written; } &"); err != nil {
			return err
		}
		var seen time.Time
		for head := before; head == before; seen = time.Now() {
			time.Sleep(2 * time.Millisecond)
			h, err := b.c.Head(b.ctx, name)
			if err != nil {
				return err
			}
			head = h.Head
		}
		text, err := w.ask("cat written")
		if err != nil {
			return err
		}
		at, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		ours = append(ours, seen.Sub(time.UnixMicro(int64(at*1e6))))
	}
	b.add("from the last write to the snapshot", "200 ms of them quiet", statOf(ours), "0.3 s", "", stat{})
	return errors.Join(w.close(), b.c.Remove(b.ctx, name, true))
}

// settled waits until no more captures happen.
func (b *bench) settled(name string) (string, error) {
	for head := ""; ; {
		h, err := b.c.Head(b.ctx, name)
		if err != nil || h.Head == head {
			return head, err
		}
		head = h.Head
		time.Sleep(time.Second)
	}
}

// finalized waits until a sandbox is settled and none of its layers is being finalized, so that this turn does not
// slow down the next one.
func (b *bench) finalized(name string) error {
	if _, err := b.settled(name); err != nil {
		return err
	}
	for {
		log, err := b.c.Log(b.ctx, name)
		if err != nil || !slices.ContainsFunc(log.Nodes, func(n wire.Snapshot) bool { return !n.Finalized }) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// buildProgram is the program that is built under capture.
const buildProgram = `mkdir -p /var/tmp/b && cd /var/tmp/b && printf 'module m\ngo 1.24\n' >go.mod && cat >main.go <<'X'
package main
import ("encoding/json"; "os")
func main() { json.NewEncoder(os.Stdout).Encode(1) }
X
export PATH=$PATH:/usr/local/go/bin GOCACHE=/var/tmp/b/cache GOFLAGS=-mod=mod GOTOOLCHAIN=local HOME=/var/tmp/b`

const buildAgain = "rm -rf cache && go build -o m . 2>&1"

// slowdowns times builds with and without captures, in turns.
func (b *bench) slowdowns(scale int) error {
	var ours [2][]time.Duration
	var writers [2]*writer
	var names [2]string
	for i, c := range []wire.Capture{{}, {Off: true}} {
		var err error
		if names[i], err = b.sandbox(wire.Source{}); err != nil {
			return err
		}
		writers[i] = b.supervised(names[i], c)
		if err := writers[i].do(buildProgram); err != nil {
			return err
		}
	}
	for round := range max(2, 20/scale) {
		for turn := range writers {
			i := turn ^ round&1 // the order alternates
			t := time.Now()
			if err := writers[i].do(buildAgain + " || exit 1"); err != nil {
				return fmt.Errorf("go build: %w", err)
			}
			ours[i] = append(ours[i], time.Since(t))
			if err := b.finalized(names[i]); err != nil {
				return err
			}
		}
	}
	b.add("go build with an empty cache, under automatic history", "", statOf(ours[0]), "1.03 x", "--capture off",
		statOf(ours[1]))
	for i, w := range writers {
		if err := errors.Join(w.close(), b.c.Remove(b.ctx, names[i], true)); err != nil {
			return err
		}
	}
	return nil
}

// pauses measures how long a process beside a build is paused at each capture.
func (b *bench) pauses(scale int) error {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer exe.Close()
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	const clock = "/var/tmp/clock"
	x, err := b.c.Exec(b.ctx, name,
		wire.ExecRequest{Cmd: []string{"sh", "-c", "cat >" + clock + " && chmod 755 " + clock}, Stdin: true},
		client.Streams{Stdin: exe})
	if err != nil || x.Code != 0 {
		return fmt.Errorf("hand the clock in: exit code %d, %w", x.Code, err)
	}
	w := b.supervised(name, wire.Capture{})
	if err := w.do(buildProgram); err != nil {
		return err
	}
	// The times of the snapshots distinguish a paused process from one that waits for a processor.
	begun := time.Now()
	builds := strings.Repeat(buildAgain+"; ", max(1, 5/scale))
	text, err := w.ask(
		fmt.Sprintf("%s gaps >gaps & { %s } >/dev/null; kill -INT $!; wait $!; wc -l <gaps; cat gaps", clock, builds))
	if err != nil {
		return err
	}
	lines, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	gaps := make([][2]int64, lines)
	for i := range gaps {
		if _, err := fmt.Fscanln(w.out, &gaps[i][0], &gaps[i][1]); err != nil {
			return err
		}
	}
	log, err := b.c.Log(b.ctx, name)
	if err != nil {
		return err
	}
	var ours []time.Duration
	for _, s := range log.Nodes {
		for _, g := range gaps {
			if at := s.Created.UnixNano(); s.Created.After(begun) && g[0] < at && at < g[1] {
				ours = append(ours, time.Duration(g[1]-g[0]))
			}
		}
	}
	if len(ours) == 0 {
		return errors.New("no capture fell into the build")
	}
	b.add("pause of a process beside a go build at a capture", "", statOf(ours), "", "", stat{})
	return errors.Join(w.close(), b.c.Remove(b.ctx, name, true))
}

// gaps reads the clock continuously until it is interrupted, and prints each time that it could not: from, to, in
// nanoseconds.
func gaps(stop <-chan os.Signal, w io.Writer) error {
	out := bufio.NewWriter(w)
	last := time.Now()
	for {
		select {
		case <-stop:
			return out.Flush()
		default:
		}
		time.Sleep(200 * time.Microsecond)
		now := time.Now()
		if now.Sub(last) > 500*time.Microsecond {
			fmt.Fprintln(out, last.UnixNano(), now.UnixNano())
		}
		last = now
	}
}

// rewinds times checkouts under a supervised command with various numbers of processes, until it has been started
// again.
func (b *bench) rewinds(scale int) error {
	for _, n := range []int{1, 50, 300} {
		name, err := b.sandbox(wire.Source{})
		if err != nil {
			return err
		}
		if err := b.exec(name, "sh", "-c", "echo one >/var/tmp/rewound"); err != nil {
			return err
		}
		to, err := b.c.Head(b.ctx, name)
		if err != nil {
			return err
		}
		script := fmt.Sprintf("for i in $(seq 2 %d); do sleep 1000 & done; exec sleep 1000", n)
		if _, err := b.c.Run(b.ctx, name, wire.RunRequest{Cmd: []string{"sh", "-c", script}}); err != nil {
			return err
		}
		var ds []time.Duration
		for range max(3, 20/scale) {
			if err := b.procs(name, n); err != nil {
				return err
			}
			t := time.Now()
			r, err := b.c.Checkout(b.ctx, name, wire.CheckoutRequest{Node: to.Head})
			if err != nil {
				return err
			}
			if !r.Restarted {
				return errors.New("the command was not started again")
			}
			ds = append(ds, time.Since(t))
		}
		b.add(fmt.Sprintf("rollback under %d processes, until the command runs again", n), "", statOf(ds), "", "", stat{})
		if err := b.c.Remove(b.ctx, name, true); err != nil {
			return err
		}
	}
	return nil
}

// procs waits until a sandbox has n processes.
func (b *bench) procs(name string, n int) error {
	for range 2000 {
		s, err := b.c.Status(b.ctx, name)
		if err != nil {
			return err
		}
		if s.Sandbox.Procs >= n {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("there are not %d processes", n)
}

// idles measures the processor time of monitor, init and daemon while a supervised sandbox is idle.
func (b *bench) idles(int) error {
	name, err := b.sandbox(wire.Source{})
	if err != nil {
		return err
	}
	if _, err := b.c.Run(b.ctx, name, wire.RunRequest{Cmd: []string{"sleep", "1000"}}); err != nil {
		return err
	}
	const over = 30 * time.Second
	start := time.Now()
	for _, since := range []time.Duration{5 * time.Second, time.Minute} {
		time.Sleep(time.Until(start.Add(since)))
		before, err := busy(b.daemon)
		if err != nil {
			return err
		}
		time.Sleep(over)
		after, err := busy(b.daemon)
		if err != nil {
			return err
		}
		b.add("an idle supervised sandbox", fmt.Sprintf("keeper, init and daemon, %s after the last change", since),
			share(float64(after-before)/float64(over)), "0.1 %", "", stat{})
	}
	return b.c.Remove(b.ctx, name, true)
}

// busy returns the processor time of a process and its descendants.
func busy(pid int) (sum time.Duration, err error) {
	pids, err := family(pid)
	if err != nil {
		return 0, err
	}
	for _, p := range pids {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		if err != nil {
			return 0, err
		}
		for _, t := range tasks {
			var ns int64
			text, err := os.ReadFile(t)
			if err != nil {
				continue // it has just exited
			}
			if _, err := fmt.Sscan(string(text), &ns); err != nil {
				return 0, err
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}
