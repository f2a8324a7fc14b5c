//go:build linux

package grants

import (
	"context"
	"errors"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
)

// AnswerGrants approves or denies pending requests of a sandbox that would carry a secret, by their places, and returns
// them. The answer is in the ledger before the gate has it. An approval of a grant with AskFirst also holds for later
// requests to the host, until the grant changes.
func (c *Grants) AnswerGrants(
	ctx context.Context, name string, places []string, allow bool,
) ([]wire.NetQuestion, error) {
	s, rec, err := c.config.Sandboxes.Acquire(ctx, name, "answering its requests")
	if err != nil {
		return nil, err
	}
	defer s.Unlock()
	asked, err := c.pending(ctx, s, &rec, places)
	if err != nil {
		return nil, err
	}
	before, err := c.rows(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	after := slices.Clone(before)
	var answers []plan.Answer
	var records []format.Body
	for _, q := range asked {
		i := slices.IndexFunc(after, func(o meta.Grant) bool { return o.Name == q.Grant })
		if i < 0 || after[i].State != wire.GrantLive {
			return nil, fault.New(fault.NotFound, "sandbox %s no longer has grant %s", rec.Name, q.Grant).
				WithHint("see those that it has: coppice grants %s", rec.Name)
		}
		if err := approve(&after[i], q.Name, allow); err != nil {
			return nil, err
		}
		answers = append(answers, plan.Answer{ID: q.Place[len(wire.GrantQuestion):], Allow: allow})
		records = append(records, c.answerRecord(ctx, q, allow))
	}
	ctx = context.WithoutCancel(ctx)
	drafts := c.config.Recorder.Drafts(ctx, &rec, audit.ByDaemon(records...)...)
	err = c.config.Recorder.Do(ctx, drafts, func(ctx context.Context) error {
		if err := c.putAll(ctx, after); err != nil {
			return err
		}
		broker, box := c.enforce(ctx, s, &rec, after, answers...)
		c.note(rec.ID, broker == nil && box == nil)
		if box == nil || fault.Is(box, fault.Unavailable) { // without a line, a request is refused for another reason
			return nil
		}
		return errors.Join(box, c.putAll(ctx, before))
	})
	return asked, err
}

// pending returns the pending requests with the given places.
func (c *Grants) pending(
	ctx context.Context, s Held, rec *meta.Sandbox, places []string,
) (asked []wire.NetQuestion, err error) {
	var now wire.NetNow
	if b := s.Box(); b != nil {
		ctx, cancel := context.WithTimeout(ctx, boxPatience)
		defer cancel()
		if now, err = b.Net(ctx); err != nil {
			return nil, err
		}
	}
	for _, place := range places {
		i := slices.IndexFunc(now.Asking, func(q wire.NetQuestion) bool { return q.Place == place && q.Grant != "" })
		if i < 0 {
			return nil, fault.New(fault.NotFound, "sandbox %s has no pending request %q", rec.Name, place).
				WithHint("list them: coppice net log %s --asking", rec.Name)
		}
		asked = append(asked, now.Asking[i])
	}
	return asked, nil
}

// approve adds a host to those of a grant that later requests may use, if its first use requires approval.
func approve(row *meta.Grant, host string, allow bool) error {
	is, err := issued(*row)
	if err != nil || !allow || is.Ask != grant.AskFirst || slices.Contains(row.Approved, host) {
		return err
	}
	row.Approved = append(slices.Clone(row.Approved), host)
	return nil
}

// answerRecord returns the record of an answer.
func (c *Grants) answerRecord(ctx context.Context, q wire.NetQuestion, allow bool) *format.Grant {
	event := "denied"
	if allow {
		event = "approved"
	}
	return &format.Grant{Event: event, Grant: q.Grant, Host: c.config.Clean(q.Name),
		By: c.config.Clean(c.config.Caller(ctx)), What: c.config.Clean(q.Method + " " + q.Name + q.Path)}
}

// putAll stores grants.
func (c *Grants) putAll(ctx context.Context, rows []meta.Grant) error {
	for _, row := range rows {
		if err := c.config.Store.PutGrant(ctx, row); err != nil {
			return err
		}
	}
	return nil
}
