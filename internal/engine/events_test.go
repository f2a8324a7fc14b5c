//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

var errEnough = errors.New("enough")

// busOnly is an engine that can do nothing but tell.
func busOnly() *Engine {
	return &Engine{Config: Config{Now: time.Now}, events: newBus(time.Now())}
}

// collect gives the events after a number, up to one of this kind.
func collect(t *testing.T, e *Engine, name string, after uint64, until string) (got []wire.SandboxEvent) {
	t.Helper()
	err := e.Events(t.Context(), name, after, func(ev wire.SandboxEvent) error {
		if ev.Kind != "" {
			got = append(got, ev)
		}
		if ev.Kind == until {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	return got
}

func TestEventsReachEveryListenerInOrder(t *testing.T) {
	t.Parallel()
	e := busOnly()
	const n = 3 * keptEvents
	var ready, done sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for i := range 8 {
		slow := i%2 == 1
		ready.Add(1)
		done.Go(func() {
			var last uint64
			var seen, lost int64
			err := e.Events(ctx, "", wire.EventsNow, func(ev wire.SandboxEvent) error {
				switch ev.Kind {
				case "":
					last = ev.Seq
					ready.Done()
					return nil
				case wire.EventDropped:
					lost += ev.Dropped
					last = ev.Seq
					return nil
				case wire.EventRemoved:
					return errEnough
				}
				if ev.Seq != last+1 {
					return fmt.Errorf("event %d follows %d", ev.Seq, last)
				}
				last = ev.Seq
				if seen++; slow && seen%eventBatch == 0 {
					time.Sleep(2 * time.Millisecond)
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				t.Error(err)
			}
			if seen+lost != n {
				t.Errorf("%d seen and %d dropped of %d", seen, lost, n)
			}
		})
	}
	ready.Wait()
	var tellers sync.WaitGroup
	for range 3 {
		tellers.Go(func() {
			for range n / 3 {
				e.emit(wire.SandboxEvent{Kind: wire.EventSnapshot})
			}
		})
	}
	tellers.Wait()
	e.emit(wire.SandboxEvent{Kind: wire.EventRemoved})
	done.Wait()
}

func TestEventsAreResumed(t *testing.T) {
	t.Parallel()
	e := busOnly()
	tell := func(n int) {
		for i := range n {
			e.emit(wire.SandboxEvent{Kind: wire.EventSnapshot, Message: itoa(i)})
		}
	}
	end := func() { e.emit(wire.SandboxEvent{Kind: wire.EventRemoved}) }
	tell(10)
	end()
	all := collect(t, e, "", 0, wire.EventRemoved)
	if len(all) != 11 || all[0].Message != "0" || all[0].Time.IsZero() {
		t.Fatalf("%+v", all)
	}
	if got := collect(t, e, "", all[6].Seq, wire.EventRemoved); len(got) != 4 || got[0].Seq != all[7].Seq {
		t.Errorf("after the seventh: %+v", got)
	}

	// More than is remembered.
	tell(keptEvents + 5)
	end()
	if got := collect(t, e, "", 0, wire.EventRemoved); len(got) != keptEvents || got[0].Kind != wire.EventSnapshot {
		t.Errorf("%d from the start, the first %+v", len(got), got[0])
	}
	late := collect(t, e, "", all[10].Seq, wire.EventRemoved)
	if len(late) != keptEvents+1 || late[0].Kind != wire.EventDropped || late[0].Dropped != 6 || late[0].Time.IsZero() {
		t.Errorf("%d, the first %+v", len(late), late[0])
	}
	if got := collect(t, e, "", late[0].Seq, wire.EventRemoved); len(got) != keptEvents {
		t.Errorf("after the dropped ones: %d", len(got))
	}

	// Numbers of an earlier daemon.
	for _, after := range []uint64{1, all[0].Seq - 2, wire.EventsNow - 1} {
		if got := collect(t, e, "", after, wire.EventRemoved); len(got) != keptEvents+1 || got[0].Kind != wire.EventDropped || got[0].Detail == "" {
			t.Errorf("after %d: %d, the first %+v", after, len(got), got[0])
		}
	}
	if next := newBus(time.Now()); next.base <= all[0].Seq {
		t.Error("the numbers of a later daemon are smaller")
	}
}

func TestEventsEndWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := busOnly()
		ctx, stop := context.WithCancelCause(t.Context())
		got := make(chan error)
		go func() { got <- e.Events(ctx, "", 0, func(wire.SandboxEvent) error { return nil }) }()
		synctest.Wait()
		stop(errClosed)
		if err := <-got; !errors.Is(err, errClosed) {
			t.Error(err)
		}
	})
}

func TestEventTextIsBounded(t *testing.T) {
	t.Parallel()
	e := busOnly()
	e.emit(wire.SandboxEvent{Kind: wire.EventRemoved, Message: strings.Repeat("é", 4000), Detail: "a\xffb"})
	ev := collect(t, e, "", 0, wire.EventRemoved)[0]
	if len(ev.Message) > maxEventText+8 || !strings.HasSuffix(ev.Message, "...") || ev.Detail != "a\ufffdb" {
		t.Errorf("%d bytes, %q", len(ev.Message), ev.Detail)
	}
}

func TestEveryDeedIsTold(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	other := h.onDir("b")
	x := h.run("a", "write", "f", "1")
	h.run("a", "true")
	if _, err := h.Commit(ctx, "a", "nothing new"); err != nil {
		t.Fatal(err)
	}
	second := h.run("a", "write", "f", "2")
	if _, err := h.SetTag(ctx, "a", "good", x.Snapshot); err != nil {
		t.Fatal(err)
	}
	if err := h.DeleteTag(ctx, "a", "good"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Checkout(ctx, "a", wire.CheckoutRequest{Node: x.Snapshot}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.DeleteSnapshot(ctx, "a", second.Snapshot); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Fork(ctx, "a", wire.ForkRequest{Names: []string{"c", "d"}}); err != nil {
		t.Fatal(err)
	}
	h.run("a", "true")
	if _, err := h.Stop(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Remove(ctx, []string{"b"}, true); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Remove(ctx, []string{"a"}, true); err != nil {
		t.Fatal(err)
	}
	got := collect(t, h.Engine, "", 0, wire.EventRemoved)
	if last := got[len(got)-1]; last.ID != other.ID {
		t.Errorf("the first to go: %+v", last)
	}
	var kinds []string
	for _, ev := range got {
		if ev.Sandbox == "a" {
			kinds = append(kinds, ev.Kind)
		}
		switch {
		case ev.Kind == wire.EventSnapshot && ev.Snapshot == x.Snapshot:
			if ev.Message != "write f 1" || ev.Cause != "exec" || ev.Paths == 0 || ev.Bytes != 1 || ev.Exit == nil || ev.Parent == "" {
				t.Errorf("%+v", ev)
			}
		case ev.Kind == wire.EventCheckout:
			if ev.Snapshot != x.Snapshot || ev.Parent != second.Snapshot {
				t.Errorf("%+v", ev)
			}
		case ev.Kind == wire.EventFork && ev.Detail != "c d":
			t.Errorf("%+v", ev)
		}
	}
	want := strings.Fields("created started exec snapshot exited exec exited exec snapshot exited tag tag stopped checkout deleted fork started exec exited stopped")
	if !slices.Equal(kinds, want) {
		t.Errorf("told:\n%v, not\n%v", kinds, want)
	}
	if err := h.Events(ctx, "a", 0, func(wire.SandboxEvent) error { return nil }); !fault.Is(err, fault.NotFound) {
		t.Errorf("of a removed one: %v", err)
	}
}

func TestWatchingASandboxEndsWithIt(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.onDir("b")
	ready, ended := make(chan bool), make(chan error)
	var kinds []string
	go func() {
		ended <- h.Events(ctx, "a", wire.EventsNow, func(ev wire.SandboxEvent) error {
			if ev.Kind == "" {
				close(ready)
				return nil
			}
			kinds = append(kinds, ev.Sandbox+" "+ev.Kind)
			return nil
		})
	}()
	<-ready
	h.run("b", "write", "f", "1")
	if _, err := h.Remove(ctx, []string{"b", "a"}, true); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !slices.Equal(kinds, []string{"a removed"}) {
		t.Errorf("told: %v", kinds)
	}
}
