//go:build linux

package engine

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
)

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
