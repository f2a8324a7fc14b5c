package meta

import (
	"context"
	"time"
)

// Answer returns the answer stored under key; nil if there is none, or it has expired.
func (d *DB) Answer(ctx context.Context, key string) (answer []byte, err error) {
	err = d.rows(ctx, "SELECT answer FROM answers WHERE key=? AND expires>?",
		func(s scanner) error { return s.Scan(&answer) },
		key, d.Now().UnixMicro())
	if err != nil || answer == nil {
		return nil, err
	}
	text, err := d.openText(forAnswer, string(answer))
	return []byte(text), err
}

// KeepAnswer stores an answer under key for a time, in place of an earlier one, and removes expired ones.
func (d *DB) KeepAnswer(ctx context.Context, key string, answer []byte, keep time.Duration) error {
	now := d.Now()
	sealed, err := d.key.Seal(forAnswer, answer)
	if err != nil {
		return err
	}
	return d.tx(ctx, func(t *tx) error {
		t.exec("DELETE FROM answers WHERE expires<=?", now.UnixMicro())
		t.exec("INSERT INTO answers VALUES(?,?,?) ON CONFLICT(key) DO UPDATE SET answer=excluded.answer, "+
			"expires=excluded.expires",
			key, []byte(sealed), now.Add(keep).UnixMicro())
		return nil
	})
}
