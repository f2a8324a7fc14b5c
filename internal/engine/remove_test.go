//go:build linux

package engine

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/upkeep"
)

// merging is the Stacks of an Upkeep that waits, before it merges layers for the first time, until held is closed.
type merging struct {
	upkeep.Stacks
	begun, held chan struct{}
	merges      atomic.Int32
}

func (m *merging) NewLayer() (id timeline.LayerID, made func(), err error) {
	if m.merges.Add(1) == 1 {
		close(m.begun)
		<-m.held
	}
	return m.Stacks.NewLayer()
}

// TestRemoval_MergesWithoutLocks checks that captures, commands and lists, of the same sandbox and of others, do not
// wait for the layers that the removal of a snapshot merges, and that a removal begins again if the history has changed
// meanwhile.
func TestRemoval_MergesWithoutLocks(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]func(u *upkeep.Upkeep, middle string) error{
		"deleting": func(u *upkeep.Upkeep, middle string) error {
			_, err := u.DeleteSnapshot(ctx, "a", middle)
			return err
		},
		"retention": func(u *upkeep.Upkeep, _ string) error {
			res, err := u.GC(ctx, wire.GCRequest{Sandboxes: []string{"a"}, Keep: wire.Keep{Last: 1}}, ignore)
			if err == nil && len(res.Dropped) == 0 {
				t.Error("nothing is removed")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			h.onDir("a")
			h.onDir("b")
			middle := h.run("a", "write", "f", "one").Head
			top := h.run("a", "write", "f", "two").Head
			c := upkeepConfig(h.Engine)
			m := &merging{Stacks: c.Stacks, begun: make(chan struct{}), held: make(chan struct{})}
			c.Stacks = m
			done := make(chan error, 1)
			go func() { done <- request(upkeep.New(c), middle) }()
			<-m.begun

			within, cancel := context.WithTimeout(ctx, 2*time.Minute)
			defer cancel()
			for _, sandbox := range []string{"a", "b"} {
				h.run(sandbox, "write", "during", "yes")
				if _, err := h.Commit(within, sandbox, "during"); err != nil {
					t.Error(err)
				}
			}
			if _, err := h.List(within); err != nil {
				t.Error(err)
			}
			latest, branch := h.head("a").ID, ""
			if name == "deleting" { // another route ends in the snapshot
				for _, to := range []string{middle, latest} {
					if _, err := h.Checkout(within, "a", wire.CheckoutRequest{Node: to}); err != nil {
						t.Fatal(err)
					}
					if to == middle {
						branch = h.run("a", "write", "branch", "yes").Head
					}
				}
			}
			select {
			case err := <-done:
				t.Fatalf("the removal did not wait: %v", err)
			default:
			}
			close(m.held)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if there, err := h.DB.HasSnapshot(ctx, timeline.SnapshotID(middle)); there || err != nil {
				t.Errorf("the snapshot is still there: %v, %v", there, err)
			}
			if got, want := h.tree("a"), map[string]string{"base": "base", "f": "two", "during": "yes"}; !maps.Equal(got, want) {
				t.Errorf("%v", got)
			}
			if name != "deleting" {
				return
			}
			if n := m.merges.Load(); n != 3 {
				t.Errorf("%d layers were merged, want one, and two when it began again", n)
			}
			for ref, want := range map[string]string{top: "two", branch: "one"} {
				if got := h.reads("a", ref, "/f"); got != want {
					t.Errorf("snapshot %s has %q, want %q", ref, got, want)
				}
			}
			if got := h.reads("a", branch, "/branch"); got != "yes" {
				t.Errorf("the branch has %q", got)
			}
		})
	}
}
