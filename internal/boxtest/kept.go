//go:build linux && (amd64 || arm64)

package boxtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

var kept = []check{
	{"a command gets input from who is not attached, and is cancelled", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"cat"}, Stdin: true, Keep: true})
		id := WaitStarted(t, s).Exec
		much := strings.Repeat("0123456789abcde\n", 64<<10) // more than is held for a slow reader
		sent := make(chan error, 1)
		go func() { sent <- b.Input(t.Context(), id, strings.NewReader(much), true) }()
		if r := Collect(s); r.Err != nil || r.Stdout != much || r.Exit.Code != 0 {
			t.Errorf("%d bytes, %+v, %v", len(r.Stdout), r.Exit, r.Err)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if err := b.Input(t.Context(), id, strings.NewReader("x"), false); !fault.Is(err, fault.NotFound) {
			t.Errorf("after its end: %v", err)
		}

		s = b.Open(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"}, Keep: true})
		id = WaitStarted(t, s).Exec
		WaitOutput(t, s, "ready\n")
		if err := b.Input(t.Context(), id, strings.NewReader(""), false); !fault.Is(err, fault.Conflict) {
			t.Errorf("without stdin: %v", err)
		}
		began := time.Now()
		if err := b.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if r := Collect(s); r.Exit.Code != 137 || r.Exit.TimedOut || time.Since(began) < time.Second {
			t.Errorf("%+v after %s", r, time.Since(began))
		}
		if err := b.Cancel(t.Context(), id); !fault.Is(err, fault.NotFound) {
			t.Errorf("twice: %v", err)
		}
		st, err := b.Status(t.Context())
		if err != nil || len(st.Execs) != 2 || !st.Execs[0].Kept || st.Execs[0].Exit == nil {
			t.Errorf("%+v, %v", st.Execs, err)
		}
	}},
	{"a kept command has several people attached", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		first := b.Open(t, wire.ExecRequest{Cmd: []string{"cat"}, TTY: true, Stdin: true, Keep: true})
		id := WaitStarted(t, first).Exec
		Send(t, first, wire.FrameStdin, []byte("one\n"))
		WaitOutput(t, first, "one\r\none\r\n")
		second := b.Open(t, wire.ExecRequest{Attach: id})
		WaitOutput(t, second, "one\r\none\r\n")
		third := b.Open(t, wire.ExecRequest{Attach: id, ReadOnly: true, Offset: -5})
		WaitStarted(t, third)
		Send(t, third, wire.FrameStdin, []byte("not typed\n"))
		Send(t, third, wire.FrameSignal, wire.Signal{Name: "KILL"})
		Send(t, second, wire.FrameStdin, []byte("two\n"))
		WaitOutput(t, first, "two\r\ntwo\r\n")
		if got := WaitOutput(t, third, "two\r\ntwo\r\n"); strings.Contains(got, "not typed") ||
			strings.Contains(got, "one\r\none") {
			t.Errorf("who only looks on sees %q", got)
		}
		// A client that disconnects or ends its input does not end the command.
		Send(t, second, wire.FrameStdinEOF, []byte{})
		Send(t, second, wire.FrameHangup, []byte{})
		second.Close()
		Send(t, first, wire.FrameStdin, []byte("three\n"))
		WaitOutput(t, first, "three\r\nthree\r\n")
		first.Close()
		Send(t, third, wire.FrameStdin, []byte("four\n"))
		fourth := b.Open(t, wire.ExecRequest{Attach: id})
		Send(t, fourth, wire.FrameStdin, []byte("\x04"))
		if r := Collect(fourth); r.Exit.Code != 0 || strings.Contains(r.Stdout, "four") {
			t.Errorf("%+v", r)
		}
		if r := Collect(third); r.Err != nil || r.Exit.Code != 0 {
			t.Errorf("%+v", r)
		}
	}},
	{"the end of a kept command is waited for, until it is forgotten", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		let := b.outside(t)
		s := b.Open(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", let.await() + "exit 7"},
				Keep: true})
		id := WaitStarted(t, s).Exec
		s.Close()
		short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := b.Wait(short, id); err == nil {
			t.Error("it has ended at once")
		}
		if err := b.Forget(t.Context(), id); err != nil { // it is still running
			t.Fatal(err)
		}
		b.Sh(t, "touch "+let.inside)
		for range 2 { // once for a daemon that dies before it has stored the result, and once for the next one
			if x, err := b.Wait(t.Context(), id); err != nil || x.Code != 7 {
				t.Errorf("%+v, %v", x, err)
			}
		}
		for range 2 {
			if err := b.Forget(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Wait(t.Context(), id); !fault.Is(err, fault.NotFound) {
			t.Errorf("after it was forgotten: %v", err)
		}
		if _, err := b.Wait(t.Context(), "x0"); !fault.Is(err, fault.NotFound) {
			t.Errorf("of no client: %v", err)
		}
	}},
	{"the end of a kept command waits for its readers", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "head -c 3000000 /dev/zero; echo end"}, Keep: true})
		id := WaitStarted(t, s).Exec
		waited := make(chan error, 1)
		go func() {
			_, err := b.Wait(context.WithoutCancel(t.Context()), id)
			waited <- err
		}()
		time.Sleep(300 * time.Millisecond)
		select {
		case err := <-waited:
			t.Fatalf("it was reported before the output was read: %v", err)
		default:
		}
		if r := Collect(s); r.Dropped > 0 || len(r.Stdout) != 3000004 {
			t.Errorf("%d bytes, %d dropped", len(r.Stdout), r.Dropped)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	}},
	{"a read-only client delays no other client", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		s := b.Open(t,
			wire.ExecRequest{Cmd: []string{"sh", "-c", "sleep 0.2; head -c 30000000 /dev/zero; exit 3"}, Keep: true})
		id := WaitStarted(t, s).Exec
		stuck := b.Open(t, wire.ExecRequest{Attach: id, ReadOnly: true})
		WaitStarted(t, stuck)
		if r := Collect(s); r.Dropped > 0 || len(r.Stdout) != 30000000 || r.Exit.Code != 3 {
			t.Errorf("%d bytes, %d dropped, %+v", len(r.Stdout), r.Dropped, r.Exit)
		}
		if r := Collect(stuck); r.Dropped == 0 || int64(len(r.Stdout))+r.Dropped != 30000000 {
			t.Errorf("who is stuck had %d bytes, and %d were dropped", len(r.Stdout), r.Dropped)
		}
	}},
	{"who attaches has the screen drawn again", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		size := &wire.Size{Cols: 80, Rows: 24}
		s := b.Open(t,
			wire.ExecRequest{
				Cmd: []string{"sh", "-c", "trap 'echo drawn $(stty size)' WINCH; echo ready; while :; do sleep 0.01; done"},
				TTY: true, Stdin: true, Keep: true, Size: size})
		id := WaitStarted(t, s).Exec
		WaitOutput(t, s, "ready")
		WaitOutput(t, b.Open(t, wire.ExecRequest{Attach: id, Size: size, Offset: -1}), "drawn 24 80")
		WaitOutput(t, b.Open(t, wire.ExecRequest{Attach: id, Size: &wire.Size{Cols: 100, Rows: 30}}), "drawn 30 100")
	}},
	{"it is reported when a process has run", nil, func(t *testing.T, tier Tier) {
		b := tier.Start(t)
		active := func(since uint64, within time.Duration) (uint64, bool) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			clock, err := b.Active(ctx, since)
			if err != nil && ctx.Err() == nil {
				t.Fatal(err)
			}
			return clock, err == nil
		}
		// settled returns the clock once it has been constant for longer than the occasional work of the box's own
		// kernel takes.
		settled := func() (clock uint64) {
			t.Helper()
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
				now, moved := active(clock, 2500*time.Millisecond)
				if !moved {
					return clock
				}
				clock = now
			}
			t.Fatal("something always runs")
			return 0
		}
		s := b.Open(t, wire.ExecRequest{Cmd: []string{"sh", "-c", "sleep 1000 & while read x; do :; done"}, Stdin: true})
		WaitStarted(t, s)
		clock := settled()
		Send(t, s, wire.FrameStdin, []byte("a line\n"))
		if _, moved := active(clock, patience); !moved {
			t.Error("a process that ran for a moment was not seen")
		}
		clock = settled()
		b.Sh(t, "true")
		if _, moved := active(clock, patience); !moved {
			t.Error("a command that came and went was not seen")
		}
		// A waiting client does not prevent a stop of the box.
		ended := make(chan error, 1)
		clock = settled()
		go func() {
			var err error
			for err == nil {
				clock, err = b.Active(context.WithoutCancel(t.Context()), clock)
			}
			ended <- err
		}()
		if err := b.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !fault.Is(err, fault.Unavailable) {
			t.Errorf("after the stop: %v", err)
		}
	}},
}
