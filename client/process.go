package client

import (
	"context"
	"net/http"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
)

// Processes lists the processes of a sandbox. A stopped sandbox has none.
func (c *Client) Processes(ctx context.Context, name string) (wire.ProcessesResult, error) {
	return get[wire.ProcessesResult](ctx, c, at(name)+"/processes")
}

// SignalProcess sends a signal to one process of a sandbox. With sig.Start set, it must be the process that was
// listed; otherwise it is the one that has the PID now.
func (c *Client) SignalProcess(ctx context.Context, name string, pid int, sig wire.ProcessSignal) error {
	return c.call(ctx, http.MethodPost, at(name)+"/processes/"+strconv.Itoa(pid)+"/signal", sig, nil)
}
