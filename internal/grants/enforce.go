//go:build linux

package grants

import (
	"context"
	"encoding/json"
	"io"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/ledger"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secret/client"
	"github.com/coppice-dev/coppice/internal/timeline"
)

type draft = ledger.Draft

// enforce registers the live grants of rows with the broker, and passes rows to the box of the sandbox. Both are tried
// even if one fails. A sandbox without a box has no registration: its next start makes one. answers settle pending
// requests.
func (c *Grants) enforce(
	ctx context.Context, s Held, rec *meta.Sandbox, rows []meta.Grant, answers ...plan.Answer,
) (broker, box error) {
	b := s.Box()
	if b == nil {
		return nil, nil
	}
	secrets, r, err := c.prepare(ctx, rec, rows)
	if err != nil {
		return err, b.SetSecrets(ctx, plan.Secrets{}) // nothing passes that depends on them
	}
	secrets.Answers = answers
	broker = c.register(ctx, r)
	ctx, cancel := context.WithTimeout(ctx, boxPatience)
	defer cancel()
	return broker, b.SetSecrets(ctx, secrets)
}

// register registers a sandbox with the broker.
func (c *Grants) register(ctx context.Context, r client.Registration) error {
	ctx, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	if len(r.Grants) == 0 {
		return c.config.Broker.Withdraw(ctx, r.Sandbox)
	}
	return c.config.Broker.Register(ctx, r)
}

// prepare returns rows, the grants of a sandbox, for the gate, and the live ones for the broker.
func (c *Grants) prepare(
	ctx context.Context, rec *meta.Sandbox, rows []meta.Grant,
) (s plan.Secrets, r client.Registration, err error) {
	ticket, err := c.ticket(ctx, rec.ID)
	if err != nil {
		return s, r, err
	}
	s = plan.Secrets{Later: rec.GrantsLater, Socket: c.config.Socket, Ticket: ticket}
	r = client.Registration{Sandbox: string(rec.ID), Ticket: ticket, Grants: []client.Granted{}}
	for _, row := range rows {
		is, err := issued(row)
		if err != nil {
			return s, r, err
		}
		s.Grants = append(s.Grants, plan.Grant{Name: row.Name, Item: row.Item, Kind: row.Kind,
			Placeholder: row.Placeholder, Aliases: row.Aliases, Revoked: is.Revoked, Given: row.Given, Used: row.Used,
			Approved: row.Approved})
		if is.Revoked {
			continue
		}
		r.Grants = append(r.Grants, client.Granted{Name: row.Name, Secret: row.Secret, Hosts: hosts(is.Grant),
			Until: row.Until, User: is.SSHUser()})
		if row.Placeholder != "" {
			s.Env = append(s.Env, is.Kind.Variables(is.Env, row.Placeholder)...)
		}
	}
	return s, r, nil
}

// ticketBytes is the length of a ticket.
const ticketBytes = 32

// ticket returns the ticket of a sandbox, which stays the same while the sandbox exists.
func (c *Grants) ticket(ctx context.Context, id timeline.SandboxID) ([]byte, error) {
	fresh := make([]byte, ticketBytes)
	if _, err := io.ReadFull(c.config.Rand, fresh); err != nil {
		return nil, fault.Wrap(err, "make a ticket")
	}
	return c.config.Store.Ticket(ctx, id, fresh)
}

// end returns the end of a sandbox's journal, from which the uses of a new grant are counted.
func (c *Grants) end(id timeline.SandboxID) (json.RawMessage, error) {
	_, next, _, err := journal.From(c.config.Sandboxes.Journal(id), journal.Cursor{})
	if err != nil {
		return nil, err
	}
	return json.Marshal(next)
}

// Starting returns the grants for a box that is about to start, and registers them. The caller holds the lock of the
// sandbox, and calls Withdraw when the box has ended or did not start. A box starts without a broker: its requests with
// a placeholder are refused until Watch finds one.
func (c *Grants) Starting(ctx context.Context, rec *meta.Sandbox) (plan.Secrets, error) {
	s := plan.Secrets{Later: rec.GrantsLater}
	if able(rec) != nil { // no gate of it could have them
		return plan.Secrets{}, nil //nolint:nilerr // Give has refused every grant
	}
	rows, err := c.rows(ctx, rec.ID)
	if err != nil || len(rows) == 0 {
		return s, err
	}
	if rows, err = c.expired(ctx, unstarted{}, rec, rows); err != nil {
		return s, err
	}
	s, r, err := c.prepare(ctx, rec, rows)
	if err != nil || len(r.Grants) == 0 {
		return s, err
	}
	err = c.register(ctx, r)
	c.note(rec.ID, err == nil)
	if err != nil {
		c.config.Log.Warn("requests that need a secret are refused until the broker has the grants of the sandbox",
			"sandbox", rec.Name, "err", err)
	}
	return s, nil
}

// unstarted is a Held of a sandbox without a box, whose lock is held by another.
type unstarted struct{}

func (unstarted) Box() Box { return nil }
func (unstarted) Unlock()  {}

// Withdraw ends the registration of a sandbox whose box has ended. The caller holds the lock of the sandbox.
func (c *Grants) Withdraw(ctx context.Context, id timeline.SandboxID) {
	c.mu.Lock()
	_, is := c.registered[id]
	c.mu.Unlock()
	if !is {
		return
	}
	c.forget(id)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), brokerPatience)
	defer cancel()
	err := c.config.Broker.Withdraw(ctx, string(id))
	if err != nil && !fault.Is(err, fault.Unavailable) { // a broker that has exited has no registrations
		c.config.Log.Warn("could not withdraw the grants of a stopped sandbox; its gate has exited",
			"sandbox", id, "err", err)
	}
}
