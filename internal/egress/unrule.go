//go:build linux

package egress

import (
	"context"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
)

// removes reports whether a request removes rules.
func removes(req wire.AllowRequest) bool { return len(req.RemoveAllow)+len(req.RemoveDeny) > 0 }

// removable validates a request that removes rules.
func removable(req wire.AllowRequest) error {
	switch n := len(req.RemoveAllow) + len(req.RemoveDeny); {
	case len(req.Allow)+len(req.Deny) > 0:
		return fault.New(fault.Invalid, "cannot add and remove rules in one request").WithHint("send two requests")
	case req.ForMS != 0:
		return fault.New(fault.Invalid, "cannot remove rules for a limited time").
			WithHint("omit --for; to add them again for a time: coppice net allow NAME RULE --for 10m")
	case n > MaxTimed:
		return fault.New(fault.Invalid, "invalid number of rules %d: out of range", n).WithHint("give 1 to %d rules, for "+
			"example example.com:443", MaxTimed)
	}
	return nil
}

// withoutRules returns a record without the rules that a request removes, permanent or temporary, and those rules.
func (c *Control) withoutRules(
	ctx context.Context, rec meta.Sandbox, req wire.AllowRequest,
) (next meta.Sandbox, removed []policy.Rule, err error) {
	base, err := c.config.Policies.Placed(ctx, &rec)
	if err != nil {
		return rec, nil, err
	}
	next = rec
	next.Timed = policies.Timed(&rec, c.config.Now())
	lists := [][]string{slices.Clone(req.RemoveAllow), slices.Clone(req.RemoveDeny)}
	for i, list := range lists {
		var forGood []string
		for _, text := range list {
			r, err := policy.ParseRule(text, i == 1)
			before := len(next.Timed)
			if err == nil {
				next.Timed = slices.DeleteFunc(next.Timed,
					func(t meta.TimedRule) bool { return t.Deny == r.Denies && t.Rule == r.String() })
			}
			// A temporary rule may also exist as a permanent one: remove both.
			if len(next.Timed) != before {
				removed = append(removed, r)
				if _, _, err := base.Without(only(i == 0, text), only(i == 1, text)); fault.Is(err, fault.NotFound) {
					continue
				}
			}
			forGood = append(forGood, text)
		}
		lists[i] = forGood
	}
	p, gone, err := base.Without(lists[0], lists[1])
	if err != nil {
		return rec, nil, err
	}
	for _, r := range gone {
		if !slices.ContainsFunc(removed,
			func(one policy.Rule) bool { return one.Denies == r.Denies && one.String() == r.String() }) {
			removed = append(removed, r)
		}
	}
	if len(gone) == 0 {
		return next, removed, nil
	}
	return next, removed, policies.Pin(&next, p)
}

// only returns a list with text, or an empty one.
func only(yes bool, text string) []string {
	if yes {
		return []string{text}
	}
	return nil
}

// stillSo returns warnings about destinations for which a request changes nothing: they are allowed but stay denied, or
// another rule decides the same as the removed one.
func stillSo(now policies.Phase, req wire.AllowRequest) (warnings []string, err error) {
	p, err := policy.ParseCanonical([]byte(now.Policy))
	if err != nil {
		return nil, fault.Wrap(err, "parse the new policy")
	}
	look := func(list []string, unwanted bool) {
		for _, text := range list {
			// A private rule is about private addresses of its destination, which only private rules allow.
			network := p.Network
			place, private := strings.CutSuffix(text, policy.PrivateSuffix)
			if private {
				network = network.Privately()
			}
			q, err := policy.ParseRequest(place)
			if err != nil {
				continue // more than one destination, or none
			}
			d := network.Decide(q)
			if place = q.String(); private {
				place += " at private addresses"
			}
			passes := d.Verdict == policy.Allow || d.Verdict == policy.Inspect
			switch {
			case passes != unwanted:
			case passes:
				warnings = append(warnings, place+" stays allowed: by "+d.Rule.String())
			default:
				warnings = append(warnings, place+" stays denied: "+d.Reason)
			}
		}
	}
	look(req.Allow, false)
	look(req.RemoveAllow, true)
	look(req.RemoveDeny, false)
	return warnings, nil
}
