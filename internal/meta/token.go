package meta

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Token is the record of a token. Its user defines its meaning.
type Token struct {
	ID        string
	Name      string
	Scope     string
	Sandboxes []string // nil is all; an empty list is none
	Created   time.Time
	Expires   time.Time // zero is never
	Used      time.Time // zero is never
	Hash      []byte
}

const tokenCols = "id,name,scope,sandboxes,created,expires,used,hash"

func scanToken(s scanner) (t Token, err error) {
	var created int64
	var expires, used sql.NullInt64
	var boxes string
	if err = s.Scan(&t.ID, &t.Name, &t.Scope, &boxes, &created, &expires, &used, &t.Hash); err != nil {
		return t, err
	}
	if err := json.Unmarshal([]byte(boxes), &t.Sandboxes); err != nil {
		return t, fault.New(fault.Corrupt, "record of token %s", t.ID).Because(err).WithHint(corruptHint)
	}
	t.Created = time.UnixMicro(created).UTC()
	if expires.Valid {
		t.Expires = time.UnixMicro(expires.Int64).UTC()
	}
	if used.Valid {
		t.Used = time.UnixMicro(used.Int64).UTC()
	}
	return t, nil
}

// moment returns a time as the value of a column that may be NULL.
func moment(t time.Time) sql.NullInt64 {
	return sql.NullInt64{Int64: t.UnixMicro(), Valid: !t.IsZero()}
}

// AddToken records a token. It returns Exists if the id is taken.
func (d *DB) AddToken(ctx context.Context, t Token) error {
	boxes, err := json.Marshal(t.Sandboxes)
	if err != nil {
		return err
	}
	return d.tx(ctx, func(x *tx) error {
		x.exec("INSERT INTO tokens("+tokenCols+") VALUES(?,?,?,?,?,?,?,?)", t.ID, t.Name, t.Scope, string(boxes),
			t.Created.UnixMicro(),
			moment(t.Expires), moment(t.Used), t.Hash)
		return nil
	})
}

// Token finds a token. It returns NotFound for an unknown one.
func (d *DB) Token(ctx context.Context, id string) (t Token, err error) {
	found := false
	err = d.rows(ctx, "SELECT "+tokenCols+" FROM tokens WHERE id=?", func(s scanner) (err error) {
		found = true
		t, err = scanToken(s)
		return err
	}, id)
	if err == nil && !found {
		err = unknownToken(id)
	}
	return t, err
}

// Tokens lists the tokens, oldest first.
func (d *DB) Tokens(ctx context.Context) (out []Token, err error) {
	err = d.rows(ctx, "SELECT "+tokenCols+" FROM tokens ORDER BY created,id", func(s scanner) error {
		t, err := scanToken(s)
		out = append(out, t)
		return err
	})
	return out, err
}

// RemoveToken removes a token. It returns NotFound for an unknown one.
func (d *DB) RemoveToken(ctx context.Context, id string) error {
	return d.tx(ctx, func(x *tx) error {
		if x.exec("DELETE FROM tokens WHERE id=?", id) == 0 && x.err == nil {
			return unknownToken(id)
		}
		return nil
	})
}

// TokenUsed records when a token was last used. A missing one is not an error.
func (d *DB) TokenUsed(ctx context.Context, id string, at time.Time) error {
	return d.tx(ctx, func(x *tx) error {
		x.exec("UPDATE tokens SET used=?2 WHERE id=?1 AND (used IS NULL OR used<?2)", id, at.UnixMicro())
		return nil
	})
}

// WidenToken adds sandboxes to a token that is restricted to some. A token for all sandboxes, or one that was
// removed, stays as it is.
func (d *DB) WidenToken(ctx context.Context, id string, sandboxes []string) error {
	return d.tx(ctx, func(x *tx) error {
		var t Token
		x.each("SELECT "+tokenCols+" FROM tokens WHERE id=?", func(s scanner) (err error) {
			t, err = scanToken(s)
			return err
		}, id)
		if x.err != nil || t.Sandboxes == nil {
			return x.err
		}
		for _, b := range sandboxes {
			if !slices.Contains(t.Sandboxes, b) {
				t.Sandboxes = append(t.Sandboxes, b)
			}
		}
		boxes, err := json.Marshal(t.Sandboxes)
		if err != nil {
			return err
		}
		x.exec("UPDATE tokens SET sandboxes=? WHERE id=?", string(boxes), id)
		return nil
	})
}

func unknownToken(id string) error {
	return fault.New(fault.NotFound, "token %q not found", id).WithHint("list them: coppice token ls")
}
