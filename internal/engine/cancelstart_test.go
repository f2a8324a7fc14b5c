//go:build linux

package engine

import (
	"context"
	"testing"

	"github.com/coppice-dev/coppice/internal/fault"
)

// TestCancelStart has a start hang until somebody stops or removes the sandbox.
func TestCancelStart(t *testing.T) {
	for name, end := range map[string]func(*home, context.Context) error{
		"stop": func(h *home, ctx context.Context) error { _, err := h.Stop(ctx, "a"); return err },
		"rm":   func(h *home, ctx context.Context) error { _, err := h.Remove(ctx, []string{"a"}, true); return err },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			h.onDir("a")
			begun := make(chan struct{})
			h.boxes.begun = func(ctx context.Context) error {
				close(begun)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			failed := make(chan error, 1)
			go func() { _, err := h.Start(t.Context(), "a"); failed <- err }()
			<-begun
			if err := end(h, t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-failed; !fault.Is(err, fault.Cancelled) {
				t.Errorf("the start ended with %v", err)
			}
		})
	}
}
