package meta

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// lineage is the start of a query for a snapshot (?1) and all snapshots below it: parents, and the snapshots that
// routes end in.
const lineage = `WITH RECURSIVE line(id) AS (
	SELECT ?1
	UNION SELECT s.parent FROM line JOIN snapshots s ON s.id=line.id WHERE s.parent IS NOT NULL
	UNION SELECT r.below FROM line JOIN routes r ON r.top=line.id WHERE r.below IS NOT NULL
) `

// owned is the start of a query over everything in the history of a sandbox
// (?1): its own snapshots, its head, and their ancestors.
const owned = `WITH RECURSIVE line(id) AS (
	SELECT id FROM snapshots WHERE sandbox=?1
	UNION SELECT head FROM sandboxes WHERE id=?1
	UNION SELECT s.parent FROM line JOIN snapshots s ON s.id=line.id WHERE s.parent IS NOT NULL
) `

// snapCols are the columns of a snapshot s. It is finalized if its own layer is; a snapshot without a layer is as
// durable as its parent.
const snapCols = `s.id,s.sandbox,coalesce(s.parent,''),s.cause,s.message,s.created,s.exit,s.paths,s.bytes,
	NOT EXISTS (SELECT 1 FROM routes r JOIN layers l ON l.id=r.layer WHERE r.top=s.id AND NOT r.merged AND NOT l.sealed),
	(SELECT m.body FROM memories m WHERE m.snapshot=s.id)`

func scanSnapshot(sc scanner) (s timeline.Snapshot, err error) {
	var created int64
	var exit sql.NullInt64
	var memory sql.NullString
	err = sc.Scan(&s.ID, &s.Sandbox, &s.Parent, &s.Cause, &s.Message, &created, &exit, &s.Stats.Paths, &s.Stats.Bytes,
		&s.Finalized, &memory)
	s.Created = time.UnixMicro(created).UTC()
	if exit.Valid {
		code := int(exit.Int64)
		s.Exit = &code
	}
	if err == nil && memory.Valid {
		s.Memory = new(timeline.Memory)
		if err = json.Unmarshal([]byte(memory.String), s.Memory); err != nil {
			err = fault.New(fault.Corrupt, "the memory of snapshot %s", s.ID).Because(err).WithHint(corruptHint)
		}
	}
	return s, err
}

const routeCols = "top,coalesce(below,''),layer,merged"

func scanRoute(s scanner) (r timeline.Route, err error) {
	return r, s.Scan(&r.Top, &r.Below, &r.Layer, &r.Merged)
}

// orNull returns NULL for an empty id.
func orNull(id timeline.SnapshotID) any {
	if id == "" {
		return nil
	}
	return string(id)
}

func (t *tx) addSnapshot(s timeline.Snapshot) {
	t.exec("INSERT INTO snapshots(id,sandbox,parent,cause,message,created,exit,paths,bytes) VALUES(?,?,?,?,?,?,?,?,?)",
		s.ID, s.Sandbox, orNull(s.Parent), s.Cause, s.Message, s.Created.UnixMicro(), s.Exit, s.Stats.Paths, s.Stats.Bytes)
	if s.Memory == nil {
		return
	}
	body, err := json.Marshal(s.Memory)
	if err != nil {
		t.err = cmp.Or(t.err, err)
		return
	}
	t.exec("INSERT INTO memories(snapshot,image,body) VALUES(?,?,?)", s.ID, s.Memory.Image, string(body))
}

// addRoute records a route, and its layer unless that exists already.
func (t *tx) addRoute(r timeline.Route) {
	t.exec("INSERT INTO layers(id,merged,sealed,digest,diff_id,size) VALUES(?,?,0,'','',0) ON CONFLICT(id) DO NOTHING",
		r.Layer, r.Merged)
	t.exec("INSERT INTO routes(top,layer,below,merged) VALUES(?,?,?,?)", r.Top, r.Layer, orNull(r.Below), r.Merged)
}

// mustExist returns NotFound if a snapshot does not exist.
func (t *tx) mustExist(id timeline.SnapshotID) error {
	found := false
	t.each("SELECT 1 FROM snapshots WHERE id=?", func(scanner) error { found = true; return nil }, id)
	if t.err == nil && !found {
		return fault.New(fault.NotFound, "snapshot %s no longer exists", id).
			WithHint("see the history: coppice log NAME")
	}
	return t.err
}

// AddSnapshot records a snapshot with its route (nil: it changed nothing), changes its sandbox's record with
// fn, and ends intent (0: none), in one transaction. fn must not use the database.
func (d *DB) AddSnapshot(
	ctx context.Context, s timeline.Snapshot, r *timeline.Route, intent int64, fn func(*Sandbox),
) error {
	return d.tx(ctx, func(t *tx) error {
		t.addSnapshot(s)
		if r != nil {
			t.addRoute(*r)
		}
		if intent != 0 {
			t.exec("DELETE FROM intents WHERE id=?", intent)
		}
		_, head, err := t.update(s.Sandbox, func(rec *Sandbox) error { fn(rec); return nil })
		if err == nil && head != s.ID {
			t.addMove(s.Sandbox, s.Created, head)
		}
		return err
	})
}

// Graft records snapshots of a sandbox with their routes, parents first, and lets fn change
// its record, in one transaction. fn must not use the database.
func (d *DB) Graft(
	ctx context.Context, id timeline.SandboxID, snaps []timeline.Snapshot, routes []timeline.Route, fn func(*Sandbox),
) error {
	return d.tx(ctx, func(t *tx) error {
		for i := range snaps {
			t.addSnapshot(snaps[i])
		}
		for _, r := range routes {
			t.addRoute(r)
		}
		before, after, err := t.update(id, func(rec *Sandbox) error { fn(rec); return nil })
		if err == nil && before != after {
			t.addMove(id, d.Now(), after)
		}
		return err
	})
}

// stretch is the start of a query over a snapshot (?1) and those right below it
// that the same sandbox made.
const stretch = `WITH RECURSIVE line(id) AS (
	SELECT ?1
	UNION SELECT p.id FROM line JOIN snapshots s ON s.id=line.id JOIN snapshots p ON p.id=s.parent AND p.sandbox=s.sandbox
) `

// TakeOver makes a snapshot, and all below it that the same sandbox made, snapshots of sandbox id, and so part of its
// history. It also records, as moves, where the HEAD of id was when they were made, so that references to HEAD by
// time stay correct.
func (d *DB) TakeOver(ctx context.Context, id timeline.SandboxID, top timeline.SnapshotID) error {
	return d.tx(ctx, func(t *tx) error {
		found := false
		t.each("SELECT 1 FROM sandboxes WHERE id=?", func(scanner) error { found = true; return nil }, id)
		if t.err == nil && !found {
			return fault.New(fault.NotFound, "sandbox %s no longer exists", id).
				WithHint("list them: coppice ls")
		}
		if err := t.mustExist(top); err != nil {
			return err
		}
		// Where HEAD was then: at its newest snapshot, or where it had moved to since.
		t.exec(stretch+`INSERT INTO moves(sandbox,at,snapshot) SELECT ?2,n.created,(
				SELECT was FROM (
					SELECT id AS was,created AS at,0 AS moved,0 AS nr FROM snapshots WHERE sandbox=?2
					UNION ALL SELECT snapshot,at,1,rowid FROM moves WHERE sandbox=?2)
				WHERE at<=n.created ORDER BY at DESC,moved DESC,nr DESC LIMIT 1) AS was
			FROM line JOIN snapshots n ON n.id=line.id WHERE n.sandbox<>?2 AND was IS NOT NULL`, top, id)
		t.exec(stretch+"UPDATE snapshots SET sandbox=?2 WHERE id IN (SELECT id FROM line)", top, id)
		return nil
	})
}

// AddRoute records a merged layer. It returns NotFound if one of the snapshots was deleted meanwhile.
func (d *DB) AddRoute(ctx context.Context, r timeline.Route) error {
	return d.tx(ctx, func(t *tx) error {
		for _, id := range []timeline.SnapshotID{r.Top, r.Below} {
			if id == "" {
				continue
			}
			if err := t.mustExist(id); err != nil {
				return err
			}
		}
		t.addRoute(r)
		return nil
	})
}

// History reads a sandbox's history, with the ancestors that it shares. The
// history of an unknown sandbox is empty.
func (d *DB) History(ctx context.Context, id timeline.SandboxID) (timeline.History, error) {
	h := timeline.History{Sandbox: id, Snapshots: map[timeline.SnapshotID]timeline.Snapshot{},
		Tags: map[string]timeline.SnapshotID{}}
	return h, d.view(ctx, func(v *view) {
		v.each(owned+"SELECT "+snapCols+" FROM line JOIN snapshots s ON s.id=line.id", func(sc scanner) error {
			s, err := scanSnapshot(sc)
			h.Snapshots[s.ID] = s
			return err
		}, id)
		v.each("SELECT name,snapshot FROM tags WHERE sandbox=?", func(s scanner) error {
			var name string
			var snap timeline.SnapshotID
			err := s.Scan(&name, &snap)
			h.Tags[name] = snap
			return err
		}, id)
		v.each("SELECT at,snapshot FROM moves WHERE sandbox=? ORDER BY at,rowid", func(s scanner) error {
			var at int64
			var m timeline.Move
			err := s.Scan(&at, &m.To)
			m.At = time.UnixMicro(at).UTC()
			h.Moves = append(h.Moves, m)
			return err
		}, id)
		v.each("SELECT head FROM sandboxes WHERE id=?", func(s scanner) error { return s.Scan(&h.Head) }, id)
	})
}

// Lineage reads the parents and routes of a snapshot and of all snapshots that it is built on. The lineage of an
// unknown snapshot is empty.
func (d *DB) Lineage(ctx context.Context, id timeline.SnapshotID) (timeline.Lineage, error) {
	l := timeline.Lineage{Parents: map[timeline.SnapshotID]timeline.SnapshotID{}, Routes: timeline.Routes{}}
	var top, parent, below, layer sql.RawBytes
	return l, d.rows(ctx, lineage+`SELECT s.id,s.parent,r.below,r.layer,r.merged
		FROM line JOIN snapshots s ON s.id=line.id LEFT JOIN routes r ON r.top=s.id`, func(s scanner) error {
		var merged sql.NullBool
		if err := s.Scan(&top, &parent, &below, &layer, &merged); err != nil {
			return err
		}
		t := timeline.SnapshotID(top)
		l.Parents[t] = timeline.SnapshotID(parent)
		if merged.Valid {
			l.Routes[t] = append(l.Routes[t], timeline.Route{
				Top: t, Below: timeline.SnapshotID(below), Layer: timeline.LayerID(layer), Merged: merged.Bool,
			})
		}
		return nil
	}, id)
}

// HasSnapshot reports whether a snapshot exists.
func (d *DB) HasSnapshot(ctx context.Context, id timeline.SnapshotID) (there bool, err error) {
	err = d.rows(ctx, "SELECT 1 FROM snapshots WHERE id=?", func(scanner) error { there = true; return nil }, id)
	return there, err
}

// Ground returns the parent and the routes of a snapshot. Both are empty for an unknown snapshot.
func (d *DB) Ground(
	ctx context.Context, id timeline.SnapshotID,
) (parent timeline.SnapshotID, routes []timeline.Route, err error) {
	err = d.rows(ctx, `SELECT coalesce(s.parent,''),s.id,coalesce(r.below,''),coalesce(r.layer,''),coalesce(r.merged,0)
		FROM snapshots s LEFT JOIN routes r ON r.top=s.id WHERE s.id=?`, func(s scanner) error {
		var r timeline.Route
		err := s.Scan(&parent, &r.Top, &r.Below, &r.Layer, &r.Merged)
		if r.Layer != "" {
			routes = append(routes, r)
		}
		return err
	}, id)
	return parent, routes, err
}

// Cut describes how the removal of a snapshot from the history affects routes.
type Cut struct {
	Below timeline.SnapshotID // where routes that ended in the snapshot shall end
	Own   *timeline.Route     // its own route; nil when it changed nothing
	Above []timeline.Route    // the routes, not merged ones, that end in it
}

// Cut returns the changes of routes for DeleteSnapshot.
func (d *DB) Cut(ctx context.Context, id timeline.SnapshotID) (c Cut, err error) {
	return c, d.view(ctx, func(v *view) {
		v.each("SELECT coalesce(parent,'') FROM snapshots WHERE id=?", func(s scanner) error { return s.Scan(&c.Below) }, id)
		v.each("SELECT "+routeCols+" FROM routes WHERE top=? AND NOT merged", func(s scanner) error {
			r, err := scanRoute(s)
			c.Own, c.Below = &r, r.Below
			return err
		}, id)
		v.each("SELECT "+routeCols+" FROM routes WHERE below=? AND NOT merged ORDER BY top", func(s scanner) error {
			r, err := scanRoute(s)
			c.Above = append(c.Above, r)
			return err
		}, id)
	})
}

// DeleteSnapshot removes a snapshot: its children get its parent, the routes that ended in it are replaced by
// led, and tags on it and merged routes from or to it are removed. A child without a route of its own equals
// the snapshot, so it inherits the snapshot's route. It returns the layers that nothing refers to any more,
// whose records were removed. It returns Conflict for a snapshot that is some sandbox's head, or that a live
// root stands on, and if led lacks a route that meanwhile ends in the snapshot. sealed are those layers of
// led that are safe on the disk.
func (d *DB) DeleteSnapshot(
	ctx context.Context, id timeline.SnapshotID, led []timeline.Route, sealed ...Layer,
) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		unused, err = t.deleteSnapshot(id, led, sealed)
		return err
	})
	return unused, err
}

// DropSnapshot is DeleteSnapshot for a snapshot that was not named in a request: it also returns Conflict if
// Held would list the snapshot.
func (d *DB) DropSnapshot(
	ctx context.Context, id timeline.SnapshotID, led []timeline.Route, sealed ...Layer,
) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		unused, err = t.dropSnapshot(id, led, sealed)
		return err
	})
	return unused, err
}

func (t *tx) dropSnapshot(
	id timeline.SnapshotID, led []timeline.Route, sealed []Layer,
) (unused []timeline.LayerID, err error) {
	kept := false
	t.each("SELECT 1 FROM snapshots s WHERE s.id=? AND "+isHeld, func(scanner) error { kept = true; return nil }, id)
	if kept {
		return nil, fault.New(fault.Conflict, "snapshot %s is in use", id)
	}
	return t.deleteSnapshot(id, led, sealed)
}

// DropRun is DropSnapshot for a run of snapshots, each the parent of the one before
// it, in one transaction. led[i] is for ids[i].
func (d *DB) DropRun(
	ctx context.Context, ids []timeline.SnapshotID, led [][]timeline.Route, sealed ...Layer,
) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		for i, id := range ids {
			gone, err := t.dropSnapshot(id, led[i], sealed)
			if err != nil {
				return err
			}
			unused = append(unused, gone...)
		}
		return nil
	})
	return unused, err
}

// isHeld is the condition that something refers to a snapshot s: a tag, a head, a live root, the redo list of any
// sandbox, or a snapshot of another sandbox than the one that made it.
const isHeld = `(EXISTS (SELECT 1 FROM tags g WHERE g.snapshot=s.id)
	OR EXISTS (SELECT 1 FROM sandboxes b WHERE b.head=s.id) OR EXISTS (SELECT 1 FROM sandboxes b WHERE b.mount=s.id)
	OR EXISTS (SELECT 1 FROM redos r WHERE r.snapshot=s.id)
	OR EXISTS (SELECT 1 FROM snapshots c WHERE c.parent=s.id AND c.sandbox<>s.sandbox))`

// Held returns those snapshots of a sandbox that are tagged, a head, mounted by a live root, the origin of a fork, or
// in a redo list.
func (d *DB) Held(ctx context.Context, id timeline.SandboxID) (map[timeline.SnapshotID]bool, error) {
	out := map[timeline.SnapshotID]bool{}
	return out, d.rows(ctx, "SELECT s.id FROM snapshots s WHERE s.sandbox=? AND "+isHeld, func(s scanner) error {
		var snap timeline.SnapshotID
		err := s.Scan(&snap)
		out[snap] = true
		return err
	}, id)
}

// deleteSnapshot: see DB.DeleteSnapshot.
func (t *tx) deleteSnapshot(
	id timeline.SnapshotID, led []timeline.Route, sealed []Layer,
) (unused []timeline.LayerID, err error) {
	if err := t.mustExist(id); err != nil {
		return nil, err
	}
	var user string
	t.each("SELECT name FROM sandboxes WHERE head=?1 OR mount=?1 LIMIT 1",
		func(s scanner) error { return s.Scan(&user) }, id)
	if user != "" {
		return nil, fault.New(fault.Conflict, "sandbox %s is at snapshot %s", user, id).
			WithHint("rewind to another snapshot first: coppice rewind %s REF", user)
	}
	replaced := map[timeline.SnapshotID]bool{}
	for _, r := range led {
		replaced[r.Top] = true
	}
	t.each("SELECT top FROM routes WHERE below=? AND NOT merged", func(s scanner) error {
		var top timeline.SnapshotID
		if err := s.Scan(&top); err != nil || replaced[top] {
			return err
		}
		return fault.New(fault.Conflict, "snapshot %s is now the base of snapshot %s", id, top).WithHint("try again")
	}, id)

	t.exec(`INSERT INTO routes(top,layer,below,merged)
		SELECT c.id,r.layer,r.below,0 FROM snapshots c JOIN routes r ON r.top=?1 AND NOT r.merged
		WHERE c.parent=?1 AND NOT EXISTS (SELECT 1 FROM routes o WHERE o.top=c.id AND NOT o.merged)`, id)
	t.exec("UPDATE snapshots SET parent=(SELECT parent FROM snapshots WHERE id=?1) WHERE parent=?1", id)
	var loose []timeline.LayerID
	t.each("DELETE FROM routes WHERE top=?1 OR below=?1 RETURNING layer", collect(&loose), id)
	for _, r := range led {
		t.addRoute(r)
	}
	for _, l := range sealed {
		t.markFinalized(l)
	}
	t.exec("DELETE FROM tags WHERE snapshot=?", id)
	t.exec("DELETE FROM bases WHERE top=?", id)
	t.exec("DELETE FROM snapshots WHERE id=?", id)
	return t.dropUnused(loose), nil
}

// dropUnused deletes the records of those layers that no route uses, and returns these layers.
func (t *tx) dropUnused(loose []timeline.LayerID) (unused []timeline.LayerID) {
	for _, id := range loose {
		t.each("DELETE FROM layers WHERE id=?1 AND NOT EXISTS (SELECT 1 FROM routes WHERE layer=?1) RETURNING id",
			collect(&unused), id)
	}
	return unused
}

// collect returns a scan function that appends the values of a column to out.
func collect[T any](out *[]T) func(scanner) error {
	return func(s scanner) error {
		var v T
		err := s.Scan(&v)
		*out = append(*out, v)
		return err
	}
}

// Base is an imported root file system, at the bottom of stacks.
type Base struct {
	ID      string
	Key     string              // by which it is found again; "": never
	Top     timeline.SnapshotID // the snapshot that contains it
	Parent  timeline.SnapshotID // the base that it was refreshed from; "" if imported whole. Not stored here.
	Host    bool                // the host itself: no snapshot. Not stored.
	Label   string              // for people
	Print   string              // fingerprint of the source
	Created time.Time
}

// Base finds the newest base of a key, or NotFound.
func (d *DB) Base(ctx context.Context, key string) (b Base, err error) {
	err = d.rows(ctx,
		"SELECT id,key,top,label,print,created FROM bases WHERE key=? AND key<>'' ORDER BY created DESC LIMIT 1",
		func(s scanner) error {
			var created int64
			err := s.Scan(&b.ID, &b.Key, &b.Top, &b.Label, &b.Print, &created)
			b.Created = time.UnixMicro(created).UTC()
			return err
		}, key)
	if err == nil && b.ID == "" {
		err = fault.New(fault.NotFound, "base %q not found", key)
	}
	return b, err
}

// BaseKey returns the key of a base; "" if it has none, or does not exist.
func (d *DB) BaseKey(ctx context.Context, id string) (key string, err error) {
	err = d.rows(ctx, "SELECT key FROM bases WHERE id=?", func(s scanner) error { return s.Scan(&key) }, id)
	return key, err
}

// AddBase records a base with its snapshot and route.
func (d *DB) AddBase(ctx context.Context, b Base, s timeline.Snapshot, r timeline.Route) error {
	return d.tx(ctx, func(t *tx) error {
		t.addSnapshot(s)
		t.addRoute(r)
		t.exec("INSERT INTO bases(id,key,top,label,print,created) VALUES(?,?,?,?,?,?)", b.ID, b.Key, b.Top, b.Label, b.Print,
			b.Created.UnixMicro())
		return nil
	})
}

// SetBasePrint records that a base equals its source as it is now, with the fingerprint print.
func (d *DB) SetBasePrint(ctx context.Context, id, print string) error {
	return d.tx(ctx, func(t *tx) error {
		if t.exec("UPDATE bases SET print=? WHERE id=?", print, id) == 0 && t.err == nil {
			return fault.New(fault.NotFound, "base %s no longer exists", id)
		}
		return nil
	})
}

// Grown returns the size of the import at the bottom of a base, and of all refreshes on it, in bytes.
func (d *DB) Grown(ctx context.Context, top timeline.SnapshotID) (whole, since int64, err error) {
	err = d.rows(ctx, `WITH RECURSIVE line(id,parent,bytes) AS (
			SELECT id,parent,bytes FROM snapshots WHERE id=?
			UNION SELECT s.id,s.parent,s.bytes FROM line JOIN snapshots s ON s.id=line.parent
		) SELECT coalesce(sum(bytes) FILTER (WHERE parent IS NULL),0), coalesce(sum(bytes) FILTER (WHERE parent IS NOT NULL),0) FROM line`,
		func(s scanner) error { return s.Scan(&whole, &since) }, top)
	return whole, since, err
}

// MemoryImages returns the distinct memory images of snapshots.
func (d *DB) MemoryImages(ctx context.Context) (images []string, err error) {
	return images, d.rows(ctx, "SELECT DISTINCT image FROM memories ORDER BY image", collect(&images))
}
