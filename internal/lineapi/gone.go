package lineapi

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// goneEvery is the interval of checks for a disconnected client.
const goneEvery = 200 * time.Millisecond

var errGone = errors.New("the client disconnected")

// whileThere returns a context that ends when the client has closed its connection. A half-closed connection
// counts as open. The caller must call stop.
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
