//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/plan"
)

// A C project of thirty files, and the command that rebuilds it in half a second. So many pairs of builds are
// possible that a difference of one per cent is measurable.
const (
	makeProject = `mkdir -p /tmp/c && cd /tmp/c && for i in $(seq 30); do
printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%d(const char *s) { char b[64]; snprintf(b, sizeof b, "%%s", s); return (int)strlen(b) + %d; }\n' $i $i >f$i.c; done &&
echo 'int main(void) { return 0; }' >main.c &&
printf 'OBJ := $(patsubst %%.c,%%.o,$(wildcard *.c))\nall: $(OBJ)\n\t$(CC) -o all $(OBJ)\n%%.o: %%.c\n\t$(CC) -O1 -c -o $@ $<\n' >Makefile`
	makeAgain = "cd /tmp/c && rm -f *.o all && make -s -j2"
)

// programs measures what recording every program costs a build and an install, in turns in two boxes that differ
// only in that.
func (b *bench) programs(scale int) (err error) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "programs: skipped: needs real root, to start boxes without a daemon")
		return nil
	}
	var boxes [2]*box.Box
	for i := range boxes {
		var stop func() error
		boxes[i], stop, err = b.rawBox(fmt.Sprint("programs-", i), func(c *plan.Config) { c.Trace = i == 0 })
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	return b.workInTurns(boxes, turns{did: "programs recorded", not: "not recorded", budget: "1.03 x", least: 24, spent: b.spent},
		scale)
}

// workInTurns builds a C project and installs packages in both boxes, in turns.
func (b *bench) workInTurns(boxes [2]*box.Box, t turns, scale int) error {
	for _, x := range boxes {
		if err := b.raw(x, makeProject, nil); err != nil {
			return err
		}
	}
	if err := b.inTurns("make -j2 of 30 C files", boxes, t, makeAgain, max(t.least, 60/scale)); err != nil {
		return err
	}
	const install = `cd %[1]s && rm -rf node_modules && echo '{"dependencies":{"express":"4","typescript":"5","eslint":"8"}}' >package.json &&
		HOME=%[1]s npm install --no-audit --no-fund --no-update-notifier --loglevel=error --cache %[1]s/cache %[2]s >/dev/null`
	out := filepath.Join(b.dir, "npm-programs")
	if err := b.host("sh", "-c", "mkdir -p "+out+" && "+fmt.Sprintf(install, out, "")); err != nil {
		return fmt.Errorf("fill npm's cache: %w", err)
	}
	pack, err := exec.CommandContext(b.ctx, "tar", "-C", out, "-cf", "-", "cache", "package-lock.json").Output()
	if err != nil {
		return err
	}
	for _, x := range boxes {
		if err := b.raw(x, "mkdir /tmp/npm && tar -C /tmp/npm -xf -", pack); err != nil {
			return err
		}
	}
	return b.inTurns("npm install from a full cache", boxes, t, fmt.Sprintf(install, "/tmp/npm", "--offline"),
		max(t.least, 20/scale))
}

// turns describes in what two boxes differ.
type turns struct {
	did, not string // what is done in the first, and not in the second
	budget   string
	least    int                                   // pairs of each
	spent    func(*box.Box) (time.Duration, error) // the processor time of a box so far; nil if it is not measured
}

// inTurns runs a script in both boxes, in pairs, and reports how much longer the first takes, in elapsed time and
// in processor time.
func (b *bench) inTurns(what string, boxes [2]*box.Box, by turns, script string, pairs int) error {
	if by.spent == nil {
		by.spent = func(*box.Box) (time.Duration, error) { return 0, nil }
	}
	var took, spent [2][]time.Duration
	for round := range pairs + 1 {
		var pair, cpu [2]time.Duration
		for turn := range boxes {
			i := turn ^ round&1 // the order alternates
			before, err := by.spent(boxes[i])
			if err != nil {
				return err
			}
			t := time.Now()
			if err := b.raw(boxes[i], script, nil); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			pair[i] = time.Since(t)
			after, err := by.spent(boxes[i])
			if err != nil {
				return err
			}
			cpu[i] = after - before
		}
		if round == 0 { // the first round fills the caches
			continue
		}
		for i := range pair {
			took[i], spent[i] = append(took[i], pair[i]), append(spent[i], cpu[i])
		}
	}
	b.add(what+", "+by.did, more(took), statOf(took[0]), by.budget, by.not, statOf(took[1]))
	if spent[1][0] > 0 {
		b.add(what+", "+by.did+", processor time of all in the box", more(spent), statOf(spent[0]), by.budget, by.not,
			statOf(spent[1]))
	}
	return nil
}

// more reports how much more the first of each pair is: the median of the ratios, which a temporary load of the
// machine does not change, and its standard error. The error is estimated from the median distance to the median,
// as for a normal distribution: there, the standard deviation is 1.4826 times that distance, and the median has
// 1.2533 times the error of the mean.
func more(pairs [2][]time.Duration) string {
	ratios := make([]float64, len(pairs[0]))
	for i := range ratios {
		ratios[i] = float64(pairs[0][i]) / float64(pairs[1][i])
	}
	mid := median(ratios)
	for i, r := range ratios {
		ratios[i] = math.Abs(r - mid)
	}
	dev := 1.4826 * 1.2533 * median(ratios) / math.Sqrt(float64(len(ratios)))
	return fmt.Sprintf("pairs: %+.1f %% +- %.1f", 100*(mid-1), 100*dev)
}

// median sorts all, which must not be empty, and returns the median.
func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}

// spent returns the processor time of a box's init and of all its reaped descendants. On a busy machine it is
// more reliable than the elapsed time.
func (b *bench) spent(x *box.Box) (time.Duration, error) {
	st, err := x.Status(b.ctx)
	if err != nil {
		return 0, err
	}
	kids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", st.PID))
	if err != nil {
		return 0, err
	}
	for t := range strings.FieldsSeq(string(kids)) {
		line, err := os.ReadFile("/proc/" + t + "/stat")
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
		ticks := 0
		for _, v := range f[11:15] { // utime, stime, cutime, cstime
			n, err := strconv.Atoi(v)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
		return time.Duration(ticks) * 10 * time.Millisecond, nil
	}
	return 0, fmt.Errorf("keeper %d has no init", st.PID)
}

// rawBox starts a box of tier process on the host's system directories, without a daemon, after change.
func (b *bench) rawBox(name string, change func(*plan.Config)) (*box.Box, func() error, error) {
	dir := filepath.Join(b.dir, name)
	c := plan.Config{ID: name, Name: name, Tier: plan.TierProcess, RunDir: filepath.Join(dir, "run"),
		Caller: plan.Caller{Root: true}, User: plan.UserRoot, IdleAfter: -1}
	var made error
	c.Spec, made = systemRoot(dir)
	made = errors.Join(made, os.MkdirAll(c.RunDir, 0o700))
	if made != nil {
		return nil, nil, made
	}
	change(&c)
	x, _, err := box.Start(b.ctx, b.helpers, c)
	if err != nil {
		return nil, nil, err
	}
	return x, func() error { return errors.Join(x.Stop(b.ctx, 0), x.Close()) }, nil
}

// raw runs a script in a box, and fails if the script fails.
func (b *bench) raw(x *box.Box, script string, input []byte) error {
	s, err := x.Exec(b.ctx, wire.ExecRequest{Cmd: []string{"sh", "-c", script}, Stdin: input != nil})
	if err != nil {
		return err
	}
	defer s.Close()
	if input != nil {
		go func() {
			for p := range slices.Chunk(input, 256<<10) {
				_ = wire.WriteFrame(s, wire.FrameStdin, p)
			}
			_ = wire.WriteFrame(s, wire.FrameStdinEOF, nil)
		}()
	}
	var said bytes.Buffer
	for {
		t, p, err := wire.ReadFrame(s, nil)
		switch {
		case err != nil:
			return err
		case t == wire.FrameStderr:
			said.Write(p)
		case t == wire.FrameFailed:
			return fmt.Errorf("%s", p)
		case t == wire.FrameExit:
			var e box.Exit
			if err := json.Unmarshal(p, &e); err != nil {
				return err
			}
			if e.Code != 0 {
				return fmt.Errorf("exit code %d: %s", e.Code, said.Bytes())
			}
			return nil
		}
	}
}
