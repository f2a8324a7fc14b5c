//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	return b.workInTurns(boxes, turns{did: "refused files recorded (gvisor)", not: "not recorded"}, scale)
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
	var took [2][]time.Duration
	for range max(12, 40/scale) {
		for i, cmd := range [2][]string{{self, "notified", "sh", "-c", makeAgain}, {"sh", "-c", makeAgain}} {
			t := time.Now()
			if out, err := exec.CommandContext(b.ctx, cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			took[i] = append(took[i], time.Since(t))
		}
	}
	b.add("make -j2 of 30 C files, a listener notified of each open", more(took), statOf(took[0]), "1.03 x", "none",
		statOf(took[1]))
	return nil
}
