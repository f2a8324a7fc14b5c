package daemon

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/coppice-dev/coppice/client"
)

// TestHome_AcceptsLastCallersOnClose checks that clients that connected before the socket was
// removed are accepted, however long that takes, and that after them the close waits for no other.
func TestHome_AcceptsLastCallersOnClose(t *testing.T) {
	t.Parallel()
	h, err := openHome(t.Context(), t.TempDir()+"/home", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ln, err := h.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const callers = 5
	var calls sync.WaitGroup
	for range callers {
		c, err := client.DialSocket(t.Context(), SocketPath(h.path))
		if err != nil {
			t.Fatal(err)
		}
		calls.Go(func() {
			defer c.Close()
			if _, err := io.ReadAll(c); err != nil {
				t.Error(err)
			}
		})
	}
	h.unlisten()
	if c, err := client.DialSocket(t.Context(), SocketPath(h.path)); err == nil {
		c.Close()
		t.Error("the socket is still there")
	}
	calls.Go(func() {
		for range callers {
			time.Sleep(70 * time.Millisecond) // longer than one look
			c, err := ln.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		}
	})
	h.acceptLast()
	if waiting(h.ln) {
		t.Error("somebody waits")
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	calls.Wait()
}
