package meta

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// forGrant is the purpose of the encrypted parts of grants, and forTicket that of tickets.
const (
	forGrant  = "grant"
	forTicket = "ticket"
)

// Grant is the record of a grant. It never contains a secret. Its user defines the meaning of Item and State.
type Grant struct {
	Sandbox timeline.SandboxID
	Name    string
	Secret  string // name of the secret
	State   string
	Until   time.Time // zero is never
	Used    int64
	GrantBody
}

// GrantBody is the part of a Grant that is encrypted.
type GrantBody struct {
	Item        json.RawMessage `json:"item"`
	Kind        string          `json:"kind,omitempty"` // of the placeholder's shape
	Placeholder string          `json:"placeholder,omitempty"`
	Aliases     []string        `json:"aliases,omitempty"`
	Epoch       uint32          `json:"epoch,omitempty"`
	Given       time.Time       `json:"given"`
	LastUsed    time.Time       `json:"last_used,omitzero"`
	Why         string          `json:"why,omitempty"`      // reason of the State
	Approved    []string        `json:"approved,omitempty"` // hosts to which the owner has approved uses
	Refused     time.Time       `json:"refused,omitzero"`   // the last refusal, and its reason
	RefusedWhy  string          `json:"refused_why,omitempty"`
	Counted     json.RawMessage `json:"counted,omitempty"` // up to where the journal was read for Used
}

const grantCols = "sandbox,name,secret,state,until,used,body"

// PutGrant stores a grant, in place of an earlier one of the sandbox with the same name. It returns NotFound if the
// sandbox does not exist.
func (d *DB) PutGrant(ctx context.Context, g Grant) error {
	b, err := json.Marshal(g.GrantBody)
	if err != nil {
		return err
	}
	body, err := d.key.Seal(forGrant, b)
	if err != nil {
		return err
	}
	return d.tx(ctx, func(t *tx) error {
		n := t.exec("INSERT INTO grants("+grantCols+") SELECT id,?2,?3,?4,?5,?6,?7 FROM sandboxes WHERE id=?1 "+
			"ON CONFLICT(sandbox,name) DO UPDATE SET secret=excluded.secret,state=excluded.state,until=excluded.until,"+
			"used=excluded.used,body=excluded.body",
			string(g.Sandbox), g.Name, g.Secret, g.State, moment(g.Until), g.Used, body)
		if n == 0 && t.err == nil {
			return fault.New(fault.NotFound, "sandbox %s not found", g.Sandbox)
		}
		return nil
	})
}

// Grants returns the grants of a sandbox, by name.
func (d *DB) Grants(ctx context.Context, id timeline.SandboxID) ([]Grant, error) {
	return d.grants(ctx, "SELECT "+grantCols+" FROM grants WHERE sandbox=? ORDER BY name", string(id))
}

// GrantsIn returns the grants of all sandboxes that are in a state, by sandbox and name.
func (d *DB) GrantsIn(ctx context.Context, state string) ([]Grant, error) {
	return d.grants(ctx, "SELECT "+grantCols+" FROM grants WHERE state=? ORDER BY sandbox,name", state)
}

// DropGrant removes a grant. A missing one is not an error.
func (d *DB) DropGrant(ctx context.Context, id timeline.SandboxID, name string) error {
	return d.tx(ctx, func(t *tx) error {
		t.exec("DELETE FROM grants WHERE sandbox=? AND name=?", string(id), name)
		return nil
	})
}

func (d *DB) grants(ctx context.Context, query string, args ...any) (out []Grant, err error) {
	err = d.rows(ctx, query, func(s scanner) error {
		var g Grant
		var id, body string
		var until sql.NullInt64
		if err := s.Scan(&id, &g.Name, &g.Secret, &g.State, &until, &g.Used, &body); err != nil {
			return err
		}
		text, err := d.openText(forGrant, body)
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &g.GrantBody); err != nil {
			return fault.New(fault.Corrupt, "record of grant %s", g.Name).Because(err).WithHint(corruptHint)
		}
		g.Sandbox = timeline.SandboxID(id)
		if until.Valid {
			g.Until = time.UnixMicro(until.Int64).UTC()
		}
		out = append(out, g)
		return nil
	}, args...)
	return out, err
}

// Ticket returns the secret with which the keeper of a sandbox gets a line to the broker. If the sandbox has none, it
// stores fresh, and returns it.
func (d *DB) Ticket(ctx context.Context, id timeline.SandboxID, fresh []byte) (ticket []byte, err error) {
	read := func(text string) error {
		t, err := d.openText(forTicket, text)
		ticket = []byte(t)
		return err
	}
	const query = "SELECT ticket FROM tickets WHERE sandbox=?"
	scan := func(s scanner) error {
		var text string
		if err := s.Scan(&text); err != nil {
			return err
		}
		return read(text)
	}
	if err := d.rows(ctx, query, scan, string(id)); err != nil || ticket != nil {
		return ticket, err
	}
	sealed, err := d.key.Seal(forTicket, fresh)
	if err != nil {
		return nil, err
	}
	err = d.tx(ctx, func(t *tx) error {
		t.exec("INSERT INTO tickets SELECT id,?2 FROM sandboxes WHERE id=?1 ON CONFLICT(sandbox) DO NOTHING",
			string(id), sealed)
		t.each(query, scan, string(id))
		if t.err == nil && ticket == nil {
			return fault.New(fault.NotFound, "sandbox %s not found", id)
		}
		return nil
	})
	return ticket, err
}
