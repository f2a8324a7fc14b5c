package meta

import (
	"context"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Layer is the record of a layer directory.
type Layer struct {
	ID        timeline.LayerID
	Merged    bool
	Finalized bool
	Digest    string // of the manifest, when finalized
	DiffID    string // OCI DiffID, when finalized
	Size      int64  // content bytes, when finalized
}

const layerCols = "id,merged,sealed,digest,diff_id,size"

func scanLayer(s scanner) (l Layer, err error) {
	return l, s.Scan(&l.ID, &l.Merged, &l.Finalized, &l.Digest, &l.DiffID, &l.Size)
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

// UnfinalizedLayers lists the layers that are not finalized, oldest first.
func (d *DB) UnfinalizedLayers(ctx context.Context) ([]Layer, error) {
	return d.layers(ctx, "WHERE sealed=0")
}

// Layer finds a layer's record, or NotFound.
func (d *DB) Layer(ctx context.Context, id timeline.LayerID) (Layer, error) {
	ls, err := d.layers(ctx, "WHERE id=?", id)
	if err == nil && len(ls) == 0 {
		err = fault.New(fault.NotFound, "layer %s not found", id)
	}
	if err != nil {
		return Layer{}, err
	}
	return ls[0], nil
}

// MarkFinalized records that a layer is safe on the disk, and returns when the
// record is as well. A layer that was dropped meanwhile is NotFound.
func (d *DB) MarkFinalized(ctx context.Context, id timeline.LayerID, digest, diffID string, size int64) error {
	err := d.tx(ctx, func(t *tx) error {
		if t.markFinalized(Layer{ID: id, Digest: digest, DiffID: diffID, Size: size}) == 0 && t.err == nil {
			return fault.New(fault.NotFound, "layer %s no longer exists", id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.Flush()
}

// markFinalized returns how many layers it marked.
func (t *tx) markFinalized(l Layer) int64 {
	return t.exec("UPDATE layers SET sealed=1,digest=?,diff_id=?,size=? WHERE id=?", l.Digest, l.DiffID, l.Size, l.ID)
}

// SnapshotOfLayer finds the snapshot that has a layer as its route.
func (d *DB) SnapshotOfLayer(ctx context.Context, id timeline.LayerID) (s timeline.Snapshot, err error) {
	err = d.rows(ctx,
		"SELECT "+snapCols+" FROM routes o JOIN snapshots s ON o.top=s.id WHERE o.layer=? ORDER BY s.created LIMIT 1",
		func(sc scanner) (err error) {
			s, err = scanSnapshot(sc)
			return err
		}, id)
	if err == nil && s.ID == "" {
		err = fault.New(fault.NotFound, "no snapshot uses layer %s", id)
	}
	return s, err
}

// Usage is the size of a sandbox's history, in bytes of content of finalized layers.
type Usage struct {
	Own    int64 // layers that no other sandbox's history uses
	Shared int64 // layers that others use as well
}

// Usage sums up the layers of a sandbox's history; merged layers have no content of their own. It reads only that
// history and its children.
func (d *DB) Usage(ctx context.Context, id timeline.SandboxID) (u Usage, err error) {
	// Other sandboxes use a snapshot that they made, one whose child is not in this history, one that is their head,
	// and all ancestors of these. CROSS JOIN makes the query start at this history, however many others there are.
	const query = owned + `, shared(id) AS (
		SELECT s.id FROM line CROSS JOIN snapshots s ON s.id=line.id
			WHERE s.sandbox<>?1 AND EXISTS (SELECT 1 FROM sandboxes b WHERE b.id=s.sandbox)
		UNION SELECT id FROM line
			WHERE EXISTS (SELECT 1 FROM snapshots c WHERE c.parent=line.id AND c.id NOT IN (SELECT id FROM line))
		UNION SELECT b.head FROM line CROSS JOIN sandboxes b ON b.head=line.id WHERE b.id<>?1
		UNION SELECT s.parent FROM shared JOIN snapshots s ON s.id=shared.id WHERE s.parent IS NOT NULL
	), used(layer,shared) AS (
		SELECT r.layer, max(line.id IN (SELECT id FROM shared)) FROM line JOIN routes r ON r.top=line.id
			WHERE NOT r.merged GROUP BY r.layer
	)
	SELECT coalesce(sum(l.size) FILTER (WHERE NOT u.shared),0), coalesce(sum(l.size) FILTER (WHERE u.shared),0)
	FROM used u JOIN layers l ON l.id=u.layer`
	err = d.rows(ctx, query, func(s scanner) error { return s.Scan(&u.Own, &u.Shared) }, id)
	return u, err
}

// Dead lists unreferenced snapshots and layers.
type Dead struct {
	Snapshots []timeline.SnapshotID
	Layers    []timeline.LayerID
}

// dead is the start of a query over the unreferenced snapshots: those of removed sandboxes that no sandbox is built
// on, superseded bases that no sandbox is built on, and likewise bases with key ?1 and the bases on them.
const dead = `WITH RECURSIVE loose(id) AS (
	SELECT top FROM bases WHERE key=?1 AND key<>''
	UNION SELECT b.top FROM loose JOIN snapshots s ON s.parent=loose.id JOIN bases b ON b.top=s.id
), alive(id) AS (
	SELECT s.id FROM snapshots s JOIN sandboxes b ON s.sandbox=b.id
	UNION SELECT top FROM bases WHERE ` + current + ` AND top NOT IN (SELECT id FROM loose)
	UNION SELECT head FROM sandboxes
	UNION SELECT mount FROM sandboxes
	UNION SELECT snapshot FROM tags
	UNION SELECT s.parent FROM alive JOIN snapshots s ON s.id=alive.id WHERE s.parent IS NOT NULL
	UNION SELECT r.below FROM alive JOIN routes r ON r.top=alive.id WHERE r.below IS NOT NULL
), gone(id) AS (SELECT id FROM snapshots WHERE id NOT IN (SELECT id FROM alive)) `

// current is the condition that a base is the newest of its key, and so can be found again.
const current = `bases.key<>'' AND NOT EXISTS (SELECT 1 FROM bases n WHERE n.key=bases.key AND n.created>bases.created)`

// Unreferenced returns the snapshots and layers that DropUnreferenced would remove.
func (d *DB) Unreferenced(ctx context.Context, loose string) (out Dead, err error) {
	return out, d.view(ctx, func(v *view) {
		v.each(dead+"SELECT id FROM gone ORDER BY id", collect(&out.Snapshots), loose)
		v.each(dead+`SELECT id FROM layers l WHERE NOT EXISTS (
			SELECT 1 FROM routes r WHERE r.layer=l.id AND r.top NOT IN (SELECT id FROM gone)) ORDER BY id`, collect(&out.Layers),
			loose)
	})
}

// DropUnreferenced removes unreferenced snapshots and layers, and returns the layers whose records it removed. The
// newest base of a key is kept for the next sandbox, except that of the key loose and bases on it.
func (d *DB) DropUnreferenced(ctx context.Context, loose string) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		t.doom(dead+"SELECT id FROM gone", loose)
		t.dropDoomed()
		t.each("DELETE FROM layers WHERE id NOT IN (SELECT layer FROM routes) RETURNING id", collect(&unused))
		t.dropPolicies()
		return nil
	})
	return unused, err
}

// doom fills the temporary table doomed with the answer to a query.
func (t *tx) doom(query string, args ...any) {
	t.exec("CREATE TEMP TABLE IF NOT EXISTS doomed(id TEXT PRIMARY KEY) WITHOUT ROWID")
	t.exec("DELETE FROM temp.doomed")
	t.exec("INSERT INTO temp.doomed "+query, args...)
}

// dropDoomed deletes the snapshots in doomed with everything that depends on them, and returns the layers of
// their routes.
func (t *tx) dropDoomed() (loose []timeline.LayerID) {
	const ids = "(SELECT id FROM temp.doomed)"
	t.each("DELETE FROM routes WHERE top IN "+ids+" OR below IN "+ids+" RETURNING layer", collect(&loose))
	t.exec("DELETE FROM tags WHERE snapshot IN " + ids)
	t.exec("DELETE FROM bases WHERE top IN " + ids)
	t.exec("DELETE FROM snapshots WHERE id IN " + ids)
	return loose
}

// candidates is a query for what may become unreferenced when a sandbox (?1) with head ?2 is removed: its
// snapshots, and those below them that no living sandbox made.
const candidates = `WITH RECURSIVE cand(id) AS (
	SELECT id FROM snapshots WHERE sandbox=?1
	UNION SELECT s.id FROM snapshots s WHERE s.id=?2 AND NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.id=s.sandbox)
	UNION SELECT p.id FROM cand JOIN snapshots s ON s.id=cand.id JOIN snapshots p ON p.id=s.parent
		WHERE NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.id=p.sandbox)
	UNION SELECT p.id FROM cand JOIN routes r ON r.top=cand.id JOIN snapshots p ON p.id=r.below
		WHERE NOT EXISTS (SELECT 1 FROM sandboxes b WHERE b.id=p.sandbox)
) SELECT id FROM cand`

// held is a query for the doomed snapshots that something else refers to, and the doomed snapshots below them.
const held = `WITH RECURSIVE held(id) AS (
	SELECT d.id FROM temp.doomed d WHERE
		EXISTS (SELECT 1 FROM snapshots c WHERE c.parent=d.id AND c.id NOT IN (SELECT id FROM temp.doomed))
		OR EXISTS (SELECT 1 FROM routes r WHERE r.below=d.id AND r.top NOT IN (SELECT id FROM temp.doomed))
		OR EXISTS (SELECT 1 FROM sandboxes b WHERE b.head=d.id)
		OR EXISTS (SELECT 1 FROM sandboxes b WHERE b.mount=d.id)
		OR EXISTS (SELECT 1 FROM tags g WHERE g.snapshot=d.id)
		OR EXISTS (SELECT 1 FROM bases WHERE bases.top=d.id AND ` + current + `)
	UNION SELECT s.parent FROM held JOIN snapshots s ON s.id=held.id WHERE s.parent IS NOT NULL
	UNION SELECT r.below FROM held JOIN routes r ON r.top=held.id WHERE r.below IS NOT NULL
) SELECT id FROM held`

// DeleteSandbox removes a sandbox and the snapshots that become unreferenced, and returns the layers that become
// unreferenced, whose records it removed. It reads only the sandbox's history.
func (d *DB) DeleteSandbox(ctx context.Context, id timeline.SandboxID) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		var head timeline.SnapshotID
		t.each("SELECT head FROM sandboxes WHERE id=?", func(s scanner) error { return s.Scan(&head) }, id)
		if t.exec("DELETE FROM sandboxes WHERE id=?", id) == 0 && t.err == nil {
			return fault.New(fault.NotFound, "sandbox %s no longer exists", id).
				WithHint("list them: coppice ls")
		}
		t.doom(candidates, id, head)
		t.exec("DELETE FROM temp.doomed WHERE id IN (" + held + ")")
		unused = t.dropUnused(t.dropDoomed())
		return nil
	})
	return unused, err
}

// Moved is a sandbox that LoseLayer moved to an older snapshot.
type Moved struct {
	Name string
	Head timeline.SnapshotID
}

// LoseLayer removes a layer that may be torn. Every snapshot whose root needs it is removed from the history, and
// sandboxes whose head or live root was there move to the nearest remaining snapshot, with a new generation. A
// sandbox without a remaining snapshot keeps its record, with a notice.
func (d *DB) LoseLayer(ctx context.Context, id timeline.LayerID) (moved []Moved, err error) {
	err = d.tx(ctx, func(t *tx) error {
		// The loss of a merged layer only costs time.
		t.exec("DELETE FROM routes WHERE layer=? AND merged", id)
		t.doom(`WITH RECURSIVE t(id) AS (
			SELECT top FROM routes WHERE layer=?1 AND NOT merged
			UNION SELECT s.id FROM t JOIN snapshots s ON s.parent=t.id
			UNION SELECT r.top FROM t JOIN routes r ON r.below=t.id AND NOT r.merged) SELECT id FROM t`, id)
		var ids []timeline.SandboxID
		t.each("SELECT id FROM sandboxes WHERE head IN (SELECT id FROM temp.doomed) OR mount IN (SELECT id FROM temp.doomed)",
			collect(&ids))
		for _, sb := range ids {
			if err := t.takeBack(sb, &moved); err != nil {
				return err
			}
		}
		t.dropDoomed()
		t.dropUnused([]timeline.LayerID{id})
		return nil
	})
	return moved, err
}

// takeBack moves a sandbox from doomed snapshots to the nearest one that remains.
func (t *tx) takeBack(id timeline.SandboxID, moved *[]Moved) error {
	before, after, err := t.update(id, func(rec *Sandbox) error {
		head := t.left(rec.Head)
		if t.err != nil {
			return t.err
		}
		if head == "" {
			rec.Lost = true
			rec.Notices = append(rec.Notices, "its first snapshot was lost in a power failure: it can only be removed")
			return nil
		}
		if t.left(rec.MountTop) != rec.MountTop {
			rec.Gen++
			rec.MountTop = head
		}
		rec.Head, rec.Redo = head, nil
		rec.Notices = append(rec.Notices,
			"its newest snapshots were lost in a power failure: it is at "+string(head)+
				"; their recovered files are in COPPICE_HOME under lost/")
		*moved = append(*moved, Moved{Name: rec.Name, Head: head})
		return nil
	})
	if err == nil && before != after {
		t.addMove(id, t.d.Now(), after)
	}
	return err
}

// left returns the nearest of a snapshot and its ancestors that is not doomed.
func (t *tx) left(at timeline.SnapshotID) (id timeline.SnapshotID) {
	t.each(`WITH RECURSIVE line(id,far) AS (
			SELECT ?1,0 UNION ALL SELECT s.parent,far+1 FROM line JOIN snapshots s ON s.id=line.id WHERE s.parent IS NOT NULL
		) SELECT s.id FROM line JOIN snapshots s ON s.id=line.id
		WHERE s.id NOT IN (SELECT id FROM temp.doomed) ORDER BY far LIMIT 1`, func(s scanner) error { return s.Scan(&id) }, at)
	return id
}
