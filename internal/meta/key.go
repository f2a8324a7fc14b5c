package meta

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/seal"
)

// keyName is the file of the key, in the directory of the database.
const keyName = "seal.key"

const (
	// settingKey is the id of the key that everything is sealed by.
	settingKey = "seal.key"
	// settingSwept says that nothing is left on free pages of what was in clear: "yes".
	settingSwept = "seal.swept"
)

const (
	keyHint = "restore it from a backup. Files and history do not require the key: if it is lost, continue without the " +
		"values " +
		"it encrypted: echo lost >%s"
	// lostNotice is what people are told of each sandbox then.
	lostNotice = "the key that encrypted its environment, policy " +
		"and command is lost, and so are these"
)

// Derive gives the secret of a key for a purpose, for package seal: what belongs to the
// home and lies elsewhere is sealed by that.
func (d *DB) Derive(purpose string) []byte { return d.key.Derive(purpose) }

// openKey has the key, and all that is to be sealed is sealed by it. The errors are those
// of seal.Load, and Corrupt for a key that is not there or not the right one.
func (d *DB) openKey(ctx context.Context) error {
	sealedBy, err := d.Setting(ctx, settingKey)
	if err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(d.path), keyName)
	d.key, err = seal.Load(file)
	given := errors.Is(err, seal.ErrLost) // up
	switch {
	case err == nil && (sealedBy == "" || sealedBy == d.key.ID()):
	case err == nil:
		return fault.New(fault.Corrupt, "wrong key %s: %s is encrypted with another key", file, d.path).
			WithHint(keyHint, file)
	case given && sealedBy != "":
		if err := d.forgetSealed(ctx); err != nil {
			return err
		}
		sealedBy = ""
		d.key, err = seal.Make(d.fs, file)
	case given, fault.Is(err, fault.NotFound) && sealedBy == "":
		d.key, err = seal.Make(d.fs, file)
	case fault.Is(err, fault.NotFound), fault.Is(err, fault.Corrupt):
		return fault.New(fault.Corrupt, "the encryption key of environments, commands and policies").Because(err).
			WithHint(keyHint, file)
	}
	if err == nil && sealedBy == "" {
		err = d.sealAll(ctx)
	}
	if err != nil {
		return err
	}
	return d.sweep(ctx)
}

// sealAll seals what is in clear: the key is new, or the database of a version before.
func (d *DB) sealAll(ctx context.Context) error {
	return d.tx(ctx, func(t *tx) error {
		t.eachConfig(func(config string) (string, error) {
			c, err := openConfig(d.key, []byte(config))
			if err != nil {
				return "", err
			}
			c.Enforced = nil
			return encodeConfig(d.key, c)
		})
		t.eachText("SELECT digest,text FROM policies", "UPDATE policies SET text=?2 WHERE digest=?1",
			func(text string) (any, error) {
				return d.key.Seal(forPolicy, []byte(text))
			})
		t.eachText("SELECT key,answer FROM answers", "UPDATE answers SET answer=?2 WHERE key=?1",
			func(text string) (any, error) {
				s, err := d.key.Seal(forAnswer, []byte(text))
				return []byte(s), err
			})
		t.set(settingKey, d.key.ID())
		return nil
	})
}

// forgetSealed drops what nobody can open any more, and tells people.
func (d *DB) forgetSealed(ctx context.Context) error {
	return d.tx(ctx, func(t *tx) error {
		t.eachConfig(func(config string) (string, error) {
			var s stored
			if err := json.Unmarshal([]byte(config), &s); err != nil {
				return "", err
			}
			s.Again, s.Starting, s.Notices = false, false, append(s.Notices, lostNotice)
			b, err := json.Marshal(s.Config)
			return string(b), err
		})
		t.exec("DELETE FROM policies WHERE text GLOB 'sealed*'")
		t.exec("DELETE FROM answers")
		t.exec("DELETE FROM settings WHERE key=?", settingKey)
		return nil
	})
}

// eachConfig replaces the configs of all sandboxes by what fn makes of them.
func (t *tx) eachConfig(fn func(config string) (string, error)) {
	t.eachText("SELECT id,config FROM sandboxes", "UPDATE sandboxes SET config=?2 WHERE id=?1",
		func(config string) (any, error) {
			return fn(config)
		})
}

// eachText replaces values by what fn makes of them. They are read first, with their keys,
// and then written.
func (t *tx) eachText(read, write string, fn func(text string) (any, error)) {
	type row struct{ key, text string }
	var rows []row
	t.each(read, func(s scanner) error {
		var r row
		err := s.Scan(&r.key, &r.text)
		rows = append(rows, r)
		return err
	})
	for _, r := range rows {
		next, err := fn(r.text)
		if t.err == nil {
			t.err = err
		}
		t.exec(write, r.key, next)
	}
}

// set writes a setting.
func (t *tx) set(key, value string) {
	t.exec("INSERT INTO settings VALUES(?,?) ON CONFLICT(key) DO UPDATE SET value=excluded.value", key, value)
}

// sweep makes the file anew once, so that nothing of what was there in clear is left on
// pages that are free, or in the log. On a full disk that waits for the next start.
func (d *DB) sweep(ctx context.Context) error {
	swept, err := d.Setting(ctx, settingSwept)
	if err != nil || swept != "" {
		return err
	}
	if !d.made {
		for _, s := range []string{"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"} {
			if _, err := d.writer.conn.ExecContext(ctx, s); err != nil {
				if err = d.fault(err, "rewrite %s", d.path); fault.Is(err, fault.NoSpace) {
					return nil
				}
				return err
			}
		}
	}
	return d.SetSetting(ctx, settingSwept, "yes")
}
