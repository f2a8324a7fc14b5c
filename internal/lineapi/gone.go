package lineapi

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// goneEvery is how often a client is looked for.
const goneEvery = 200 * time.Millisecond

var errGone = errors.New("the client disconnected")

// whileThere gives a context that ends when the client has closed its connection;
// one that has only said its last word is still there. stop must be called.
func (c *conn) whileThere() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	sc, ok := c.net.(syscall.Conn)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, goneEvery) {
			if hungUp(sc) {
				cancel(errGone)
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}
