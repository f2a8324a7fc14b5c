package client

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// Net returns the stored network events of a sandbox, and the current state of its network.
func (c *Client) Net(ctx context.Context, name string, req wire.NetRequest) (wire.NetResult, error) {
	return get[wire.NetResult](ctx, c, at(name)+"/net?"+netQuery(req))
}

// NetEvents calls fn with the network events of a sandbox until ctx ends or fn returns an error, which it returns.
// With req.Last or req.Since, it starts with those stored events. It returns KindUnavailable when the sandbox is
// removed or the daemon stops.
func (c *Client) NetEvents(ctx context.Context, name string, req wire.NetRequest, fn func(wire.NetEvent) error) error {
	return stream(ctx, c, at(name)+"/net/events?"+netQuery(req), "the sandbox was removed, or the daemon has exited", fn)
}

// Why reports how the policy decides about a destination: HOST[:PORT].
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

// Allow changes the network rules of a sandbox, also for running processes.
func (c *Client) Allow(ctx context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error) {
	return post[wire.AllowResult](ctx, c, at(name)+"/net/allow", req)
}

// PendingRequests lists the pending requests of a sandbox. Only a policy that asks about unlisted destinations has any.
func (c *Client) PendingRequests(ctx context.Context, name string) (wire.NetAsking, error) {
	return get[wire.NetAsking](ctx, c, at(name)+"/net/asking")
}

// Approve allows pending destinations, as Allow does, and returns the requests that it settled.
func (c *Client) Approve(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	return post[wire.AnswerResult](ctx, c, at(name)+"/net/approve", req)
}

// Deny denies pending destinations, and returns the requests that it settled.
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
