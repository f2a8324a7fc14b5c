package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

func diffOf(parties ...Party) Request {
	return Request{What: "diff of " + fmt.Sprint(parties), Cost: limit.CostLarge, Parties: parties}
}

// enter calls Enter in a separate goroutine.
func enter(ctx context.Context, g *Gate, r Request) <-chan func() {
	in := make(chan func(), 1)
	go func() {
		leave, err := g.Enter(ctx, r)
		if err != nil {
			leave = nil
		}
		in <- leave
	}()
	return in
}

// now returns what in received; ok is false if it received nothing.
func now(in <-chan func()) (leave func(), ok bool) {
	synctest.Wait()
	select {
	case leave = <-in:
		return leave, leave != nil
	default:
		return nil, false
	}
}

func TestGate_LimitsShareOfSandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Memory: 2 * limit.CostLarge})
		first, ok := now(enter(t.Context(), g, diffOf("a")))
		if !ok {
			t.Fatal("the first request waits")
		}
		second := enter(t.Context(), g, diffOf("a"))
		if _, ok := now(second); ok {
			t.Fatal("one sandbox holds more than its share")
		}
		other, ok := now(enter(t.Context(), g, diffOf("b")))
		if !ok {
			t.Fatal("another sandbox waits for the first")
		}
		first()
		next, ok := now(second)
		if !ok {
			t.Fatal("a waiting request is not admitted when there is room")
		}
		next()
		other()
		if s := g.Stats(); s != (Stats{Memory: 2 * limit.CostLarge}) || len(g.parties) != 0 {
			t.Errorf("not released: %+v, %d parties", s, len(g.parties))
		}
	})
}

func TestGate_LimitsShareOfToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Memory: 2 * limit.CostLarge})
		leave, ok := now(enter(t.Context(), g, diffOf("a", "token")))
		if !ok {
			t.Fatal("the first request waits")
		}
		defer leave()
		ctx, cancel := context.WithCancel(t.Context())
		if _, ok := now(enter(ctx, g, diffOf("b", "token"))); ok {
			t.Error("a token holds more than a share with requests for several sandboxes")
		}
		cancel()
		synctest.Wait()
	})
}

func TestGate_PartiesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Memory: 2 * limit.CostLarge})
		var leave []func()
		for _, name := range []Party{"a", "b"} {
			l, ok := now(enter(t.Context(), g, diffOf(name)))
			if !ok {
				t.Fatal("the first requests wait")
			}
			leave = append(leave, l)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range limit.AdmissionWaitingOne {
			enter(ctx, g, diffOf("a"))
			enter(ctx, g, diffOf("b"))
			synctest.Wait()
		}
		late := enter(t.Context(), g, diffOf("late"))
		synctest.Wait()
		leave[0]()
		l, ok := now(late)
		if !ok {
			t.Fatal("a late request waits for all requests of two floods")
		}
		l()
		cancel()
		synctest.Wait()
		leave[1]()
	})
}

func TestGate_TimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g := New(Options{Memory: limit.CostLarge, Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 2 { // a share each
			leave, err := g.Enter(t.Context(), Request{What: "gc", Cost: limit.CostLarge})
			if err != nil {
				t.Fatal(err)
			}
			defer leave()
		}
		begun := time.Now()
		_, err := g.Enter(t.Context(), diffOf("a"))
		if !fault.Is(err, fault.Unavailable) || !strings.HasSuffix(fault.HintOf(err), "coppice serve --memory SIZE") {
			t.Errorf("%v, hint %q", err, fault.HintOf(err))
		}
		if took := time.Since(begun); took != limit.AdmissionSeconds*time.Second {
			t.Errorf("refused after %v", took)
		}
		if s := g.Stats(); s.Refused != 1 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		if !strings.Contains(log.String(), "diff of [a]") {
			t.Errorf("the log has %q", log.String())
		}
	})
}

func TestGateEnter_StopsOnCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Memory: limit.CostLarge})
		leave, err := g.Enter(t.Context(), diffOf("a"))
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if _, err := g.Enter(ctx, diffOf("a")); !errors.Is(err, gone) {
			t.Errorf("%v", err)
		}
		if s := g.Stats(); s.Refused != 0 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestGate_BoundsQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Memory: limit.CostLarge, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		for i := range limit.AdmissionWaiting/limit.AdmissionWaitingOne + 1 {
			for range limit.AdmissionWaitingOne + 1 {
				enter(ctx, g, diffOf(Sandbox(fmt.Sprint(i))))
				synctest.Wait()
			}
			if i == 0 {
				enter(ctx, g, diffOf(Sandbox("0")))
				synctest.Wait()
				if s := g.Stats(); s.Waiting != limit.AdmissionWaitingOne || s.Refused != 1 {
					t.Errorf("of one sandbox: %+v", s)
				}
			}
		}
		begun := time.Now()
		if _, err := g.Enter(ctx, diffOf("new")); !fault.Is(err, fault.Unavailable) || time.Since(begun) != 0 {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if s := g.Stats(); s.Waiting != limit.AdmissionWaiting {
			t.Errorf("%+v", s)
		}
		cancel()
		synctest.Wait()
	})
}

func TestGate_RefusesOnFullHeap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		live, garbage, collections := int64(100), int64(0), 0
		heap := &Heap{most: 99, live: func() int64 { return live + garbage }, collect: func() { collections++; garbage = 0 }}
		g := New(Options{Memory: limit.CostLarge, Heap: heap, Log: slog.New(slog.DiscardHandler)})
		for range 10 {
			if _, err := g.Enter(t.Context(), diffOf("a")); !fault.Is(err, fault.Unavailable) {
				t.Fatalf("%v", err)
			}
		}
		if collections != 1 {
			t.Errorf("%d collections at one time", collections)
		}
		time.Sleep(collectEvery)
		live, garbage = 50, 50 // no longer in use, but not collected yet
		leave, err := g.Enter(t.Context(), diffOf("a"))
		if err != nil {
			t.Fatalf("refused because of garbage: %v", err)
		}
		leave()
	})
}

func TestGate_ConcurrentCallersStayWithinMemory(t *testing.T) {
	t.Parallel()
	g := New(Options{Memory: 4 * limit.CostLarge, Heap: NewHeap(1 << 40)})
	var work sync.WaitGroup
	for i := range 16 {
		work.Go(func() {
			for range 100 {
				leave, err := g.Enter(t.Context(), diffOf(Sandbox(fmt.Sprint(i%5)), Token(fmt.Sprint(i%3))))
				if err != nil {
					t.Error(err)
					return
				}
				if s := g.Stats(); s.Held > s.Memory {
					t.Errorf("%+v", s)
				}
				leave()
			}
		})
	}
	work.Wait()
	if s := g.Stats(); s.Held != 0 || len(g.parties) != 0 {
		t.Errorf("not released: %+v, %d parties", s, len(g.parties))
	}
}

func TestSoftLimit(t *testing.T) {
	t.Parallel()
	for available, want := range map[int64]int64{
		64 << 20:  32 << 20,
		512 << 20: 256 << 20,
		1 << 30:   256 << 20,
		8 << 30:   2 << 30,
	} {
		if got := SoftLimit(available); got != want {
			t.Errorf("SoftLimit(%d) = %d, want %d", available, got, want)
		}
	}
}
