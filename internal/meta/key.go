package meta

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
)

// keyName is the file of the key, in the directory of the database.
const keyName = "seal.key"

const (
	// settingKey is the id of the key that encrypts everything.
	settingKey = "seal.key"
	// settingSwept says that no cleartext is left on free pages: "yes".
	settingSwept = "seal.swept"
)

const (
	keyHint = "restore it from a backup. Files and history do not require the key: if it is lost, continue without the " +
		"values " +
		"it encrypted: echo lost >%s"
	// lostNotice is the notice that each sandbox gets if the key is lost.
	lostNotice = "the key that encrypted its environment, policy " +
		"and command is lost, and so are these"
)

// Derive returns a secret for a purpose, derived from the key of the home, by which package secretbox encrypts
// values of the home that are stored elsewhere.
func (d *DB) Derive(purpose string) []byte { return d.key.Derive(purpose) }

// openKey opens the key, and encrypts values that are not encrypted yet. It returns the errors of secretbox.Load, and
// Corrupt if the key is missing or the wrong one.
func (d *DB) openKey(ctx context.Context) error {
	sealedBy, err := d.Setting(ctx, settingKey)
	if err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(d.path), keyName)
	d.key, err = secretbox.Load(file)
	given := errors.Is(err, secretbox.ErrLost) // the user gave up the encrypted values
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
		d.key, err = secretbox.Make(d.fs, file)
	case given, fault.Is(err, fault.NotFound) && sealedBy == "":
		d.key, err = secretbox.Make(d.fs, file)
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

// sealAll encrypts what is in cleartext, if the key is new, or the database is of an older version.
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

// forgetSealed removes what cannot be decrypted any more, and adds a notice.
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
		t.exec("DELETE FROM grants")
		t.exec("DELETE FROM tickets")
		t.exec("DELETE FROM settings WHERE key=?", settingKey)
		return nil
	})
}

// eachConfig replaces the configs of all sandboxes by the result of fn.
func (t *tx) eachConfig(fn func(config string) (string, error)) {
	t.eachText("SELECT id,config FROM sandboxes", "UPDATE sandboxes SET config=?2 WHERE id=?1",
		func(config string) (any, error) {
			return fn(config)
		})
}

// eachText replaces values by the result of fn. It reads all values, with their keys, before it writes the first.
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

// sweep rewrites the file once, so that no cleartext is left on free pages or in the log. If the disk is full, the
// next start retries it.
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
