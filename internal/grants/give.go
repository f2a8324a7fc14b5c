//go:build linux

package grants

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/grant"
	"github.com/coppice-dev/coppice/internal/ledger/format"
	"github.com/coppice-dev/coppice/internal/meta"
)

// maxGrants is the maximum number of grants of a sandbox, and maxAliases that of further placeholders of one.
const (
	maxGrants  = 100
	maxAliases = 8
)

// ListGrants returns the grants of a sandbox, by name, including those that are no longer live.
func (c *Grants) ListGrants(ctx context.Context, name string) (res wire.GrantsResult, err error) {
	res.Grants = []wire.Grant{}
	rec, err := c.config.Store.Sandbox(ctx, name)
	if err != nil {
		return res, err
	}
	rows, err := c.config.Store.Grants(ctx, rec.ID)
	if err == nil {
		rows, err = c.counted(rows)
	}
	if err != nil {
		return res, err
	}
	for _, row := range rows {
		if due(row, c.config.Now()) {
			row.State, row.Why = wire.GrantExpired, whyExpired
		}
		w, err := shown(row)
		if err != nil {
			return res, err
		}
		res.Grants = append(res.Grants, w)
	}
	return res, nil
}

// GiveGrant gives a sandbox a grant, or replaces its grant of that name. It is in force when GiveGrant returns; if the
// broker or the gate does not accept it, GiveGrant fails, and the grants are as before.
func (c *Grants) GiveGrant(ctx context.Context, name, as string, spec wire.GrantSpec) (wire.Grant, error) {
	item, g, err := parse(as, spec, c.config.Now())
	if err != nil {
		return wire.Grant{}, err
	}
	rec, err := c.config.Store.Sandbox(ctx, name)
	if err == nil {
		err = able(&rec)
	}
	if err != nil {
		return wire.Grant{}, err
	}
	shape, err := c.config.Broker.Shape(ctx, g.Secret) // before the lock: the store may ask its user
	if err != nil {
		return wire.Grant{}, err
	}
	if err := fits(g, shape); err != nil {
		return wire.Grant{}, err
	}
	s, rec, err := c.config.Sandboxes.Acquire(ctx, name, "changing its grants")
	if err != nil {
		return wire.Grant{}, err
	}
	defer s.Unlock()
	before, err := c.rows(ctx, rec.ID)
	if err != nil {
		return wire.Grant{}, err
	}
	row := meta.Grant{Sandbox: rec.ID, Name: as, Secret: g.Secret, State: wire.GrantLive, Until: g.Until,
		GrantBody: meta.GrantBody{Item: item, Given: c.config.Now().UTC(), Kind: string(shape.Kind)}}
	if err := c.place(&row, g.Mode, shape, before); err != nil {
		return wire.Grant{}, err
	}
	if row.Counted, err = c.end(rec.ID); err != nil {
		return wire.Grant{}, err
	}
	after := with(before, row)
	if len(after) > maxGrants {
		return wire.Grant{}, fault.New(fault.Invalid, "too many grants: %d; the limit is %d", len(after), maxGrants).
			WithHint("see those that the sandbox has: coppice grants %s", rec.Name)
	}
	if err := compatible(&rec, after); err != nil {
		return wire.Grant{}, err
	}
	// From here on, a client that disconnects does not cancel the change.
	ctx = context.WithoutCancel(ctx)
	err = c.config.Recorder.Do(ctx, c.drafts(ctx, &rec, "given", row), func(ctx context.Context) error {
		return c.replace(ctx, s, &rec, before, after, row)
	})
	if err != nil {
		return wire.Grant{}, err
	}
	return shown(row)
}

// fits returns why a secret of a shape cannot be at the sites of a grant; nil if it can.
func fits(g grant.Grant, shape grant.Shape) error {
	switch key := shape.Kind == grant.SSH; {
	case key && g.SSHUser() == "":
		return fault.New(fault.Invalid, "grant %s: secret %s is a private key of SSH, which no request can carry", g.Name,
			g.Secret).WithHint("use site ssh: --ssh")
	case !key && g.SSHUser() != "":
		return fault.New(fault.Invalid, "grant %s: secret %s is not a private key of SSH", g.Name, g.Secret).
			WithHint("store one: coppice secret set %s --kind ssh < ~/.ssh/id_ed25519", g.Secret)
	}
	return nil
}

// place sets the placeholder of a grant that is about to be given. The placeholders of an earlier grant of that name
// become aliases, since processes may have them.
func (c *Grants) place(row *meta.Grant, mode grant.Mode, shape grant.Shape, before []meta.Grant) (err error) {
	i := slices.IndexFunc(before, func(o meta.Grant) bool { return o.Name == row.Name })
	if i >= 0 {
		if row.Epoch = before[i].Epoch; before[i].State != wire.GrantLive {
			row.Epoch++
		}
	}
	if mode == grant.ModeAdd {
		return nil
	}
	row.Placeholder, err = grant.Placeholder(c.config.Key, string(row.Sandbox), row.Name, row.Epoch, shape)
	if err != nil || i < 0 || before[i].Kind != row.Kind {
		return err
	}
	row.Aliases = aliases(before[i], row.Placeholder)
	return nil
}

// aliases returns the placeholders of a grant, the newest first, without now, which replaces them.
func aliases(old meta.Grant, now string) []string {
	all := append([]string{old.Placeholder}, old.Aliases...)
	all = slices.DeleteFunc(all, func(p string) bool { return p == "" || p == now })
	return all[:min(len(all), maxAliases)]
}

// with returns rows with row, in place of one with the same name.
func with(rows []meta.Grant, row meta.Grant) []meta.Grant {
	rows = slices.DeleteFunc(slices.Clone(rows), func(o meta.Grant) bool { return o.Name == row.Name })
	return append(rows, row)
}

// compatible returns an error if grants cannot be decided together.
func compatible(rec *meta.Sandbox, rows []meta.Grant) error {
	all := make([]grant.Issued, len(rows))
	for i, row := range rows {
		var err error
		if all[i], err = issued(row); err != nil {
			return err
		}
	}
	_, err := grant.NewSet(rec.Name, all)
	return err
}

// replace stores row, which is in after and perhaps not in before, and puts after in force. If that fails, before is in
// force again.
func (c *Grants) replace(ctx context.Context, s Held, rec *meta.Sandbox, before, after []meta.Grant,
	row meta.Grant) error {
	if err := c.config.Store.PutGrant(ctx, row); err != nil {
		return err
	}
	err := errors.Join(c.enforce(ctx, s, rec, after))
	if s.Box() == nil { // perhaps the keeper has just exited; the next one starts with the stored grants
		c.look()
		return nil
	}
	if err == nil {
		c.note(rec.ID, true)
		return nil
	}
	err = fault.Wrap(err, "give sandbox %s grant %s", rec.Name, row.Name)
	i := slices.IndexFunc(before, func(o meta.Grant) bool { return o.Name == row.Name })
	if i < 0 {
		err = errors.Join(err, c.config.Store.DropGrant(ctx, rec.ID, row.Name))
	} else {
		err = errors.Join(err, c.config.Store.PutGrant(ctx, before[i]))
	}
	broker, box := c.enforce(ctx, s, rec, before)
	c.note(rec.ID, broker == nil && box == nil)
	return err
}

// RevokeGrant revokes a grant. When it returns, no request carries its secret.
func (c *Grants) RevokeGrant(ctx context.Context, name, as string) error {
	s, rec, err := c.config.Sandboxes.Acquire(ctx, name, "changing its grants")
	if err != nil {
		return err
	}
	defer s.Unlock()
	rows, err := c.rows(ctx, rec.ID)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(rows, func(o meta.Grant) bool { return o.Name == as })
	if i < 0 {
		return fault.New(fault.NotFound, "sandbox %s has no grant %q", rec.Name, as).
			WithHint("see those that it has: coppice grants %s", rec.Name)
	}
	if rows[i].State != wire.GrantLive {
		return nil
	}
	return c.finish(context.WithoutCancel(ctx), s, &rec, rows, as, wire.GrantRevoked, "")
}

// finish records that a live grant ends, stores that, and puts it in force. A broker that does not run has no value to
// give, and a keeper or gate that does not answer lets nothing pass.
func (c *Grants) finish(
	ctx context.Context, s Held, rec *meta.Sandbox, rows []meta.Grant, as, state, why string,
) error {
	i := slices.IndexFunc(rows, func(o meta.Grant) bool { return o.Name == as })
	rows[i].State, rows[i].Why = state, why
	return c.config.Recorder.Do(ctx, c.drafts(ctx, rec, state, rows[i]), func(ctx context.Context) error {
		if err := c.config.Store.PutGrant(ctx, rows[i]); err != nil {
			return err
		}
		broker, box := c.enforce(ctx, s, rec, rows)
		if s.Box() != nil {
			c.note(rec.ID, broker == nil && box == nil)
		}
		if fault.Is(box, fault.Unavailable) {
			box = nil
		}
		if fault.Is(broker, fault.Unavailable) {
			broker = nil
		}
		return errors.Join(broker, box)
	})
}

// drafts returns the record of an event of a grant.
func (c *Grants) drafts(ctx context.Context, rec *meta.Sandbox, event string, row meta.Grant) []draft {
	body := &format.Grant{Event: event, Grant: row.Name}
	if !row.Until.IsZero() {
		body.Until = row.Until.UTC().Format(time.RFC3339)
	}
	return c.config.Recorder.Drafts(ctx, rec, audit.ByDaemon(body)...)
}
