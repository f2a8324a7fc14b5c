package meta

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/timeline"
)

// Bases lists the bases of a key that is not "", the most recently made or used first.
func (d *DB) Bases(ctx context.Context, key string) (out []Base, err error) {
	err = d.rows(ctx,
		"SELECT id,key,top,label,print,created FROM bases WHERE key=? AND key<>'' ORDER BY created DESC,rowid DESC",
		func(s scanner) error {
			var b Base
			var created int64
			err := s.Scan(&b.ID, &b.Key, &b.Top, &b.Label, &b.Print, &created)
			b.Created = time.UnixMicro(created).UTC()
			out = append(out, b)
			return err
		}, key)
	return out, err
}

// BaseLayers lists the layers of all bases.
func (d *DB) BaseLayers(ctx context.Context) (out []timeline.LayerID, err error) {
	err = d.rows(ctx, "SELECT DISTINCT r.layer FROM bases b JOIN routes r ON r.top=b.top ORDER BY r.layer", collect(&out))
	return out, err
}

// UseBase makes a base the newest of its key at that time, unless there is a newer one.
func (d *DB) UseBase(ctx context.Context, id string, at time.Time) error {
	return d.tx(ctx, func(t *tx) error {
		t.exec("UPDATE bases SET created=?2 WHERE id=?1 AND created<?2", id, at.UnixMicro())
		return nil
	})
}

// ForgetBases removes the keys of bases whose keys begin with prefix, that no snapshot has as its parent, and that
// were neither made nor used since before. Their content is then unreferenced.
func (d *DB) ForgetBases(ctx context.Context, prefix string, before time.Time) error {
	return d.tx(ctx, func(t *tx) error {
		t.exec(`UPDATE bases SET key='' WHERE substr(key,1,length(?1))=?1 AND created<?2
			AND NOT EXISTS (SELECT 1 FROM snapshots s WHERE s.parent=bases.top)`, prefix, before.UnixMicro())
		return nil
	})
}
