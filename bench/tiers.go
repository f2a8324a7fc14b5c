//go:build linux

package main

import (
	"time"

	"github.com/coppice-dev/coppice/internal/plan"
)

// tiers compares what a sandbox costs in tier process with what it costs in tier supervised, with the network off (as
// --tier auto chooses it) and with rules. The kinds take turns, so that the load of the machine is the same for all.
func (b *bench) tiers(scale int) error {
	kinds := []struct {
		name   string
		create func() (string, error)
	}{
		{"tier process", func() (string, error) { return b.tiered(plan.TierProcess) }},
		{"tier supervised, network off", func() (string, error) { return b.tiered(plan.TierSupervised) }},
		{"tier supervised, rules", func() (string, error) { return b.policed(plan.TierSupervised, sinkPolicy) }},
	}
	work := []struct {
		what string
		cmd  []string
	}{
		{"exec true in a live sandbox", []string{"true"}},
		{"a shell starts /bin/true 100 times", []string{"sh", "-c", "for i in $(seq 100); do /bin/true; done"}},
	}
	starts, runs := make([][]time.Duration, len(kinds)), make([][][]time.Duration, len(work))
	for i := range work {
		runs[i] = make([][]time.Duration, len(kinds))
	}
	for round := range max(3, 60/scale) {
		for i, k := range kinds {
			t := time.Now()
			name, err := k.create()
			if err == nil {
				err = b.exec(name, "true")
			}
			if err != nil {
				return err
			}
			if took := time.Since(t); round > 0 {
				starts[i] = append(starts[i], took)
			}
			for j, w := range work {
				t := time.Now()
				if err := b.exec(name, w.cmd...); err != nil {
					return err
				}
				runs[j][i] = append(runs[j][i], time.Since(t))
			}
			if err := b.c.Remove(b.ctx, name, true); err != nil {
				return err
			}
		}
	}
	for i := 1; i < len(kinds); i++ {
		b.add("create a sandbox and run true, in "+kinds[i].name, "", statOf(starts[i]), "", kinds[0].name, statOf(starts[0]))
		for j, w := range work {
			b.add(w.what+", in "+kinds[i].name, "", statOf(runs[j][i]), "", kinds[0].name, statOf(runs[j][0]))
		}
	}
	return nil
}
