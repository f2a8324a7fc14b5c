//go:build linux

package grants

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// rows returns the grants of a sandbox with their current counts of uses and states. The caller holds the lock of the
// sandbox; the counts are stored.
func (c *Grants) rows(ctx context.Context, id timeline.SandboxID) ([]meta.Grant, error) {
	before, err := c.config.Store.Grants(ctx, id)
	if err != nil {
		return nil, err
	}
	now, err := c.counted(before)
	if err != nil {
		return nil, err
	}
	for i := range now {
		if now[i].Used == before[i].Used && now[i].State == before[i].State && now[i].Refused.Equal(before[i].Refused) {
			continue // the cursor alone is not worth a write
		}
		if err := c.config.Store.PutGrant(ctx, now[i]); err != nil {
			return nil, err
		}
	}
	return now, nil
}

// counted returns rows, all of one sandbox, with the uses that the gate has written to the journal since they were last
// counted. The gate writes a use before the request goes out, so that none is forgotten in a crash. If events were
// lost, a grant with a limited number of uses ends.
func (c *Grants) counted(rows []meta.Grant) ([]meta.Grant, error) {
	rows = slices.Clone(rows)
	for i := range rows {
		row := &rows[i]
		if row.State != wire.GrantLive {
			continue
		}
		var from journal.Cursor
		if row.Counted != nil {
			if err := json.Unmarshal(row.Counted, &from); err != nil {
				return nil, fault.New(fault.Corrupt, "record of grant %s", row.Name).Because(err)
			}
		}
		evs, next, lost, err := journal.From(c.config.Sandboxes.Journal(row.Sandbox), from)
		if err != nil {
			return nil, err
		}
		for _, ev := range evs {
			if !slices.Contains(ev.Grants, row.Name) || ev.Time.Before(row.Given) {
				continue
			}
			if ev.Kind == wire.NetDeny && ev.Status != 0 { // without one, the answer had the secret, which was removed
				row.Refused, row.RefusedWhy = ev.Time, ev.Reason
			}
			if ev.Kind != wire.NetHTTP {
				continue
			}
			row.Used += int64(max(1, ev.Count))
			if ev.Time.After(row.LastUsed) {
				row.LastUsed = ev.Time
			}
		}
		if row.Counted, err = json.Marshal(next); err != nil {
			return nil, err
		}
		g, err := terms(row.Name, row.Item, row.Given)
		if err != nil {
			return nil, err
		}
		switch {
		case g.Uses == 0:
		case row.Used >= g.Uses:
			row.State, row.Why = wire.GrantExhausted, "it has no uses left"
		case lost:
			row.State, row.Why = wire.GrantExhausted, "its uses could not be counted: the journal was full"
		}
	}
	return rows, nil
}
