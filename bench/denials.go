//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/plan"
)

// denials measures what the record of refused files costs in tier gvisor, whose kernel looks at each call that has
// failed, and what it would cost at least in the other tiers, whose listener would be notified of each open.
func (b *bench) denials(scale int) (err error) {
	if os.Getuid() != 0 {
		fmt.Fprintln(os.Stderr, "denials: skipped: needs real root, to start boxes without a daemon")
		return nil
	}
	if err := b.notifiedOpens(scale); err != nil {
		return err
	}
	var boxes [2]*box.Box
	for i := range boxes {
		x, stop, err := b.gvisorBox(filepath.Join(b.dir, fmt.Sprint("denials-", i)), func(c *plan.Config) {
			if c.Trace = true; i == 0 {
				c.Denials, c.HiddenAt = plan.DenialsAuto, []string{"/etc/shadow", "/root/.npmrc", "/root/.ssh"}
			}
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		boxes[i] = x
	}
	return b.workInTurns(boxes, turns{did: "refused files recorded (gvisor)", not: "not recorded", budget: "1.03 x",
		least: 12, spent: b.spentBelow}, scale)
}

// spentBelow returns the processor time of a box's keeper, of all its descendants, and of those that were reaped.
func (b *bench) spentBelow(x *box.Box) (time.Duration, error) {
	st, err := x.Status(b.ctx)
	if err != nil {
		return 0, err
	}
	ticks, all := 0, []string{strconv.Itoa(st.PID)}
	for len(all) > 0 {
		pid := all[0]
		all = all[1:]
		line, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue // it has ended, and is in the time of its parent
		}
		for _, v := range strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))[11:15] { // utime to cstime
			n, err := strconv.Atoi(v)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
		tasks, err := filepath.Glob("/proc/" + pid + "/task/*/children")
		if err != nil {
			return 0, err
		}
		for _, name := range tasks {
			if list, err := os.ReadFile(name); err == nil {
				all = append(all, strings.Fields(string(list))...)
			}
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// notifiedOpens builds the C project on the host, in turns with and without a listener that is notified of each open
// and lets the kernel continue at once.
func (b *bench) notifiedOpens(scale int) error {
	if err := b.host("sh", "-c", makeProject); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var took, spent [2][]time.Duration
	for range max(12, 40/scale) {
		for i, cmd := range [2][]string{{self, "notified", "sh", "-c", makeAgain}, {"sh", "-c", makeAgain}} {
			t := time.Now()
			c := exec.CommandContext(b.ctx, cmd[0], cmd[1:]...)
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			took[i] = append(took[i], time.Since(t))
			spent[i] = append(spent[i], c.ProcessState.UserTime()+c.ProcessState.SystemTime())
		}
	}
	const what = "make -j2 of 30 C files, a listener notified of each open"
	b.add(what, more(took), statOf(took[0]), "1.03 x", "none", statOf(took[1]))
	b.add(what+", processor time", more(spent), statOf(spent[0]), "1.03 x", "none", statOf(spent[1]))
	return nil
}
