//go:build linux

package grants

import (
	"context"
	"errors"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/meta"
)

// Removing revokes the live grants of a sandbox that is about to be removed, so that the audit log has their end. Its
// box has ended, and the caller holds its lock. Grants that cannot be read do not prevent the removal: no box can have
// them any more.
func (c *Grants) Removing(ctx context.Context, rec *meta.Sandbox) error {
	rows, err := c.rows(ctx, rec.ID)
	if err != nil {
		c.config.Log.Warn("could not read the grants of a sandbox that is being removed", "sandbox", rec.ID, "err", err)
		return nil
	}
	for _, row := range rows {
		if row.State == wire.GrantLive {
			err = errors.Join(err,
				c.finish(ctx, unstarted{}, rec, rows, row.Name, wire.GrantRevoked, "the sandbox was removed"))
		}
	}
	return err
}
