package meta

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Layer is the record of a layer directory.
type Layer struct {
	ID     timeline.LayerID
	Merged bool
	Sealed bool
	Digest string // of the manifest, when sealed
	DiffID string // OCI DiffID, when sealed
	Size   int64  // content bytes, when sealed
}

const layerCols = "id,merged,sealed,digest,diff_id,size"

func scanLayer(s scanner) (l Layer, err error) {
	return l, s.Scan(&l.ID, &l.Merged, &l.Sealed, &l.Digest, &l.DiffID, &l.Size)
}

func (d *DB) layers(ctx context.Context, where string, args ...any) (out []Layer, err error) {
	err = d.rows(ctx, "SELECT "+layerCols+" FROM layers "+where+" ORDER BY seq", func(s scanner) error {
		l, err := scanLayer(s)
		out = append(out, l)
		return err
	}, args...)
	return out, err
}

// Layers lists all layers, oldest first.
func (d *DB) Layers(ctx context.Context) ([]Layer, error) { return d.layers(ctx, "") }

// LayersUnsealed lists the layers that are not sealed, oldest first.
func (d *DB) LayersUnsealed(ctx context.Context) ([]Layer, error) {
	return d.layers(ctx, "WHERE sealed=0")
}

// Layer finds a layer's record, or NotFound.
func (d *DB) Layer(ctx context.Context, id timeline.LayerID) (Layer, error) {
	ls, err := d.layers(ctx, "WHERE id=?", id)
	if err == nil && len(ls) == 0 {
		err = fault.New(fault.NotFound, "there is no layer %s", id)
	}
	if err != nil {
		return Layer{}, err
	}
	return ls[0], nil
}

// MarkSealed records that a layer is safe on the disk, and flushes the record.
func (d *DB) MarkSealed(ctx context.Context, id timeline.LayerID, digest, diffID string, size int64) error {
	return d.tx(ctx, func(t *tx) error {
		t.exec("UPDATE layers SET sealed=1,digest=?,diff_id=?,size=? WHERE id=?", digest, diffID, size, id)
		return nil
	})
}

// SnapshotOfLayer finds the snapshot whose route a layer is.
func (d *DB) SnapshotOfLayer(ctx context.Context, id timeline.LayerID) (s timeline.Snapshot, err error) {
	err = d.rows(ctx, "SELECT s.id,s.sandbox,s.parent,s.cause,s.message,s.created,s.exit,s.paths,s.bytes,"+sealedExpr+
		" FROM snapshots s JOIN routes r ON r.top=s.id WHERE r.layer=? LIMIT 1", func(sc scanner) (err error) {
		s, err = scanSnapshot(sc)
		return err
	}, id)
	if err == nil && s.ID == "" {
		err = fault.New(fault.NotFound, "no snapshot uses layer %s", id)
	}
	return s, err
}

// Usage is what a sandbox's history takes, in bytes of content of sealed layers.
type Usage struct {
	Own    int64 // layers that no other sandbox's history uses
	Shared int64 // layers that others use as well
}

// Usage adds up the layers of a sandbox's history; merged ones hold nothing of
// their own.
func (d *DB) Usage(ctx context.Context, id timeline.SandboxID) (u Usage, err error) {
	const query = owned + `, others(id) AS (
		SELECT id FROM snapshots WHERE sandbox<>?1
		UNION SELECT s.parent FROM snapshots s JOIN others ON s.id=others.id WHERE s.parent<>''
	)
	SELECT coalesce(sum(CASE WHEN l.top IN others THEN 0 ELSE l.size END),0), coalesce(sum(CASE WHEN l.top IN others THEN l.size ELSE 0 END),0)
	FROM (SELECT r.top AS top, l.size AS size FROM routes r JOIN layers l ON l.id=r.layer WHERE NOT r.merged AND r.top IN line) l`
	err = d.rows(ctx, query, func(s scanner) error { return s.Scan(&u.Own, &u.Shared) }, id)
	return u, err
}

// Dead is what nothing refers to.
type Dead struct {
	Snapshots []timeline.SnapshotID
	Layers    []timeline.LayerID
}

// dead is the start of a query over the snapshots of removed sandboxes that no
// sandbox descends from, and superseded bases that nobody stands on.
const dead = `WITH RECURSIVE alive(id) AS (
	SELECT s.id FROM snapshots s JOIN sandboxes b ON s.sandbox=b.id
	UNION SELECT top FROM bases b WHERE key<>'' AND NOT EXISTS (SELECT 1 FROM bases n WHERE n.key=b.key AND n.created>b.created)
	UNION SELECT head FROM sandboxes
	UNION SELECT mount FROM sandboxes
	UNION SELECT s.parent FROM snapshots s JOIN alive ON s.id=alive.id WHERE s.parent<>''
	UNION SELECT r.below FROM routes r JOIN alive ON r.top=alive.id WHERE r.below<>''
), gone(id) AS (SELECT id FROM snapshots WHERE id NOT IN alive) `

// Unreferenced finds what nothing refers to.
func (d *DB) Unreferenced(ctx context.Context) (out Dead, err error) {
	err = d.rows(ctx, dead+"SELECT id FROM gone ORDER BY id", func(s scanner) error {
		var id timeline.SnapshotID
		err := s.Scan(&id)
		out.Snapshots = append(out.Snapshots, id)
		return err
	})
	if err != nil {
		return out, err
	}
	err = d.rows(ctx, dead+"SELECT DISTINCT layer FROM routes WHERE top IN gone AND layer NOT IN (SELECT layer FROM routes WHERE top NOT IN gone) ORDER BY layer", func(s scanner) error {
		var id timeline.LayerID
		err := s.Scan(&id)
		out.Layers = append(out.Layers, id)
		return err
	})
	return out, err
}

// DropUnreferenced forgets what nothing refers to, and gives the layers whose
// records are gone.
func (d *DB) DropUnreferenced(ctx context.Context) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		unused = t.dropDead()
		return nil
	})
	return unused, err
}

func (t *tx) dropDead() []timeline.LayerID {
	t.exec("CREATE TEMP TABLE IF NOT EXISTS doomed(id TEXT PRIMARY KEY)")
	t.exec("DELETE FROM temp.doomed")
	t.exec("INSERT INTO temp.doomed " + dead + "SELECT id FROM gone")
	t.exec("DELETE FROM routes WHERE top IN (SELECT id FROM temp.doomed)")
	t.exec("DELETE FROM bases WHERE top IN (SELECT id FROM temp.doomed)")
	t.exec("DELETE FROM snapshots WHERE id IN (SELECT id FROM temp.doomed)")
	return t.dropUnused()
}

// DeleteSandbox forgets a sandbox and those of its snapshots that no other
// descends from, and gives the layers that nothing refers to any more, whose
// records are gone.
func (d *DB) DeleteSandbox(ctx context.Context, id timeline.SandboxID) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		if t.exec("DELETE FROM sandboxes WHERE id=?", id) == 0 && t.err == nil {
			return fault.New(fault.NotFound, "there is no sandbox %s any more", id)
		}
		unused = t.dropDead()
		return nil
	})
	return unused, err
}

// Moved is a sandbox that LoseLayer took back.
type Moved struct {
	Name string
	Head timeline.SnapshotID
}

// LoseLayer forgets a layer that may be torn: every snapshot whose root needs it
// leaves the history, and sandboxes whose head or live root was there go to the
// nearest snapshot that is left, with a new generation.
func (d *DB) LoseLayer(ctx context.Context, id timeline.LayerID) (moved []Moved, err error) {
	err = d.tx(ctx, func(t *tx) error {
		t.exec("CREATE TEMP TABLE IF NOT EXISTS torn(id TEXT PRIMARY KEY)")
		t.exec("DELETE FROM temp.torn")
		// A merged layer that is lost costs only time.
		t.exec("DELETE FROM routes WHERE layer=? AND merged", id)
		t.exec(`INSERT INTO temp.torn WITH RECURSIVE t(id) AS (
			SELECT top FROM routes WHERE layer=?1 AND NOT merged
			UNION SELECT s.id FROM snapshots s JOIN t ON s.parent=t.id
			UNION SELECT r.top FROM routes r JOIN t ON r.below=t.id AND NOT r.merged) SELECT id FROM t`, id)
		var ids []timeline.SandboxID
		t.each("SELECT id FROM sandboxes WHERE head IN (SELECT id FROM temp.torn) OR mount IN (SELECT id FROM temp.torn)", func(s scanner) error {
			var id timeline.SandboxID
			err := s.Scan(&id)
			ids = append(ids, id)
			return err
		})
		for _, sb := range ids {
			if err := t.takeBack(sb, &moved); err != nil {
				return err
			}
		}
		t.exec("DELETE FROM tags WHERE snapshot IN (SELECT id FROM temp.torn)")
		t.exec("DELETE FROM routes WHERE top IN (SELECT id FROM temp.torn) OR below IN (SELECT id FROM temp.torn)")
		t.exec("DELETE FROM bases WHERE top IN (SELECT id FROM temp.torn)")
		t.exec("DELETE FROM snapshots WHERE id IN (SELECT id FROM temp.torn)")
		t.exec("DELETE FROM layers WHERE id=? AND id NOT IN (SELECT layer FROM routes)", id)
		return nil
	})
	return moved, err
}

func (t *tx) takeBack(id timeline.SandboxID, moved *[]Moved) error {
	return t.update(id, func(rec *Sandbox) error {
		left := func(at timeline.SnapshotID) (to timeline.SnapshotID) {
			t.each(lineage+`SELECT s.id FROM snapshots s JOIN line ON s.id=line.id
				WHERE s.id NOT IN (SELECT id FROM temp.torn) ORDER BY s.created DESC LIMIT 1`, func(s scanner) error { return s.Scan(&to) }, at)
			return to
		}
		head := left(rec.Head)
		if t.err != nil {
			return t.err
		}
		if head == "" {
			rec.Notices = append(rec.Notices, "its first snapshot was lost with the power: only removing it is left")
			return nil
		}
		if left(rec.MountTop) != rec.MountTop {
			rec.Gen++
			rec.MountTop = head
		}
		rec.Head, rec.Redo = head, nil
		rec.Notices = append(rec.Notices, "the power failed before its newest snapshots were safe: it is back at "+string(head)+"; what was found of them is under lost/ in COPPICE_HOME")
		*moved = append(*moved, Moved{Name: rec.Name, Head: head})
		return nil
	})
}
