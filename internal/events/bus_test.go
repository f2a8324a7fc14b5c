//go:build linux

package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

var (
	errEnough = errors.New("enough")
	errClosed = errors.New("closed")
)

// busOnly returns a bus that knows no sandbox.
func busOnly() *Bus { return NewBus(time.Now, nil) }

// collect returns the events after a number, up to the first of the kind until.
func collect(t *testing.T, e *Bus, name string, after uint64, until string) (got []wire.SandboxEvent) {
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

func TestBus_DeliversEventsInOrder(t *testing.T) {
	t.Parallel()
	e := busOnly()
	const n = 3 * kept
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
				if seen++; slow && seen%batch == 0 {
					time.Sleep(2 * time.Millisecond)
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				t.Error(err)
			}
			if seen+lost != n {
				t.Errorf("got %d events and %d dropped ones, want %d in all", seen, lost, n)
			}
		})
	}
	ready.Wait()
	var tellers sync.WaitGroup
	for range 3 {
		tellers.Go(func() {
			for range n / 3 {
				e.Emit(wire.SandboxEvent{Kind: wire.EventSnapshot})
			}
		})
	}
	tellers.Wait()
	e.Emit(wire.SandboxEvent{Kind: wire.EventRemoved})
	done.Wait()
}

func TestBus_ResumesEvents(t *testing.T) {
	t.Parallel()
	e := busOnly()
	tell := func(n int) {
		for i := range n {
			e.Emit(wire.SandboxEvent{Kind: wire.EventSnapshot, Message: strconv.Itoa(i)})
		}
	}
	end := func() { e.Emit(wire.SandboxEvent{Kind: wire.EventRemoved}) }
	tell(10)
	end()
	all := collect(t, e, "", 0, wire.EventRemoved)
	if len(all) != 11 || all[0].Message != "0" || all[0].Time.IsZero() {
		t.Fatalf("%+v", all)
	}
	if got := collect(t, e, "", all[6].Seq, wire.EventRemoved); len(got) != 4 || got[0].Seq != all[7].Seq {
		t.Errorf("after event 7: %+v", got)
	}

	// More events than the bus stores.
	tell(kept + 5)
	end()
	if got := collect(t, e, "", 0, wire.EventRemoved); len(got) != kept || got[0].Kind != wire.EventSnapshot {
		t.Errorf("got %d events, the first %+v", len(got), got[0])
	}
	late := collect(t, e, "", all[10].Seq, wire.EventRemoved)
	if len(late) != kept+1 || late[0].Kind != wire.EventDropped || late[0].Dropped != 6 || late[0].Time.IsZero() {
		t.Errorf("got %d events, the first %+v", len(late), late[0])
	}
	if got := collect(t, e, "", late[0].Seq, wire.EventRemoved); len(got) != kept {
		t.Errorf("after the dropped events: %d", len(got))
	}

	// Event numbers of an earlier daemon.
	for _, after := range []uint64{1, all[0].Seq - 2, wire.EventsNow - 1} {
		got := collect(t, e, "", after, wire.EventRemoved)
		if len(got) != kept+1 || got[0].Kind != wire.EventDropped || got[0].Detail == "" {
			t.Errorf("after %d: %d, the first %+v", after, len(got), got[0])
		}
	}
	if next := NewBus(time.Now, nil); next.base <= all[0].Seq {
		t.Error("a later daemon has smaller event numbers")
	}
}

func TestBus_StopsOnCancel(t *testing.T) {
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

func TestBus_BoundsText(t *testing.T) {
	t.Parallel()
	e := busOnly()
	e.Emit(wire.SandboxEvent{Kind: wire.EventRemoved, Message: strings.Repeat("é", 4000), Detail: "a\xffb"})
	ev := collect(t, e, "", 0, wire.EventRemoved)[0]
	if len(ev.Message) > MaxText+8 || !strings.HasSuffix(ev.Message, "...") || ev.Detail != "a\ufffdb" {
		t.Errorf("%d bytes, %q", len(ev.Message), ev.Detail)
	}
}
