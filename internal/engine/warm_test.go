package engine

import (
	"context"
	"testing"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// A keeper that outlived its daemon, and does not answer the first who looks for it, is
// none that has ended: nothing is done to the sandbox, and the next one finds it.
func TestAKeeperThatDoesNotAnswerIsNotGone(t *testing.T) {
	h := newHome(t)
	h.onDir("a")
	h.run("a", "write", "f", "1")
	h.run("a", "write", "f", "2")
	b := h.box("a")
	started := len(h.boxes.started)
	h.close()
	h.open()

	h.boxes.unheard = context.DeadlineExceeded
	if _, err := h.Checkout(t.Context(), "a", wire.CheckoutRequest{Node: "HEAD~1"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("checkout: %v", err)
	}
	if _, err := h.Stop(t.Context(), "a"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("stop: %v", err)
	}
	h.boxes.unheard = nil
	h.run("a", "write", "f", "3")
	if h.box("a") != b || len(h.boxes.started) != started {
		t.Errorf("the box is another one, after %d starts", len(h.boxes.started)-started)
	}
}
