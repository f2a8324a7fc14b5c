//go:build linux

package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
)

var errEnough = errors.New("enough")

// collect returns the events after a number, up to the first one of the given kind.
func collect(t *testing.T, e *events.Bus, name string, after uint64, until string) (got []wire.SandboxEvent) {
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

func TestEvents_ReportEveryOperation(t *testing.T) {
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
	got := collect(t, h.Bus, "", 0, wire.EventRemoved)
	if last := got[len(got)-1]; last.ID != other.ID {
		t.Errorf("the first sandbox removed: %+v", last)
	}
	var kinds []string
	for _, ev := range got {
		if ev.Sandbox == "a" {
			kinds = append(kinds, ev.Kind)
		}
		switch {
		case ev.Kind == wire.EventSnapshot && ev.Snapshot == x.Snapshot:
			if ev.Message != "write f 1" || ev.Cause != "exec" || ev.Paths == 0 || ev.Bytes != 1 || ev.Exit == nil ||
				ev.Parent == "" {
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
	want := strings.Fields(
		"created started exec snapshot exited exec exited exec snapshot exited tag tag stopped checkout deleted fork " +
			"started exec exited stopped")
	if !slices.Equal(kinds, want) {
		t.Errorf("got events\n%v, want\n%v", kinds, want)
	}
	if err := h.Events(ctx, "a", 0, func(wire.SandboxEvent) error { return nil }); !fault.Is(err, fault.NotFound) {
		t.Errorf("events of a removed sandbox: %v", err)
	}
}

func TestEvents_EndOnRemove(t *testing.T) {
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
		t.Errorf("got events: %v", kinds)
	}
}
