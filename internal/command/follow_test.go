//go:build linux

package command

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// lookedAt is a sandbox with a box, both of which count what a follower asks of them. Nothing has ever changed, so that
// nothing is captured. It is used in a bubble. The counters are atomic because a test may read them just before the
// follower counts on.
type lookedAt struct {
	*Runner
	lock  *sandbox.Sandbox
	box   *countedBox
	looks atomic.Int32 // calls of Held.Look
	ids   int
}

// countedBox is a box in which a process runs when a token is in ran.
type countedBox struct {
	Box
	ran     chan struct{}
	asked   atomic.Int32 // calls of Active
	waiting atomic.Int32 // of these, those that wait
	crowded atomic.Bool  // two of them waited at once
	failing atomic.Bool  // Active fails
}

func (b *countedBox) Active(ctx context.Context, since uint64) (uint64, error) {
	b.asked.Add(1)
	if b.failing.Load() {
		return 0, fault.New(fault.Internal, "malformed answer")
	}
	if since == 0 {
		return 1, nil
	}
	if b.waiting.Add(1) > 1 {
		b.crowded.Store(true)
	}
	defer b.waiting.Add(-1)
	select {
	case <-b.ran:
		return since + 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// heldLook is a lookedAt whose lock is held.
type heldLook struct {
	Held
	l     *lookedAt
	proof *sandbox.Held
}

func (h heldLook) Proof() *sandbox.Held { return h.proof }
func (h heldLook) Sandbox() Sandbox     { return h.l }
func (h heldLook) Box() Box             { return h.l.box }
func (h heldLook) Unlock()              { h.proof.Unlock() }
func (h heldLook) Look(context.Context, *meta.Sandbox) (Look, error) {
	h.l.looks.Add(1)
	return Look{}, nil
}

func (l *lookedAt) Acquire(ctx context.Context, what string) (Held, error) {
	proof, err := l.lock.Lock(ctx, "a", what)
	return heldLook{l: l, proof: proof}, err
}

// sameRecords has one sandbox.
type sameRecords struct{ Records }

func (sameRecords) Sandbox(_ context.Context, ref string) (meta.Sandbox, error) {
	return meta.Sandbox{ID: timeline.SandboxID(ref), Name: "a"}, nil
}

// inBubble runs a test with a sandbox that is looked at, on a clock that advances when everything waits.
func inBubble(t *testing.T, test func(t *testing.T, l *lookedAt)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		l := &lookedAt{lock: sandbox.New("s"), box: newCountedBox()}
		l.Runner = New(Config{
			Register: NewRegister(), Records: sameRecords{}, Now: time.Now,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Go:  func(fn func(context.Context)) { go fn(ctx) },
		})
		test(t, l)
	})
}

func newCountedBox() *countedBox { return &countedBox{ran: make(chan struct{}, 1)} }

// held calls fn with the lock.
func (l *lookedAt) held(fn func(*held)) {
	h, err := l.Acquire(context.Background(), "testing")
	if err != nil {
		panic(err)
	}
	s := l.with(h)
	defer s.unlock()
	fn(&s)
}

// begin starts a command.
func (l *lookedAt) begin(how wire.Capture, supervised bool) *command {
	l.ids++
	c := newCommand("s", "x"+string(rune('a'+l.ids)), time.Now(), "")
	l.held(func(s *held) {
		c.req.Capture = how
		l.c.Register.add(c)
		if supervised {
			c.run.Capture, s.run = how, c
		}
		l.captureDuring(s, l.box, c)
	})
	return c
}

// over ends a command, as its settlement does.
func (l *lookedAt) over(c *command) {
	l.held(func(s *held) {
		l.c.Register.settle(c)
		if s.run == c {
			s.run = nil
		}
		l.captureOver(s)
	})
}

// follows reports whether there is a follower, and whether changes are captured now.
func (l *lookedAt) follows() (there, now bool) {
	l.held(func(s *held) { there, now = s.follower != nil, l.CaptureLater(s.Held) })
	return there, now
}

// passes lets time pass.
func passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestFollow_CostsShortCommandsNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *lookedAt) {
		for range 100 {
			c := l.begin(wire.Capture{}, false)
			l.box.run()
			passes(time.Second)
			l.over(c)
		}
		if l.box.asked.Load() != 0 || l.looks.Load() != 0 {
			t.Errorf("%d calls of the box, %d looks; want none", l.box.asked.Load(), l.looks.Load())
		}
		passes(long)
		if there, _ := l.follows(); there {
			t.Error("the follower has not ended")
		}
	})
}

// run lets a process run.
func (b *countedBox) run() {
	select {
	case b.ran <- struct{}{}:
	default:
	}
}

func TestFollow_BeginsInTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		how        wire.Capture
		supervised bool
		after      time.Duration
	}{
		"a command":              {after: 10 * time.Second},
		"with times":             {how: wire.Capture{QuietMS: 100, MaxMS: 500}, after: 500 * time.Millisecond},
		"with long times":        {how: wire.Capture{MaxMS: 60_000}, after: 10 * time.Second},
		"a supervised command":   {supervised: true},
		"supervised, with times": {how: wire.Capture{MaxMS: 60_000}, supervised: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, beside := range []bool{false, true} {
				inBubble(t, func(t *testing.T, l *lookedAt) {
					early := tc.after - time.Millisecond
					if beside { // its follower sleeps, and begins in nine seconds
						l.begin(wire.Capture{}, false)
						passes(time.Second)
						early = min(early, 9*time.Second-time.Millisecond)
					}
					l.begin(tc.how, tc.supervised)
					if tc.after > 0 {
						passes(early)
						if _, now := l.follows(); now || l.looks.Load() > 0 {
							t.Errorf("beside another one %v: %d looks too early", beside, l.looks.Load())
						}
						passes(time.Second)
					}
					synctest.Wait()
					if _, now := l.follows(); !now || l.looks.Load() == 0 {
						t.Errorf("beside another one %v: there was no look in time", beside)
					}
				})
			}
		})
	}
}

func TestFollow_OncePerBox(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *lookedAt) {
		one, two := l.begin(wire.Capture{}, false), l.begin(wire.Capture{MaxMS: 500}, false)
		run := l.begin(wire.Capture{}, true)
		for range 50 {
			before := l.looks.Load()
			l.box.run()
			passes(time.Second)
			if l.looks.Load() <= before {
				t.Fatal("there was no look after a process had run")
			}
		}
		idle := l.looks.Load()
		passes(time.Hour)
		if l.looks.Load() != idle || l.box.waiting.Load() != 1 {
			t.Errorf("%d looks while no process ran, %d calls wait; want none and 1", l.looks.Load()-idle, l.box.waiting.Load())
		}
		l.over(one)
		l.over(run)
		passes(time.Second)
		if l.box.waiting.Load() != 1 {
			t.Error("the follower ended before the last command")
		}
		l.over(two)
		passes(0)
		if there, _ := l.follows(); there || l.box.waiting.Load() != 0 || l.box.crowded.Load() {
			t.Errorf("there is a follower: %v, %d calls wait, two did: %v; want none", there, l.box.waiting.Load(),
				l.box.crowded.Load())
		}
		l.begin(wire.Capture{}, true)
		passes(time.Second)
		if l.box.waiting.Load() != 1 {
			t.Error("a later command is not followed")
		}
	})
}

func TestFollow_NotAtAll(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *lookedAt) {
		l.begin(wire.Capture{Off: true}, false)
		l.begin(wire.Capture{Off: true}, true)
		passes(time.Minute)
		if there, _ := l.follows(); there || l.box.asked.Load() > 0 {
			t.Error("a command is followed that excludes it")
		}
	})
}

func TestFollow_AnotherBox(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *lookedAt) {
		l.begin(wire.Capture{}, true)
		passes(time.Second)
		old := l.box
		l.box = newCountedBox()
		l.begin(wire.Capture{}, true)
		old.run()
		passes(time.Second)
		if old.waiting.Load() != 0 || l.box.waiting.Load() != 1 {
			t.Errorf("%d calls of the box before wait, %d of the new one; want none, and 1", old.waiting.Load(),
				l.box.waiting.Load())
		}
	})
}

func TestFollow_AfterFailure(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *lookedAt) {
		l.box.failing.Store(true)
		l.begin(wire.Capture{}, true)
		passes(time.Second)
		for range 3 {
			before := l.looks.Load()
			passes(blindly)
			if l.looks.Load() != before+1 {
				t.Errorf("%d looks in %s without an answer, want 1", l.looks.Load()-before, blindly)
			}
		}
		l.box.failing.Store(false)
		passes(blindly)
		before := l.looks.Load()
		l.box.run()
		passes(time.Second)
		if l.looks.Load() != before+1 || l.box.waiting.Load() != 1 {
			t.Errorf("%d looks after a process had run, %d calls wait; want 1 each", l.looks.Load()-before, l.box.waiting.Load())
		}
	})
}

func TestFollow_LooksWhenAsked(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *lookedAt) {
		l.begin(wire.Capture{}, true)
		passes(time.Second)
		before := l.looks.Load()
		l.follows()
		passes(0)
		if l.looks.Load() != before+1 || l.box.waiting.Load() != 1 {
			t.Errorf("%d looks, %d calls wait; want 1 each", l.looks.Load()-before, l.box.waiting.Load())
		}
	})
}
