//go:build linux

package egress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// defaultNetEvents is the number of events that Net returns by default.
	defaultNetEvents = 100
	// MaxNetEvents is the maximum number of events that a request may ask for; the journal holds fewer.
	MaxNetEvents = 1_000_000
)

// Net returns the stored network events of a sandbox, and the current state of its gate. It does not start the
// sandbox.
func (c *Control) Net(ctx context.Context, name string, req wire.NetRequest) (res wire.NetResult, err error) {
	if req.Last == 0 && req.Since.IsZero() {
		req.Last = defaultNetEvents
	}
	q, err := netQuery(req)
	if err != nil {
		return res, err
	}
	b, rec, err := c.config.Sandboxes.Live(ctx, name, "reading its network events")
	if err != nil {
		return res, err
	}
	phases, err := c.config.Policies.Phases(ctx, &rec)
	if err != nil {
		return res, err
	}
	res.Policy = phases[0].Digest
	if b != nil && policies.Gated(&rec) {
		// This comes before the journal is read: the gate replies when all its denials are in the journal.
		now, err := b.Net(ctx)
		if err == nil {
			res.Now = &now
		} else if !fault.Is(err, fault.Unavailable) { // the keeper has just exited
			return res, sandbox.Named(err, rec.Name)
		}
	}
	if res.Events, err = journal.Read(c.config.Sandboxes.Journal(rec.ID), q); err != nil {
		return res, fault.Wrap(err, "read the network events of sandbox %s", rec.Name)
	}
	return res, nil
}

// netQuery returns the query of the journal for a request.
func netQuery(req wire.NetRequest) (journal.Query, error) {
	q := journal.Query{Last: req.Last, Since: req.Since, Kinds: req.Kinds, ByTime: true}
	if len(q.Kinds) == 0 {
		q.But = []string{wire.NetRefused}
	}
	switch {
	case req.Last < -1 || req.Last > MaxNetEvents:
		return q, fault.New(fault.Invalid, "invalid number of events %d: out of range", req.Last).
			WithHint("use a number from 1 to %d, or -1 for all stored events", MaxNetEvents)
	case req.Last == -1:
		q.Last = 0
	}
	return q, nil
}

// errGone is why FollowNet ends when the sandbox is removed.
var errGone = errors.New("the sandbox was removed")

// FollowNet calls yield with network events of a sandbox until ctx ends or yield fails, whose error it returns, or
// until the sandbox is removed: then it returns nil. The first call has an event without a kind: no later event is
// missed. The earlier events that the request selects by Last or Since follow.
func (c *Control) FollowNet(
	ctx context.Context, name string, req wire.NetRequest, yield func(wire.NetEvent) error,
) error {
	q, err := netQuery(req)
	if err != nil {
		return err
	}
	if req.Last == 0 && req.Since.IsZero() {
		q.Last = -1 // only new events
	}
	rec, err := c.config.Records.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var removed sync.WaitGroup
	defer removed.Wait()
	defer cancel(nil)
	removed.Go(func() {
		err := c.config.Feed.Events(ctx, string(rec.ID), wire.EventsNow, func(wire.SandboxEvent) error { return nil })
		if err == nil || fault.Is(err, fault.NotFound) {
			cancel(errGone)
		}
	})
	err = journal.Follow(ctx, c.config.Sandboxes.Journal(rec.ID), q, yield)
	if errors.Is(context.Cause(ctx), errGone) {
		return nil
	}
	return err
}

// Why returns the decision of the policy in force about a destination. It looks up no name and makes no connection.
// An allowed name is denied nonetheless if its last known address, from the journal, is denied.
func (c *Control) Why(ctx context.Context, name string, req wire.WhyRequest) (res wire.WhyResult, err error) {
	q, err := request(req)
	if err != nil {
		return res, err
	}
	rec, err := c.config.Records.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	p, phases, err := c.config.Policies.InForce(ctx, &rec)
	if err != nil {
		return res, err
	}
	d := p.Network.Decide(q)
	if d.Verdict != policy.Deny && !q.Host.IsZero() {
		if q, d, err = c.lastLed(rec.ID, p.Network, q, d); err != nil {
			return res, fault.Wrap(err, "look at the network of sandbox %s", rec.Name)
		}
	}
	res = wire.WhyResult{Place: q.String(), Verdict: string(d.Verdict), Reason: d.Reason, Hint: d.Hint, Fix: d.Fix,
		Policy: phases[0].Digest}
	if d.Rule != nil {
		res.Rule, res.At, res.Denies = d.Rule.String(), d.Rule.At.String(), d.Rule.Denies
		if res.Denies {
			res.Hint = "" // the policy is pinned: its files no longer change it
		}
	}
	if at := phases[0].Until; !at.IsZero() {
		res.Until = &at
	}
	if d.Verdict != policy.Allow {
		res.Allow = helps(p, q)
	}
	return res, nil
}

// lastLed returns the decision about a name with its last known address, and q with that address, if that is denied.
// Otherwise it returns q and d, the decision without an address.
func (c *Control) lastLed(
	id timeline.SandboxID, n policy.Network, q policy.Request, d policy.Decision,
) (policy.Request, policy.Decision, error) {
	evs, err := journal.Read(c.config.Sandboxes.Journal(id),
		journal.Query{Kinds: []string{wire.NetConnect, wire.NetDeny}, ByTime: true})
	if err != nil {
		return q, d, err
	}
	for _, ev := range slices.Backward(evs) {
		if ev.Name != q.Host.String() {
			continue
		}
		addr, err := netip.ParseAddr(ev.Addr)
		if err != nil {
			continue // denied before the name had an address
		}
		led := q
		led.Addr = addr
		if no := n.Decide(led); no.Verdict == policy.Deny {
			no.Reason += "; it led there at " + ev.Time.UTC().Format(time.RFC3339)
			return led, no, nil
		}
		return q, d, nil
	}
	return q, d, nil
}

// request returns the destination of a WhyRequest, with its HTTP request, if any.
func request(req wire.WhyRequest) (policy.Request, error) {
	q, err := policy.ParseRequest(req.Host)
	if err != nil || req.Method == "" && req.Path == "" {
		return q, err
	}
	h := policy.HTTPRequest{Method: req.Method, Path: req.Path}
	if h.Method == "" {
		h.Method = "GET"
	}
	if h.Path, h.Query, _ = strings.Cut(h.Path, "?"); h.Path == "" {
		h.Path = "/"
	}
	q.HTTP = &h
	return q, nil
}

// helps reports whether an additional rule for the destination of q would allow it.
func helps(p policy.Policy, q policy.Request) bool {
	r, err := policy.ParseRule(q.String(), false)
	if err != nil {
		return false
	}
	with, err := p.With(r)
	return err == nil && with.Network.Decide(q).Verdict == policy.Allow
}
