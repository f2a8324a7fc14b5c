package client

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Net tells what a sandbox reached and what it was refused, as far as it is kept.
func (c *Client) Net(ctx context.Context, name string, req wire.NetRequest) (wire.NetResult, error) {
	return get[wire.NetResult](ctx, c, at(name)+"/net?"+netQuery(req))
}

// NetEvents calls fn with what happens between a sandbox and the network, as it
// happens, until ctx ends or fn gives an error, which is returned. Before that come
// those events of before that req asks for, by Last or Since. It ends with
// KindUnavailable when the sandbox is removed or the daemon stops.
func (c *Client) NetEvents(ctx context.Context, name string, req wire.NetRequest, fn func(wire.NetEvent) error) error {
	return stream(ctx, c, at(name)+"/net/events?"+netQuery(req), "the sandbox was removed, or the daemon has exited", fn)
}

// Why says what would be decided about a place in the network: HOST[:PORT].
func (c *Client) Why(ctx context.Context, name string, req wire.WhyRequest) (wire.WhyResult, error) {
	q := url.Values{"host": {req.Host}}
	if req.Method != "" {
		q.Set("method", req.Method)
	}
	if req.Path != "" {
		q.Set("path", req.Path)
	}
	return get[wire.WhyResult](ctx, c, at(name)+"/net/why?"+q.Encode())
}

// Allow changes the rules of a sandbox's network, also for processes that run.
func (c *Client) Allow(ctx context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error) {
	return post[wire.AllowResult](ctx, c, at(name)+"/net/allow", req)
}

// Asking tells what waits for a person: of a sandbox whose policy has people asked about
// what it does not name.
func (c *Client) Asking(ctx context.Context, name string) (wire.NetAsking, error) {
	return get[wire.NetAsking](ctx, c, at(name)+"/net/asking")
}

// Approve allows places that wait for a person, as Allow does, and tells of those that
// waited for it.
func (c *Client) Approve(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	return post[wire.AnswerResult](ctx, c, at(name)+"/net/approve", req)
}

// Deny denies places that wait for a person, and tells of those that waited for it.
func (c *Client) Deny(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	return post[wire.AnswerResult](ctx, c, at(name)+"/net/deny", req)
}

func netQuery(req wire.NetRequest) string {
	q := url.Values{}
	if req.Last != 0 {
		q.Set("last", strconv.Itoa(req.Last))
	}
	if !req.Since.IsZero() {
		q.Set("since", req.Since.UTC().Format(time.RFC3339Nano))
	}
	if len(req.Kinds) > 0 {
		q.Set("kinds", strings.Join(req.Kinds, ","))
	}
	return q.Encode()
}
