//go:build linux

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

const (
	// defaultNetEvents is how many events are told where nobody says.
	defaultNetEvents = 100
	// maxNetEvents is how many anybody may ask for; fewer are kept.
	maxNetEvents = 1_000_000
	// maxTimed is how many rules of a sandbox hold for a time, at most.
	maxTimed = 100
	// policyPatience is how long a keeper has to put a policy in force.
	policyPatience = 10 * time.Second
)

// Net tells what happened between a sandbox and the network, as far as it is kept,
// and what is now.
func (e *Engine) Net(ctx context.Context, name string, req wire.NetRequest) (res wire.NetResult, err error) {
	if req.Last == 0 && req.Since.IsZero() {
		req.Last = defaultNetEvents
	}
	q, err := netQuery(req)
	if err != nil {
		return res, err
	}
	b, rec, err := e.liveNow(ctx, name, "looking at its network")
	if err != nil {
		return res, err
	}
	phases, err := e.Policies.Phases(ctx, &rec)
	if err != nil {
		return res, err
	}
	res.Policy = phases[0].Digest
	if b != nil && policies.Gated(rec.Tier) {
		// Before the journal is read: the gate answers when all that it refused is in there.
		now, err := b.Net(ctx)
		if err == nil {
			res.Now = &now
		} else if !fault.Is(err, fault.Unavailable) { // it has just ended
			return res, sandbox.Named(err, rec.Name)
		}
	}
	if res.Events, err = journal.Read(e.journalAt(rec.ID), q); err != nil {
		return res, fault.Wrap(err, "look at the network of sandbox %s", rec.Name)
	}
	return res, nil
}

// netQuery says what of the journal is asked for.
func netQuery(req wire.NetRequest) (journal.Query, error) {
	q := journal.Query{Last: req.Last, Since: req.Since, Kinds: req.Kinds}
	if len(q.Kinds) == 0 {
		q.But = []string{wire.NetRefused}
	}
	switch {
	case req.Last < -1 || req.Last > maxNetEvents:
		return q, fault.New(fault.Invalid, "the last %d events", req.Last).
			WithHint("give a number from 1 to %d, or -1 for all that are kept", maxNetEvents)
	case req.Last == -1:
		q.Last = 0
	}
	return q, nil
}

// errGone is why FollowNet ends when the sandbox is removed.
var errGone = errors.New("the sandbox was removed")

// FollowNet calls yield with what happens between a sandbox and the network, until ctx
// ends or yield gives an error, which it returns, or the sandbox is removed: then nil.
// The first call is with an event without a kind: nothing is missed any more. Then
// come those of before that are asked for, by Last or Since.
func (e *Engine) FollowNet(
	ctx context.Context, name string, req wire.NetRequest, yield func(wire.NetEvent) error,
) error {
	q, err := netQuery(req)
	if err != nil {
		return err
	}
	if req.Last == 0 && req.Since.IsZero() {
		q.Last = -1 // from now on
	}
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var removed sync.WaitGroup
	defer removed.Wait()
	defer cancel(nil)
	removed.Go(func() {
		err := e.Feed.Events(ctx, string(rec.ID), wire.EventsNow, func(wire.SandboxEvent) error { return nil })
		if err == nil || fault.Is(err, fault.NotFound) {
			cancel(errGone)
		}
	})
	err = journal.Follow(ctx, e.journalAt(rec.ID), q, yield)
	if errors.Is(context.Cause(ctx), errGone) {
		return nil
	}
	return err
}

// Why says what the policy in force decides about a place in the network. Nothing is
// looked up or connected to.
func (e *Engine) Why(ctx context.Context, name string, req wire.WhyRequest) (res wire.WhyResult, err error) {
	q, err := request(req)
	if err != nil {
		return res, err
	}
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	p, phases, err := e.Policies.InForce(ctx, &rec)
	if err != nil {
		return res, err
	}
	d := p.Network.Decide(q)
	res = wire.WhyResult{Place: q.String(), Verdict: string(d.Verdict), Reason: d.Reason, Hint: d.Hint,
		Policy: phases[0].Digest}
	if d.Rule != nil {
		res.Rule, res.At, res.Denies = d.Rule.String(), d.Rule.At.String(), d.Rule.Denies
		if res.Denies {
			res.Hint = "" // a file that it was made of does not change it any more
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

// request reads what a WhyRequest is about.
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

// helps reports whether a rule for the place of q would let it pass.
func helps(p policy.Policy, q policy.Request) bool {
	r, err := policy.ParseRule(q.String(), false)
	if err != nil {
		return false
	}
	with, err := p.With(r)
	return err == nil && with.Network.Decide(q).Verdict == policy.Allow
}

// Allow changes the rules of a sandbox's network, for good or for some time, and for
// processes that run. The change is told in the journal before it is made. When the
// keeper does not take it, all is as before.
func (e *Engine) Allow(ctx context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error) {
	by := "coppice allow"
	if len(req.Deny)+len(req.RemoveDeny) > 0 && len(req.Allow)+len(req.RemoveAllow) == 0 {
		by += " --deny"
	}
	if removes(req) {
		by += " --remove"
	}
	res, err := e.addRules(ctx, name, req, by)
	return res.AllowResult, err
}

// addRules is Allow, by a command that is named. It also tells what waited for a person
// and waits no longer.
func (e *Engine) addRules(
	ctx context.Context, name string, req wire.AllowRequest, by string,
) (res wire.AnswerResult, err error) {
	rules, err := e.rulesOf(req)
	if err != nil {
		return res, err
	}
	s, rec, err := e.acquire(ctx, name, "changing its rules")
	if err != nil {
		return res, err
	}
	defer s.unlock(e)
	if e.liveBox(s) == nil { // else its gate tells, before it takes the rules
		if err := e.tellEnded(ctx, &rec); err != nil {
			return res, err
		}
	}
	var next meta.Sandbox
	if removes(req) {
		next, rules, err = e.withoutRules(ctx, rec, req)
	} else {
		next, err = e.withRules(ctx, rec, req, rules)
	}
	if err != nil {
		return res, err
	}
	before, err := e.Policies.Phases(ctx, &rec)
	if err != nil {
		return res, err
	}
	after, err := e.Policies.Phases(ctx, &next)
	if err != nil {
		return res, err
	}
	warnings, err := stillSo(after[0], req)
	if err != nil {
		return res, err
	}
	// From here on the client's going away changes nothing.
	ctx = context.WithoutCancel(ctx)
	ev := wire.NetEvent{Kind: wire.NetPolicy, Rule: ruleList(rules), Reason: by, Policy: after[0].Digest}
	if req.ForMS > 0 {
		ev.Reason += ", until " + next.Timed[len(next.Timed)-1].Until.Format(time.RFC3339)
	}
	done, err := e.undertake(ctx, e.drafts(ctx, &rec, e.policyRecords(ctx, req, ev, before[0].Digest, by)...))
	if err != nil {
		return res, err
	}
	if err := e.noteNet(s.ID, ev); err != nil {
		done(err)
		return res, err
	}
	waited := e.questions(ctx, s)
	res.Live, err = e.putInForce(ctx, s, &rec, &next, before, after)
	if done(err); err != nil {
		back := wire.NetEvent{Kind: wire.NetPolicy, Reason: "taken back: it could not be put in force",
			Policy: before[0].Digest}
		return res, errors.Join(err, e.noteNet(s.ID, back))
	}
	res.Policy, res.Warnings, res.Settled = after[0].Digest, warnings, settled(waited, e.questions(ctx, s))
	if req.ForMS > 0 {
		res.Until = &next.Timed[len(next.Timed)-1].Until
	}
	return res, nil
}

// policyRecords tell of a change of the rules, which ev tells the journal, and of the
// answers that it is, where a person was asked.
func (e *Engine) policyRecords(
	ctx context.Context, req wire.AllowRequest, ev wire.NetEvent, before, by string,
) (out []testimony) {
	until := ""
	if req.ForMS > 0 {
		until = e.Now().UTC().Add(time.Duration(req.ForMS) * time.Millisecond).Format(time.RFC3339)
	}
	c := e.cleaners.Formats()
	who := c.RecordText(e.Caller(ctx))
	out = byDaemon(&format.Policy{
		After: ev.Policy, Before: before, By: who, Reason: c.RecordText(by + ": " + ev.Rule), Until: until,
	})
	if by != byApprove && by != byDeny {
		return out
	}
	for i, list := range [][]string{req.Allow, req.Deny} {
		for _, rule := range list {
			answer := []string{"allow", "deny"}[i]
			asked := &format.Approval{Answer: answer, By: who, Question: c.RecordText(rule), Until: until}
			out = append(out, byDaemon(asked)...)
		}
	}
	return out
}

// rulesOf reads the rules of a request.
func (e *Engine) rulesOf(req wire.AllowRequest) (rules []policy.Rule, err error) {
	if removes(req) {
		return nil, removable(req)
	}
	if n := len(req.Allow) + len(req.Deny); n == 0 || n > maxTimed {
		return nil, fault.New(fault.Invalid, "%d rules", n).WithHint("give 1 to %d, as in example.com:443", maxTimed)
	}
	if req.ForMS < 0 || req.ForMS > maxLife.Milliseconds() {
		return nil, fault.New(fault.Invalid, "rules for %d ms", req.ForMS).
			WithHint("give a time between 1 ms and 100 years, or 0 for good")
	}
	for i, list := range [][]string{req.Allow, req.Deny} {
		for _, text := range list {
			r, err := policy.ParseRule(text, i == 1)
			if err != nil {
				return nil, err
			}
			r.At = policies.Flag("coppice allow")
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// withRules gives the record as it is with more rules.
func (e *Engine) withRules(
	ctx context.Context, rec meta.Sandbox, req wire.AllowRequest, rules []policy.Rule,
) (meta.Sandbox, error) {
	if !policies.Gated(rec.Tier) {
		return rec, fault.New(fault.Unsupported, "sandbox %s has no gate: its tier is %s, and its network %s", rec.Name,
			rec.Tier, rec.Net).
			WithHint("make one that keeps to rules: coppice create --from %s --net rules --allow %s", rec.Name, rules[0])
	}
	base, err := e.Policies.Placed(ctx, &rec)
	if err != nil {
		return rec, err
	}
	p, err := base.With(rules...)
	if err != nil {
		return rec, err
	}
	next, now := rec, e.Now().UTC()
	next.Timed = policies.Timed(&rec, now)
	if req.ForMS == 0 {
		return next, policies.Pin(&next, p)
	}
	until := now.Add(time.Duration(req.ForMS) * time.Millisecond).Truncate(time.Millisecond)
	for _, r := range rules {
		// Who may deny, and nothing else, does not cut short what denies for longer.
		end := until
		same := func(t meta.TimedRule) bool {
			is := t.Deny == r.Denies && t.Rule == r.String()
			if is && t.Deny && t.Until.After(end) {
				end = t.Until
			}
			return is
		}
		next.Timed = append(slices.DeleteFunc(next.Timed, same), meta.TimedRule{Rule: r.String(), Deny: r.Denies, Until: end})
	}
	if len(next.Timed) > maxTimed {
		return rec, fault.New(fault.Invalid, "%d rules would hold for a time: the limit is %d", len(next.Timed), maxTimed).
			WithHint("leave --for out, or wait until some have ended: coppice policy show %s", rec.Name)
	}
	return next, nil
}

// putInForce records what a sandbox may reach, and has its keeper, if it has one, do so;
// live says that one does. The record is rec again when it fails.
func (e *Engine) putInForce(
	ctx context.Context, s *held, rec, next *meta.Sandbox, before, after []Phase,
) (live bool, err error) {
	record := func(from *meta.Sandbox) error {
		return e.DB.UpdateSandbox(ctx, s.ID, func(r *meta.Sandbox) error {
			r.Policy, r.PolicyText, r.Net, r.Timed = from.Policy, from.PolicyText, from.Net, from.Timed
			r.Origins, r.OriginsText = from.Origins, from.OriginsText
			return nil
		})
	}
	if err := record(next); err != nil {
		return false, err
	}
	b := e.liveBox(s)
	if b == nil {
		return false, nil
	}
	set := func(phases []Phase) error {
		ctx, cancel := context.WithTimeout(ctx, policyPatience)
		defer cancel()
		return b.SetPolicy(ctx, phases)
	}
	if err = set(after); err == nil {
		return true, nil
	}
	if e.liveBox(s) == nil {
		return false, nil // it has just ended, and begins with the record
	}
	// Whether the keeper took it is not known.
	old := *rec
	old.PolicyText = before[len(before)-1].Policy // nobody may name it any more
	return false, errors.Join(fault.Wrap(err, "change the rules of sandbox %s", rec.Name), set(before), record(&old))
}

// renew has a keeper that survived an earlier daemon keep to what is recorded: that
// daemon may have ended between the two.
func (e *Engine) renew(ctx context.Context, rec *meta.Sandbox, b Box) {
	if !policies.Gated(rec.Tier) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), policyPatience)
	defer cancel()
	phases, err := e.Policies.Phases(ctx, rec)
	if err == nil {
		err = b.SetPolicy(ctx, phases)
	}
	if err != nil && !fault.Is(err, fault.Unavailable) { // it has just ended, or its gate has
		e.Logger.Error("the sandbox may keep to an older policy", "sandbox", rec.ID, "err", err)
	}
}

// noteNet appends to the journal of a sandbox.
func (e *Engine) noteNet(id timeline.SandboxID, ev wire.NetEvent) error {
	ev.Time = e.Now().UTC()
	dir := e.journalDir(id)
	if err := vfs.MkdirAll(e.FS, dir); err != nil {
		return fault.Wrap(err, "make the journal of sandbox %s", id)
	}
	j, err := journal.Open(e.journalAt(id))
	if err != nil {
		return err
	}
	return errors.Join(j.Append(ev), j.Close())
}

// ruleList writes rules for people.
func ruleList(rules []policy.Rule) string {
	var out []string
	for _, r := range rules {
		out = append(out, r.String())
	}
	return strings.Join(out, " ")
}
