//go:build linux

package egress

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// MaxTimed is the maximum number of temporary rules of a sandbox, and of rules that one request adds.
const MaxTimed = 100

// Allow changes the network rules of a sandbox, permanently or for some time, also for running processes. The change
// is in the ledger and in the journal before it is in force. If the keeper does not accept it, it is reverted.
func (c *Control) Allow(ctx context.Context, name string, req wire.AllowRequest) (wire.AllowResult, error) {
	by := "coppice net allow"
	if len(req.Deny)+len(req.RemoveDeny) > 0 && len(req.Allow)+len(req.RemoveAllow) == 0 {
		by += " --deny"
	}
	if removes(req) {
		by += " --remove"
	}
	res, err := c.addRules(ctx, name, req, by)
	return res.AllowResult, err
}

// addRules is Allow for the command named by. It also returns the pending requests that the change settled.
func (c *Control) addRules(
	ctx context.Context, name string, req wire.AllowRequest, by string,
) (res wire.AnswerResult, err error) {
	rules, err := rulesOf(req)
	if err != nil {
		return res, err
	}
	s, rec, err := c.config.Sandboxes.Acquire(ctx, name, "changing its rules")
	if err != nil {
		return res, err
	}
	defer s.Unlock()
	if s.Box() == nil { // with a box, the gate records it before it accepts the rules
		if err := c.RecordExpired(ctx, s.Proof(), &rec); err != nil {
			return res, err
		}
	}
	var next meta.Sandbox
	if removes(req) {
		next, rules, err = c.withoutRules(ctx, rec, req)
	} else {
		next, err = c.withRules(ctx, rec, req, rules)
	}
	if err != nil {
		return res, err
	}
	before, err := c.config.Policies.Phases(ctx, &rec)
	if err != nil {
		return res, err
	}
	after, err := c.config.Policies.Phases(ctx, &next)
	if err != nil {
		return res, err
	}
	warnings, err := stillSo(after[0], req)
	if err != nil {
		return res, err
	}
	// From here on, a client that disconnects does not cancel the change.
	ctx = context.WithoutCancel(ctx)
	ev := wire.NetEvent{Kind: wire.NetPolicy, Rule: ruleList(rules), Reason: by, Policy: after[0].Digest}
	var ends []time.Time
	if req.ForMS > 0 {
		ends = endsOf(&next, rules)
		ev.Reason += ", until " + stamp(slices.MinFunc(ends, time.Time.Compare))
	}
	statements, digest := c.policyRecords(ctx, req, ev, before[0].Digest, by, ends)
	next.PolicyRecord = digest
	drafts := c.config.Recorder.Drafts(ctx, &rec, statements...)
	var waited []wire.NetQuestion
	noted := false // the event is in the journal, which must then also record a revert
	err = c.config.Recorder.Do(ctx, drafts, func(ctx context.Context) (err error) {
		if err := c.NoteEvent(rec.ID, ev); err != nil {
			return err
		}
		noted, waited = true, questions(ctx, s)
		res.Live, err = c.putInForce(ctx, s, &rec, &next, before, after)
		return err
	})
	if err != nil && noted {
		back := wire.NetEvent{Kind: wire.NetPolicy, Reason: "undone: it could not be enforced",
			Policy: before[0].Digest}
		err = errors.Join(err, c.NoteEvent(rec.ID, back))
	}
	if err != nil {
		return res, err
	}
	res.Policy, res.Warnings, res.Settled = after[0].Digest, warnings, settled(waited, questions(ctx, s))
	if req.ForMS > 0 {
		first := slices.MinFunc(ends, time.Time.Compare)
		res.Until = &first
	}
	return res, nil
}

// policyRecords returns the records of a rule change with the event ev, and of the answers to pending requests if by is
// one of the commands for them. ends are the ends of the rules, in the order of the request; nil if they are permanent.
// digest is that of the record of the change.
func (c *Control) policyRecords(
	ctx context.Context, req wire.AllowRequest, ev wire.NetEvent, before, by string, ends []time.Time,
) (out []audit.Statement, digest string) {
	until := ""
	if ends != nil {
		until = stamp(slices.MinFunc(ends, time.Time.Compare))
	}
	clean := c.config.Cleaners.Formats()
	who := clean.RecordText(c.config.Caller(ctx))
	change := &format.Policy{
		After: ev.Policy, Before: before, By: who, Reason: clean.RecordText(by + ": " + ev.Rule), Until: until,
	}
	out, digest = audit.ByDaemon(change), audit.PolicyRecordDigest(change)
	if by != byApprove && by != byDeny {
		return out, digest
	}
	for i, list := range [][]string{req.Allow, req.Deny} {
		for _, rule := range list {
			if ends != nil {
				until, ends = stamp(ends[0]), ends[1:]
			}
			answer := []string{"allow", "deny"}[i]
			asked := &format.Approval{Answer: answer, By: who, Question: clean.RecordText(rule), Until: until}
			out = append(out, audit.ByDaemon(asked)...)
		}
	}
	return out, digest
}

// endsOf returns the ends of temporary rules that rec contains.
func endsOf(rec *meta.Sandbox, rules []policy.Rule) []time.Time {
	ends := make([]time.Time, len(rules))
	for i, r := range rules {
		for _, t := range rec.Timed {
			if t.Deny == r.Denies && t.Rule == r.String() {
				ends[i] = t.Until
			}
		}
	}
	return ends
}

// stamp formats a time as in records.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// rulesOf parses the rules that a request adds.
func rulesOf(req wire.AllowRequest) (rules []policy.Rule, err error) {
	if removes(req) {
		return nil, removable(req)
	}
	if n := len(req.Allow) + len(req.Deny); n == 0 || n > MaxTimed {
		return nil, fault.New(fault.Invalid, "invalid number of rules %d: out of range", n).WithHint("give 1 to %d rules, "+
			"for example example.com:443", MaxTimed)
	}
	if !limit.InLife(req.ForMS) {
		return nil, fault.New(fault.Invalid, "invalid rule duration %d ms: out of range", req.ForMS).
			WithHint("use a time between 1 ms and 100 years, or 0 for a permanent rule")
	}
	for i, list := range [][]string{req.Allow, req.Deny} {
		for _, text := range list {
			r, err := policy.ParseRule(text, i == 1)
			if err != nil {
				return nil, err
			}
			r.At = policies.Flag("coppice net allow")
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// withRules returns rec with more rules.
func (c *Control) withRules(
	ctx context.Context, rec meta.Sandbox, req wire.AllowRequest, rules []policy.Rule,
) (meta.Sandbox, error) {
	if !policies.Gated(&rec) {
		return rec, fault.New(fault.Unsupported, "sandbox %s has no gate: its tier is %s and its network %s", rec.Name,
			rec.Tier, rec.Net).
			WithHint("create one with rules: coppice create --from %s --net rules --allow %s", rec.Name, rules[0])
	}
	base, err := c.config.Policies.Placed(ctx, &rec)
	if err != nil {
		return rec, err
	}
	p, err := base.With(rules...)
	if err != nil {
		return rec, err
	}
	if rec.Tier == string(policy.Workspace) && p.Network.Inspects() {
		return rec, policies.NoInspection(rules[0].At)
	}
	next, now := rec, c.config.Now().UTC()
	next.Timed = policies.Timed(&rec, now)
	if req.ForMS == 0 {
		return next, policies.Pin(&next, p)
	}
	until := now.Add(time.Duration(req.ForMS) * time.Millisecond).Truncate(time.Millisecond)
	for _, r := range rules {
		// A caller who may only deny cannot shorten a deny rule.
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
	if len(next.Timed) > MaxTimed {
		return rec, fault.New(fault.Invalid, "too many temporary rules: %d; the limit is %d", len(next.Timed), MaxTimed).
			WithHint("omit --for, or wait until some have expired: coppice policy show %s", rec.Name)
	}
	return next, nil
}

// putInForce stores the rules of next, and puts them in force in the box of the sandbox, if it has one: then live is
// true. If the keeper does not accept them, both are reverted to the rules of rec.
func (c *Control) putInForce(
	ctx context.Context, s Held, rec, next *meta.Sandbox, before, after []policies.Phase,
) (live bool, err error) {
	record := func(from *meta.Sandbox) error {
		return c.config.Records.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error {
			r.Policy, r.PolicyText, r.Net, r.Timed = from.Policy, from.PolicyText, from.Net, from.Timed
			r.Origins, r.OriginsText, r.PolicyRecord = from.Origins, from.OriginsText, from.PolicyRecord
			return nil
		})
	}
	if err := record(next); err != nil {
		return false, err
	}
	c.config.EndTrial(rec.ID, "got other rules") // the fork has the rules of before
	b := s.Box()
	if b == nil {
		return false, nil
	}
	set := func(phases []policies.Phase) error {
		ctx, cancel := context.WithTimeout(ctx, PolicyPatience)
		defer cancel()
		return b.SetPolicy(ctx, phases)
	}
	if err = set(after); err == nil {
		return true, nil
	}
	if s.Box() == nil {
		return false, nil // the keeper has just exited; the next one starts with the stored rules
	}
	// It is unknown whether the keeper accepted the rules.
	old := *rec
	old.PolicyText = before[len(before)-1].Policy // the database may have dropped the text meanwhile
	return false, errors.Join(fault.Wrap(err, "change the rules of sandbox %s", rec.Name), set(before), record(&old))
}

// Renew puts the stored policy in force in a box that an earlier daemon started, because that daemon may have exited
// after it stored a policy and before it sent it to the keeper. An error is logged.
func (c *Control) Renew(ctx context.Context, rec *meta.Sandbox, b Box) {
	if !policies.Gated(rec) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), PolicyPatience)
	defer cancel()
	phases, err := c.config.Policies.Phases(ctx, rec)
	if err == nil {
		err = b.SetPolicy(ctx, phases)
	}
	if err != nil && !fault.Is(err, fault.Unavailable) { // the keeper or its gate has just exited
		c.config.Log.Error("could not update the policy of a running sandbox; it may enforce an older "+
			"one", "sandbox", rec.ID, "err", err)
	}
}

// NoteEvent appends an event to the journal of a sandbox, with the current time.
func (c *Control) NoteEvent(id timeline.SandboxID, ev wire.NetEvent) error {
	ev.Time = c.config.Now().UTC()
	at := c.config.Sandboxes.Journal(id)
	if err := vfs.MkdirAll(c.config.FS, at.Dir); err != nil {
		return fault.Wrap(err, "create the journal of sandbox %s", id)
	}
	j, err := journal.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(j.Append(ev), j.Close())
}

// ruleList formats rules as one line of text.
func ruleList(rules []policy.Rule) string {
	var out []string
	for _, r := range rules {
		out = append(out, r.String())
	}
	return strings.Join(out, " ")
}
