//go:build linux

package engine

import (
	"context"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Asking tells what of a sandbox waits for a person.
func (e *Engine) Asking(ctx context.Context, name string) (res wire.NetAsking, err error) {
	res.Asking = []wire.NetQuestion{}
	b, rec, err := e.liveNow(ctx, name, "looking at what waits for a person")
	if err != nil || b == nil || !policies.Gated(rec.Tier) {
		return res, err
	}
	now, err := b.Net(ctx)
	if fault.Is(err, fault.Unavailable) {
		return res, nil // it has just ended
	}
	if now.Asking != nil {
		res.Asking = now.Asking
	}
	return res, named(err, rec.Name)
}

// What changes of the rules are by, where they are answers.
const (
	byApprove = "coppice approve"
	byDeny    = "coppice deny"
)

// Approve allows places that wait for a person, or will. It changes the rules as Allow
// does.
func (e *Engine) Approve(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	return e.addRules(ctx, name, wire.AllowRequest{Allow: req.Rules, ForMS: req.ForMS}, byApprove)
}

// Deny denies them.
func (e *Engine) Deny(ctx context.Context, name string, req wire.AnswerRequest) (wire.AnswerResult, error) {
	return e.addRules(ctx, name, wire.AllowRequest{Deny: req.Rules, ForMS: req.ForMS}, byDeny)
}

// questions gives what waits for a person in a sandbox; none where that is not known.
func (e *Engine) questions(ctx context.Context, s *held) []wire.NetQuestion {
	b := e.liveBox(s)
	if b == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, policyPatience)
	defer cancel()
	now, err := b.Net(ctx)
	if err != nil {
		return nil // only what is told of the change depends on it
	}
	return now.Asking
}

// settled gives the questions of before that wait no longer.
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

// asks reports whether policies have people asked.
func asks(phases []Phase) bool {
	return slices.ContainsFunc(phases, func(p Phase) bool {
		said, err := policy.ParseCanonical([]byte(p.Policy))
		return err == nil && said.Network.Mode == policy.NetRules && said.Network.Ask
	})
}

// resumeQuestions is watchQuestions for a box that was found: it begins with what waits.
func (e *Engine) resumeQuestions(ctx context.Context, rec *meta.Sandbox, b Box) {
	if !policies.Gated(rec.Tier) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), policyPatience)
	defer cancel()
	phases, err := e.Policies.Phases(ctx, rec)
	if err != nil || !asks(phases) {
		return // a policy that cannot be read is told of by whoever needs it
	}
	since := e.Now()
	if now, err := b.Net(ctx); err == nil && len(now.Asking) > 0 {
		since = now.Asking[0].Since
	}
	e.watchQuestions(rec.ID, b, since)
}

// watchQuestions tells of what waits for a person, and what came of it, while a box
// lives: from a time on, of which the journal of its gate knows.
func (e *Engine) watchQuestions(id timeline.SandboxID, b Box, since time.Time) {
	e.bg.Go(func() error {
		e.followQuestions(e.bgCtx, id, b, since)
		return nil
	})
}

// followQuestions is watchQuestions, until ctx or the box ends.
func (e *Engine) followQuestions(ctx context.Context, id timeline.SandboxID, b Box, since time.Time) {
	open := map[string]wire.NetEvent{}
	err := e.followBox(ctx, id, b, journal.Query{Since: since, Kinds: []string{wire.NetAsk}}, func(ev wire.NetEvent) {
		e.tellQuestion(ctx, id, open, ev)
	})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		e.Logger.Warn("nobody is told of what waits for a person", "sandbox", id, "err", err)
	}
	for _, ev := range open { // the gate has ended, and with it what waited
		ev.Verdict, ev.Rule = wire.VerdictDeny, ""
		e.tellQuestion(ctx, id, open, ev)
	}
}

// tellQuestion tells of an event of a question; open has those that wait.
func (e *Engine) tellQuestion(
	ctx context.Context, id timeline.SandboxID, open map[string]wire.NetEvent, ev wire.NetEvent,
) {
	rec, err := e.DB.Sandbox(ctx, string(id))
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
	e.Feed.Emit(out)
}
