//go:build linux

package egress

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Asking returns the pending requests of a sandbox: none if it is stopped, or has no gate. It does not start the
// sandbox.
func (c *Control) Asking(ctx context.Context, name string) (res wire.NetAsking, err error) {
	res.Asking = []wire.NetQuestion{}
	b, rec, err := c.config.Sandboxes.Live(ctx, name, "listing its pending requests")
	if err != nil || b == nil || !policies.Gated(&rec) {
		return res, err
	}
	now, err := b.Net(ctx)
	if fault.Is(err, fault.Unavailable) {
		return res, nil // the keeper has just exited
	}
	if now.Asking != nil {
		res.Asking = now.Asking
	}
	return res, sandbox.Named(err, rec.Name)
}

// The commands that answer pending requests. A change of the rules by one of them is recorded as an answer as well.
const (
	byApprove = "coppice net approve"
	byDeny    = "coppice net deny"
)

// Approve allows destinations that a gate asks about, or will ask about. It changes the rules as Allow does, and
// returns the pending requests that it settled. For requests that would carry a secret it changes no rule.
func (c *Control) Approve(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	if about, err := aboutGrants(req); about || err != nil {
		return c.answerGrants(ctx, name, req, true, err)
	}
	return c.addRules(ctx, name, wire.AllowRequest{Allow: req.Rules, ForMS: req.ForMS}, byApprove)
}

// Deny denies pending destinations, as Approve allows them.
func (c *Control) Deny(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	if about, err := aboutGrants(req); about || err != nil {
		return c.answerGrants(ctx, name, req, false, err)
	}
	return c.addRules(ctx, name, wire.AllowRequest{Deny: req.Rules, ForMS: req.ForMS}, byDeny)
}

// aboutGrants reports whether an answer is to requests that would carry a secret. It fails if only a part is.
func aboutGrants(req wire.AnswerRequest) (bool, error) {
	n := 0
	for _, r := range req.Rules {
		if strings.HasPrefix(r, wire.GrantQuestion) {
			n++
		}
	}
	switch {
	case n > 0 && n < len(req.Rules):
		return false, fault.New(fault.Invalid, "a request with a secret and a rule cannot be answered together").
			WithHint("answer them one after the other")
	case n > 0 && req.ForMS != 0:
		return false, fault.New(fault.Invalid, "an answer to a request with a secret cannot end after a time").
			WithHint("omit --for; to end the grant: coppice revoke NAME GRANT")
	}
	return n > 0, nil
}

// answerGrants answers requests that would carry a secret, unless they are invalid.
func (c *Control) answerGrants(
	ctx context.Context, name string, req wire.AnswerRequest, allow bool, invalid error,
) (res wire.AnswerResult, err error) {
	if invalid != nil {
		return res, invalid
	}
	res.Settled, err = c.config.AnswerGrants(ctx, name, req.Rules, allow)
	res.Live = err == nil
	return res, err
}

// questions returns the pending requests of a sandbox; none if its keeper does not answer.
func questions(ctx context.Context, s Held) []wire.NetQuestion {
	b := s.Box()
	if b == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, PolicyPatience)
	defer cancel()
	now, err := b.Net(ctx)
	if err != nil {
		return nil // only the list of settled requests depends on it
	}
	return now.Asking
}

// settled returns the pending requests of before that are not in after.
func settled(before, after []wire.NetQuestion) []wire.NetQuestion {
	out := []wire.NetQuestion{}
	for _, q := range before {
		same := func(w wire.NetQuestion) bool {
			return w.Place == q.Place && w.Proto == q.Proto && w.Since.Equal(q.Since)
		}
		if !slices.ContainsFunc(after, same) {
			out = append(out, q)
		}
	}
	return out
}

// Asks reports whether one of the policies requests approval for destinations that no rule decides about.
func Asks(phases []policies.Phase) bool {
	return slices.ContainsFunc(phases, func(p policies.Phase) bool {
		said, err := policy.ParseCanonical([]byte(p.Policy))
		return err == nil && said.Network.Mode == policy.NetRules && said.Network.Ask
	})
}

// ResumeQuestions is WatchQuestions for a box that an earlier daemon started: it starts with the oldest pending
// request. It does nothing if no policy of the sandbox asks, and it can have no grants.
func (c *Control) ResumeQuestions(ctx context.Context, rec *meta.Sandbox, b Box, grants bool) {
	if !policies.Gated(rec) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), PolicyPatience)
	defer cancel()
	phases, err := c.config.Policies.Phases(ctx, rec)
	if err != nil || !Asks(phases) && !grants {
		return // the next operation that needs the policy reports that it cannot be read
	}
	since := c.config.Now()
	if now, err := b.Net(ctx); err == nil && len(now.Asking) > 0 {
		since = now.Asking[0].Since
	}
	c.WatchQuestions(rec.ID, b, since)
}

// WatchQuestions emits events about the pending requests of a box's gate and their answers, while the box lives,
// including those in its journal after since. It returns at once.
func (c *Control) WatchQuestions(id timeline.SandboxID, b Box, since time.Time) {
	c.config.Go(func(ctx context.Context) { c.followQuestions(ctx, id, b, since) })
}

// followQuestions is WatchQuestions, until ctx or the box ends.
func (c *Control) followQuestions(ctx context.Context, id timeline.SandboxID, b Box, since time.Time) {
	open := map[string]wire.NetEvent{}
	q := journal.Query{Since: since, Kinds: []string{wire.NetAsk}}
	err := c.follow(ctx, id, b, q, func(ev wire.NetEvent) { c.emitQuestion(ctx, id, open, ev) })
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.config.Log.Warn("could not follow the pending requests of a sandbox", "sandbox", id, "err", err)
	}
	for _, ev := range open { // the gate has exited, and its pending requests have ended
		ev.Verdict, ev.Rule = wire.VerdictDeny, ""
		c.emitQuestion(ctx, id, open, ev)
	}
}

// emitQuestion emits an event about a pending request; open holds the requests that are still pending.
func (c *Control) emitQuestion(
	ctx context.Context, id timeline.SandboxID, open map[string]wire.NetEvent, ev wire.NetEvent,
) {
	rec, err := c.config.Records.Sandbox(ctx, string(id))
	if err != nil {
		return // it was removed
	}
	key, out := ev.Proto+" "+ev.Place(), events.About(&rec, wire.EventAsk)
	switch {
	case ev.Verdict == wire.VerdictAsk:
		open[key] = ev
		out.Detail = wire.AskWaits
	case ev.Verdict == wire.VerdictAllow:
		out.Detail = wire.AskAllowed
	case ev.Rule != "":
		out.Detail = wire.AskDenied
	default:
		out.Detail = wire.AskTimeout
	}
	if ev.Verdict != wire.VerdictAsk {
		delete(open, key)
	}
	out.Message = ev.Place()
	c.config.Feed.Emit(out)
}
