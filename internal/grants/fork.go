//go:build linux

package grants

import (
	"context"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/meta"
)

// CheckFork refuses an unknown wire.ForkRequest.Grants.
func CheckFork(mode string) error {
	if slices.Contains([]string{"", string(grant.ForkNone), string(grant.ForkReissue)}, mode) {
		return nil
	}
	return fault.New(fault.Invalid, "invalid grants of a fork %q: must be none or reissue", mode).
		WithHint("see: coppice fork --help")
}

// ForkGrants issues the live grants of a sandbox again for forks that were just created: those with fork "reissue" if
// mode is "", all if it is "reissue", or none. They have the same end, and the uses that are left. The placeholders of
// the parent become aliases; those of the other grants are refused, with a hint. The warnings for each fork name what
// it does not have. Until ForkGrants returns, the forks have no grants.
func (c *Grants) ForkGrants(ctx context.Context, parent *meta.Sandbox, forks []meta.Sandbox, mode string) [][]string {
	warnings := make([][]string, len(forks))
	rows, err := c.config.Store.Grants(ctx, parent.ID)
	if err == nil {
		rows, err = c.counted(rows)
	}
	for i := range forks {
		if err != nil {
			warnings[i] = []string{"it has no grants: " + err.Error()}
			continue
		}
		warnings[i] = c.fork(ctx, parent.Name, &forks[i], rows, mode)
	}
	return warnings
}

// fork issues rows, the grants of a sandbox named parent, again for one fork.
func (c *Grants) fork(
	ctx context.Context, parent string, child *meta.Sandbox, rows []meta.Grant, mode string,
) (warnings []string) {
	var left []string
	for _, row := range rows {
		if row.State != wire.GrantLive || due(row, c.config.Now()) {
			continue
		}
		given, err := c.reissue(ctx, child, row, mode)
		if err != nil {
			warnings = append(warnings, "it does not have grant "+row.Name+": "+err.Error())
		} else if !given {
			left = append(left, row.Name)
		}
	}
	if len(left) > 0 {
		warnings = append(warnings, "it does not have the grants of "+parent+": "+strings.Join(left, ", ")+
			"; to give it one: coppice grant "+child.Name+" "+left[0])
	}
	return warnings
}

// reissue gives a fork a grant of its parent, or stores that the placeholder is to be refused.
func (c *Grants) reissue(
	ctx context.Context, child *meta.Sandbox, row meta.Grant, mode string,
) (given bool, err error) {
	is, err := issued(row)
	if err != nil {
		return false, err
	}
	old := row
	row.Sandbox, row.Epoch, row.Counted, row.Approved = child.ID, 0, nil, nil
	if able(child) != nil || mode == string(grant.ForkNone) || mode == "" && is.Fork != grant.ForkReissue {
		row.State, row.Why = wire.GrantRevoked, "a fork does not have this grant of its source"
		return false, c.config.Store.PutGrant(ctx, row)
	}
	if old.Placeholder != "" {
		shape := grant.KindOf(old.Placeholder)
		if row.Placeholder, err = grant.Placeholder(c.config.Key, string(child.ID), row.Name, 0, shape); err != nil {
			return false, err
		}
		row.Aliases = aliases(old, row.Placeholder)
	}
	err = c.config.Recorder.Do(ctx, c.drafts(ctx, child, "reissued", row), func(ctx context.Context) error {
		return c.config.Store.PutGrant(ctx, row)
	})
	return err == nil, err
}
