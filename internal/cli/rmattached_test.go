//go:build linux

package cli_test

import (
	"testing"
	"time"
)

// TestRemove_DoesNotWaitForAttachedClients checks that rm --force of a running sandbox waits neither for its commands
// nor for an attached client, in any state of either.
func TestRemove_DoesNotWaitForAttachedClients(t *testing.T) {
	t.Parallel()
	const (
		counts  = "i=0; while :; do i=$((i+1)); echo at $i; sleep 0.1; done"
		ignores = "trap '' TERM HUP INT; " + counts
		many    = "for i in $(seq 50); do sleep 1000 & done; " + counts
	)
	for _, c := range []struct {
		name, script string
		flags        []string                   // of attach
		also         func(d *desk, t *terminal) // before the removal
	}{
		{"attached", counts, nil, nil},
		{"read-only", counts, []string{"--read-only"}, nil},
		{"the client was killed", counts, nil, func(_ *desk, t *terminal) { _ = t.cmd.Process.Kill() }},
		{"a read-only client was killed", counts, []string{"--read-only"},
			func(_ *desk, t *terminal) { _ = t.cmd.Process.Kill() }},
		{"paused", counts, nil, func(d *desk, _ *terminal) { d.run("process", "pause", sandbox) }},
		{"ignores SIGTERM", ignores, nil, nil},
		{"ignores SIGTERM, and is paused", ignores, nil,
			func(d *desk, _ *terminal) { d.run("process", "pause", sandbox) }},
		{"50 processes", many, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			d.run("exec", sandbox, "--", "true")
			d.run("stop", sandbox)
			d.run("start", sandbox)
			d.supervised(c.script)
			term := d.open(append([]string{"attach", sandbox}, c.flags...)...)
			term.see("at ")
			if c.also != nil {
				c.also(d, term)
			}
			begun := time.Now()
			d.run("rm", "--force", sandbox)
			if took := time.Since(begun); took > 20*time.Second { // it takes about a second on a busy machine
				t.Errorf("the removal took %s", took)
			}
			term.gone()
		})
	}
}
