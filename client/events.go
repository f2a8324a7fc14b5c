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

// Events calls fn with what happens in a sandbox, or with name "" in all, as it
// happens, until ctx ends or fn gives an error, which is returned. after is the Seq
// of the last event that is known, 0 for all that the daemon remembers,
// wire.EventsNow for what comes from now on. It ends with nil when the sandbox that
// was named is removed, and with KindUnavailable when the daemon stops.
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

// errLast is given by who has had the last event.
var errLast = errors.New("the last event")

// stream calls fn with the documents of an answer that goes on, until ctx ends or fn
// gives an error, which it returns. ended says what it means that the answer ends.
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
