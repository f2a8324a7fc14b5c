//go:build linux

package engine

import (
	"context"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// Phase is a policy that holds until Until; zero is for ever.
type Phase struct {
	Policy string // as package policy writes it
	Digest string
	Until  time.Time
}

// pin makes p the policy that a record names, once it is written.
func pin(rec *meta.Sandbox, p policy.Policy) error {
	text, err := p.Canonical()
	if err != nil {
		return fault.Wrap(err, "write the policy")
	}
	// What could not be read again would never let the sandbox start.
	if _, err := policy.ParseCanonical(text); err != nil {
		return fault.New(fault.Invalid, "the policy cannot be kept").Because(err).WithHint("look for characters that cannot be seen, and for a very long --env")
	}
	rec.Policy, rec.PolicyText, rec.Net = policy.DigestOf(text), string(text), string(p.Network.Mode)
	if rec.OriginsText, err = p.Origins(); err != nil {
		return err
	}
	rec.Origins = ""
	if rec.OriginsText != "" {
		rec.Origins = policy.DigestOf([]byte(rec.OriginsText))
	}
	return nil
}

// policyText gives the policy that a record names, as it was written.
func (e *Engine) policyText(ctx context.Context, rec *meta.Sandbox) (string, error) {
	if rec.PolicyText != "" {
		return rec.PolicyText, nil // it is about to be written
	}
	if rec.Policy == "" {
		old := *rec
		if err := pinOld(&old); err != nil {
			return "", fault.Wrap(err, "find the policy of sandbox %s", rec.Name)
		}
		return old.PolicyText, nil
	}
	text, err := e.DB.Policy(ctx, rec.Policy)
	switch {
	case err != nil:
		return "", fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
	case policy.DigestOf([]byte(text)) != rec.Policy:
		return "", fault.New(fault.Corrupt, "the policy of sandbox %s is damaged: it is not %s", rec.Name, rec.Policy).
			WithHint("make another one of its files: coppice create --from %s", rec.Name)
	}
	return text, nil
}

// pinOld gives a record of before there were policies the one that it comes to.
func pinOld(rec *meta.Sandbox) error {
	d, err := flagsDocument(wire.CreateRequest{Tier: rec.Tier, Net: rec.Net, Env: rec.Env, Limits: policy.Limits{
		MemoryBytes: rec.Limits.Memory, PIDs: rec.Limits.Pids, DiskBytes: rec.Limits.Disk}.String()})
	if err != nil {
		return err
	}
	p, err := policy.Merge(policy.Layer{Level: policy.Flags, Document: d})
	if err != nil {
		return err
	}
	return pin(rec, p)
}

// policyOf gives the policy of a sandbox, without rules that hold for a time.
func (e *Engine) policyOf(ctx context.Context, rec *meta.Sandbox) (policy.Policy, error) {
	text, err := e.policyText(ctx, rec)
	if err != nil {
		return policy.Policy{}, err
	}
	p, err := policy.ParseCanonical([]byte(text))
	return p, fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
}

// placedPolicy is policyOf with what is known of who said what.
func (e *Engine) placedPolicy(ctx context.Context, rec *meta.Sandbox) (policy.Policy, error) {
	p, err := e.policyOf(ctx, rec)
	if err != nil {
		return p, err
	}
	return e.placed(ctx, rec, p), nil
}

// placed gives the policy of a sandbox with what is known of who said what. That is for
// people: where it is lost or damaged, nothing else is wanting.
func (e *Engine) placed(ctx context.Context, rec *meta.Sandbox, p policy.Policy) policy.Policy {
	text := rec.OriginsText
	if text == "" && rec.Origins != "" {
		var err error
		if text, err = e.DB.Policy(ctx, rec.Origins); err != nil || policy.DigestOf([]byte(text)) != rec.Origins {
			e.Logger.Warn("who said what of a policy is lost", "sandbox", rec.Name, "err", err)
			return p
		}
	}
	out, err := p.Placed(text)
	if err != nil {
		e.Logger.Warn("who said what of a policy is lost", "sandbox", rec.Name, "err", err)
	}
	return out
}

// inForce gives the policy that a sandbox keeps to now, and what comes after it.
func (e *Engine) inForce(ctx context.Context, rec *meta.Sandbox) (p policy.Policy, all []Phase, err error) {
	if all, err = e.phases(ctx, rec); err != nil {
		return p, nil, err
	}
	if p, err = policy.ParseCanonical([]byte(all[0].Policy)); err != nil {
		return p, nil, fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
	}
	p = e.placed(ctx, rec, p)
	for _, t := range timed(rec, e.Now()) {
		p = p.Unplaced(t.Rule, t.Deny, policy.Origin{Source: "coppice allow, until " + t.Until.UTC().Format(time.RFC3339)})
	}
	return p, all, nil
}

// timed gives the rules of a record that hold at now, the first to end first.
func timed(rec *meta.Sandbox, now time.Time) []meta.TimedRule {
	left := slices.DeleteFunc(slices.Clone(rec.Timed), func(t meta.TimedRule) bool { return !t.Until.After(now) })
	slices.SortStableFunc(left, func(a, b meta.TimedRule) int { return a.Until.Compare(b.Until) })
	return left
}

// phases gives the policies of a sandbox from now on. The last one is for ever.
func (e *Engine) phases(ctx context.Context, rec *meta.Sandbox) ([]Phase, error) {
	text, err := e.policyText(ctx, rec)
	if err != nil {
		return nil, err
	}
	last := Phase{Policy: text, Digest: policy.DigestOf([]byte(text))}
	left := timed(rec, e.Now())
	if len(left) == 0 {
		return []Phase{last}, nil
	}
	base, err := policy.ParseCanonical([]byte(text))
	if err != nil {
		return nil, fault.Wrap(err, "read the policy of sandbox %s", rec.Name)
	}
	rules := make([]policy.Rule, len(left))
	for i, t := range left {
		if rules[i], err = policy.ParseRule(t.Rule, t.Deny); err != nil {
			return nil, fault.New(fault.Corrupt, "a rule of sandbox %s that holds for a time", rec.Name).Because(err)
		}
	}
	var out []Phase
	for i, t := range left {
		if i > 0 && t.Until.Equal(left[i-1].Until) {
			continue
		}
		p, err := base.With(rules[i:]...)
		if err != nil {
			return nil, err
		}
		one := *rec
		if err := pin(&one, p); err != nil {
			return nil, err
		}
		out = append(out, Phase{Policy: one.PolicyText, Digest: one.Policy, Until: t.Until})
	}
	return append(out, last), nil
}

// confine gives what a box is started with to keep to the policy of its sandbox. It
// refuses a policy that is damaged, whatever the tier. journal is the directory for what is
// told, "" in tier workspace.
func (e *Engine) confine(ctx context.Context, rec *meta.Sandbox) (phases []Phase, journal string, err error) {
	switch {
	case gated(rec.Tier):
		phases, err = e.phases(ctx, rec)
	case rec.Policy != "":
		_, err = e.policyText(ctx, rec)
	}
	if err != nil || rec.Tier == tierWorkspace {
		return nil, "", err
	}
	journal = e.journalDir(rec.ID)
	if err := vfs.MkdirAll(e.FS, journal); err != nil {
		return nil, "", fault.Wrap(err, "make the journal of sandbox %s", rec.Name)
	}
	return phases, journal, nil
}

// Policy tells the policy that a sandbox has now.
func (e *Engine) Policy(ctx context.Context, name string) (res wire.PolicyResult, err error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	p, all, err := e.inForce(ctx, &rec)
	if err != nil {
		return res, err
	}
	now := all[0]
	res = wire.PolicyResult{Digest: now.Digest, Text: now.Policy}
	for _, l := range policy.Explain(p) {
		res.Lines = append(res.Lines, wire.PolicyLine(l))
	}
	for _, t := range timed(&rec, e.Now()) {
		res.Timed = append(res.Timed, wire.TimedRule(t))
	}
	if !now.Until.IsZero() {
		res.Until, res.Base = &now.Until, all[len(all)-1].Digest
	}
	return res, nil
}
