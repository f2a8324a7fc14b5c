package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coppice-dev/coppice/client/wire"
)

// Events calls fn with the events of a sandbox, or of all with name "", until ctx ends or fn returns an error, which
// Events returns. after is the Seq of the last known event, 0 for all that the daemon remembers, or wire.EventsNow
// for new events only. Events returns nil when the named sandbox is removed, and KindUnavailable when the daemon
// stops.
func (c *Client) Events(ctx context.Context, name string, after uint64, fn func(wire.SandboxEvent) error) error {
	q := url.Values{}
	if name != "" {
		q.Set("sandbox", name)
	}
	if after != wire.EventsNow {
		q.Set("after", strconv.FormatUint(after, 10))
	}
	err := stream(ctx, c, "/v1/events?"+q.Encode(), "the daemon has exited", func(ev wire.SandboxEvent) error {
		if err := fn(ev); err != nil || name == "" || ev.Kind != wire.EventRemoved {
			return err
		}
		return errLast
	})
	if errors.Is(err, errLast) {
		return nil
	}
	return err
}

// errLast is returned by a callback to end the stream without an error.
var errLast = errors.New("the last event")

// stream calls fn with each document of a streamed response, until ctx ends or fn returns an error, which it returns.
// ended is the message for a response that ends.
func stream[T any](ctx context.Context, c *Client, path, ended string, fn func(T) error) error {
	r, err := c.do(ctx, http.MethodGet, path, "", nil, "")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode >= 300 {
		return problem(r)
	}
	dec := json.NewDecoder(r.Body)
	for {
		var ev T
		switch err := dec.Decode(&ev); {
		case err == nil:
		case ctx.Err() != nil:
			return unavailable(ctx.Err())
		case errors.Is(err, io.EOF):
			return &Error{Kind: KindUnavailable, Message: ended, Err: err}
		default:
			return &Error{Kind: KindUnavailable, Message: "the event stream was interrupted: " + err.Error(), Err: err}
		}
		if err := fn(ev); err != nil {
			return err
		}
	}
}
