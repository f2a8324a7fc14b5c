package meta

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/coppice-dev/coppice/internal/fault"
)

// Setting reads a setting; "" when it was never set.
func (d *DB) Setting(ctx context.Context, key string) (v string, err error) {
	err = d.rows(ctx, "SELECT value FROM settings WHERE key=?", func(s scanner) error { return s.Scan(&v) }, key)
	return v, err
}

// SetSetting writes a setting.
func (d *DB) SetSetting(ctx context.Context, key, value string) error {
	return d.tx(ctx, func(t *tx) error {
		t.set(key, value)
		return nil
	})
}

// Intent is an operation on the file system that must be completed or undone.
type Intent struct {
	ID   int64
	Kind string
	Body json.RawMessage
}

// Decode reads the intent's body into v.
func (i Intent) Decode(v any) error {
	if err := json.Unmarshal(i.Body, v); err != nil {
		return fault.New(fault.Corrupt, "intent %d (%s)", i.ID, i.Kind).Because(err).WithHint(corruptHint)
	}
	return nil
}

// BeginIntent records an intent before it is acted on. An id is never reused.
func (d *DB) BeginIntent(ctx context.Context, kind string, body any) (id int64, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("intent %s: %w", kind, err)
	}
	err = d.tx(ctx, func(t *tx) error {
		t.each("INSERT INTO intents(kind,body) VALUES(?,?) RETURNING id", func(s scanner) error { return s.Scan(&id) },
			kind, string(b))
		return nil
	})
	return id, err
}

// EndIntent removes an intent: it was completed or undone. A missing one is not an error.
func (d *DB) EndIntent(ctx context.Context, id int64) error {
	return d.tx(ctx, func(t *tx) error { t.exec("DELETE FROM intents WHERE id=?", id); return nil })
}

// Intents lists the intents that have not ended, oldest first.
func (d *DB) Intents(ctx context.Context) (out []Intent, err error) {
	err = d.rows(ctx, "SELECT id,kind,body FROM intents ORDER BY id", func(s scanner) error {
		var i Intent
		var body string
		if err := s.Scan(&i.ID, &i.Kind, &body); err != nil {
			return err
		}
		i.Body = json.RawMessage(body)
		out = append(out, i)
		return nil
	})
	return out, err
}
