//go:build linux

package engine

import (
	"context"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
)

// keepProtections stores, for all later starts, what a box that has just started enforces, and what its start found
// out about the host. The box counts as started only if this succeeds.
func (e *Engine) keepProtections(ctx context.Context, rec *meta.Sandbox, enforced Enforced) error {
	known, err := e.DB.AddFindings(ctx, enforced.Found)
	if err != nil {
		return fault.Wrap(err, "start sandbox %s", rec.Name)
	}
	// The keeper has compared only with the findings that were known when the start began.
	if missed := missedMeanwhile(known, enforced.Found); len(missed) > 0 {
		return fault.New(fault.Unsupported,
			"cannot start sandbox %s: it lacks protections that another sandbox of this home has: %s", rec.Name,
			strings.Join(missed, ", ")).
			WithHint("try again: coppice start %s", rec.Name)
	}
	required := union(rec.Required, enforced.Protections)
	if slices.Equal(enforced.Items, rec.Enforced) && len(required) == len(rec.Required) {
		return nil
	}
	rec.Enforced, rec.Required = enforced.Items, required
	return e.DB.UpdateSandbox(ctx, rec.ID, func(r *meta.Sandbox) error {
		r.Enforced, r.Required = enforced.Items, required
		return nil
	})
}

// missedMeanwhile returns the protections that found lacks and known has.
func missedMeanwhile(known, found []meta.Finding) (missed []string) {
	for _, f := range found {
		if f.Lacks != "" &&
			slices.ContainsFunc(known,
				func(k meta.Finding) bool { return k.Protection == f.Protection && k.On == f.On && k.Lacks == "" }) {
			missed = append(missed, findingName(f))
		}
	}
	return missed
}

func findingName(f meta.Finding) string {
	if f.On == "" {
		return f.Protection
	}
	return f.Protection + " on " + f.On
}

// probed returns findings as items of a probe: the protections that sandboxes of this home have, and those that they
// lack.
func (e *Engine) probed(known []meta.Finding) (items []wire.ProbeItem) {
	for _, f := range known {
		item := wire.ProbeItem{Group: "home", Name: findingName(f), OK: f.Lacks == "",
			Detail: "enforced for earlier sandboxes; none starts without it"}
		if !item.OK {
			item.Detail = "sandboxes start without it: " + f.Lacks + " (found with Linux " + f.Kernel + ")"
			item.Remedy = "give the daemon " + e.Boxes.Needs(f.Protection)
		}
		items = append(items, item)
	}
	return items
}

// union returns a with the elements of b that it lacks.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, name := range b {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
