//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

var pauses = []check{
	{"a pause lasts until it is ended", walled, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "while read line; do echo got $line; done"}, Stdin: true})
		WaitStarted(t, s)
		Send(t, s, wire.FrameStdin, []byte("one\n"))
		WaitOutput(t, s, "got one")
		for range 2 { // a second one changes nothing
			if err := b.Pause(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if st, err := b.Status(ctx); err != nil || !st.Paused || st.Procs != 1 {
			t.Errorf("%+v, %v", st, err)
		}
		if r := b.Do(t, wire.ExecRequest{Cmd: []string{"true"}}); r.Failed == nil || r.Failed.Kind != string(fault.Conflict) {
			t.Errorf("a command in a paused box: %+v", r)
		}
		// A capture does not change that.
		f, err := b.Freeze(ctx)
		if err != nil || f.Procs() != 1 {
			t.Fatalf("%d processes, %v", f.Procs(), err)
		}
		if err := f.Thaw(); err != nil {
			t.Fatal(err)
		}
		Send(t, s, wire.FrameStdin, []byte("two\n"))
		if st, err := b.Status(ctx); err != nil || !st.Paused {
			t.Errorf("after a capture: %+v, %v", st, err)
		}
		for range 2 {
			if err := b.Resume(ctx); err != nil {
				t.Fatal(err)
			}
		}
		WaitOutput(t, s, "got two")
		if r := b.Sh(t, "echo again"); r.Stdout != "again\n" {
			t.Errorf("after the pause: %+v", r)
		}
	}},
	{"a paused box is stopped", walled, func(t *testing.T, tier Tier) {
		for _, grace := range []time.Duration{0, time.Second} {
			b := tier.Start(t)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			s := b.Open(t, wire.ExecRequest{Cmd: []string{"sleep", "1000"}})
			WaitStarted(t, s)
			if err := b.Pause(ctx); err != nil {
				t.Fatal(err)
			}
			if err := b.Stop(ctx, grace); err != nil {
				t.Errorf("grace %v: %v", grace, err)
			}
		}
	}},
	{"nothing is paused without walls", []string{plan.TierWorkspace}, func(t *testing.T, tier Tier) {
		if err := tier.Start(t).Pause(context.Background()); !fault.Is(err, fault.Unsupported) {
			t.Errorf("%v", err)
		}
	}},
}
