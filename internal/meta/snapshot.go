package meta

import (
	"context"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// lineage is the start of a query over a snapshot (?1) and all its ancestors.
const lineage = `WITH RECURSIVE line(id) AS (
	SELECT ?1 UNION SELECT s.parent FROM snapshots s JOIN line ON s.id=line.id WHERE s.parent<>''
) `

// owned is the start of a query over everything in the history of a sandbox
// (?1): its own snapshots, and the ancestors that it shares.
const owned = `WITH RECURSIVE line(id) AS (
	SELECT id FROM snapshots WHERE sandbox=?1
	UNION SELECT s.parent FROM snapshots s JOIN line ON s.id=line.id WHERE s.parent<>''
) `

// sealedExpr is whether a snapshot's own layer is sealed; one without a layer is
// as safe as its parent.
const sealedExpr = `NOT EXISTS (SELECT 1 FROM routes r JOIN layers l ON l.id=r.layer WHERE r.top=s.id AND NOT r.merged AND NOT l.sealed)`

func (t *tx) addSnapshot(s timeline.Snapshot) {
	t.exec("INSERT INTO snapshots(id,sandbox,parent,cause,message,created,exit,paths,bytes) VALUES(?,?,?,?,?,?,?,?,?)",
		s.ID, s.Sandbox, s.Parent, s.Cause, s.Message, s.Created.UnixMicro(), s.Exit, s.Stats.Paths, s.Stats.Bytes)
}

func (t *tx) addRoute(r timeline.Route) {
	t.exec("INSERT INTO layers(id,merged,seq,sealed,digest,diff_id,size) VALUES(?,?,(SELECT coalesce(max(seq),0)+1 FROM layers),0,'','',0) ON CONFLICT DO NOTHING", r.Layer, r.Merged)
	t.exec("INSERT INTO routes(top,below,layer,merged) VALUES(?,?,?,?)", r.Top, r.Below, r.Layer, r.Merged)
}

// AddSnapshot records a snapshot with its route (nil: it changed nothing), lets
// fn change its sandbox's record, and ends intent (0: none), in one transaction.
func (d *DB) AddSnapshot(ctx context.Context, s timeline.Snapshot, r *timeline.Route, intent int64, fn func(*Sandbox)) error {
	return d.tx(ctx, func(t *tx) error {
		t.addSnapshot(s)
		if r != nil {
			t.addRoute(*r)
		}
		if intent != 0 {
			t.exec("DELETE FROM intents WHERE id=?", intent)
		}
		return t.update(s.Sandbox, func(rec *Sandbox) error { fn(rec); return nil })
	})
}

// AddRoute records a merged layer.
func (d *DB) AddRoute(ctx context.Context, r timeline.Route) error {
	return d.tx(ctx, func(t *tx) error { t.addRoute(r); return nil })
}

// History reads a sandbox's history, with the ancestors that it shares.
func (d *DB) History(ctx context.Context, id timeline.SandboxID) (timeline.History, error) {
	h := timeline.History{Snapshots: map[timeline.SnapshotID]timeline.Snapshot{}, Tags: map[string]timeline.SnapshotID{}}
	err := d.rows(ctx, owned+"SELECT s.id,s.sandbox,s.parent,s.cause,s.message,s.created,s.exit,s.paths,s.bytes,"+sealedExpr+
		" FROM snapshots s JOIN line ON s.id=line.id", func(sc scanner) error {
		s, err := scanSnapshot(sc)
		h.Snapshots[s.ID] = s
		return err
	}, id)
	if err != nil {
		return h, err
	}
	err = d.rows(ctx, "SELECT name,snapshot FROM tags WHERE sandbox=?", func(s scanner) error {
		var name string
		var snap timeline.SnapshotID
		err := s.Scan(&name, &snap)
		h.Tags[name] = snap
		return err
	}, id)
	if err != nil {
		return h, err
	}
	return h, d.rows(ctx, "SELECT head FROM sandboxes WHERE id=?", func(s scanner) error { return s.Scan(&h.Head) }, id)
}

func scanSnapshot(sc scanner) (s timeline.Snapshot, err error) {
	var created int64
	err = sc.Scan(&s.ID, &s.Sandbox, &s.Parent, &s.Cause, &s.Message, &created, &s.Exit, &s.Stats.Paths, &s.Stats.Bytes, &s.Sealed)
	s.Created = time.UnixMicro(created).UTC()
	return s, err
}

// Lineage reads the parents and routes of a snapshot and all its ancestors.
func (d *DB) Lineage(ctx context.Context, id timeline.SnapshotID) (timeline.Lineage, error) {
	l := timeline.Lineage{Parents: map[timeline.SnapshotID]timeline.SnapshotID{}}
	err := d.rows(ctx, lineage+"SELECT s.id,s.parent FROM snapshots s JOIN line ON s.id=line.id", func(s scanner) error {
		var id, parent timeline.SnapshotID
		err := s.Scan(&id, &parent)
		l.Parents[id] = parent
		return err
	}, id)
	if err != nil {
		return l, err
	}
	var routes []timeline.Route
	err = d.rows(ctx, lineage+"SELECT r.top,r.below,r.layer,r.merged FROM routes r JOIN line ON r.top=line.id", func(s scanner) error {
		r, err := scanRoute(s)
		routes = append(routes, r)
		return err
	}, id)
	l.Routes = timeline.RoutesByTop(routes)
	return l, err
}

func scanRoute(s scanner) (r timeline.Route, err error) {
	return r, s.Scan(&r.Top, &r.Below, &r.Layer, &r.Merged)
}

// Cut is what taking a snapshot out of the history means for routes.
type Cut struct {
	Below timeline.SnapshotID // where routes that ended in the snapshot shall end
	Own   *timeline.Route     // its own route; nil when it changed nothing
	Above []timeline.Route    // the routes, not merged ones, that end in it
}

// Cut reads what DeleteSnapshot needs.
func (d *DB) Cut(ctx context.Context, id timeline.SnapshotID) (c Cut, err error) {
	err = d.rows(ctx, "SELECT parent FROM snapshots WHERE id=?", func(s scanner) error { return s.Scan(&c.Below) }, id)
	if err != nil {
		return c, err
	}
	err = d.rows(ctx, "SELECT top,below,layer,merged FROM routes WHERE top=? AND NOT merged", func(s scanner) error {
		r, err := scanRoute(s)
		c.Own, c.Below = &r, r.Below
		return err
	}, id)
	if err != nil {
		return c, err
	}
	return c, d.rows(ctx, "SELECT top,below,layer,merged FROM routes WHERE below=? AND NOT merged", func(s scanner) error {
		r, err := scanRoute(s)
		c.Above = append(c.Above, r)
		return err
	}, id)
}

// DeleteSnapshot takes a snapshot out: its children get its parent, the routes
// that ended in it are replaced by led, tags on it and merged routes from or to
// it go. It gives the layers that nothing refers to any more, whose records are
// gone.
func (d *DB) DeleteSnapshot(ctx context.Context, id timeline.SnapshotID, led []timeline.Route) (unused []timeline.LayerID, err error) {
	err = d.tx(ctx, func(t *tx) error {
		t.exec("UPDATE snapshots SET parent=(SELECT parent FROM snapshots WHERE id=?1) WHERE parent=?1", id)
		t.exec("DELETE FROM routes WHERE top=?1 OR below=?1", id)
		for _, r := range led {
			t.addRoute(r)
		}
		t.exec("DELETE FROM tags WHERE snapshot=?", id)
		if t.exec("DELETE FROM snapshots WHERE id=?", id) == 0 && t.err == nil {
			return fault.New(fault.NotFound, "there is no snapshot %s any more", id)
		}
		unused = t.dropUnused()
		return nil
	})
	return unused, err
}

// dropUnused deletes the records of layers that no route uses, and gives them.
func (t *tx) dropUnused() (unused []timeline.LayerID) {
	t.each("DELETE FROM layers WHERE id NOT IN (SELECT layer FROM routes) RETURNING id", func(s scanner) error {
		var id timeline.LayerID
		err := s.Scan(&id)
		unused = append(unused, id)
		return err
	})
	return unused
}

// Base is an imported bottom of stacks.
type Base struct {
	ID      string
	Key     string              // what it is found again by; "" for never
	Top     timeline.SnapshotID // the snapshot that holds it
	Parent  timeline.SnapshotID // what it was refreshed from; "" when imported whole. Not stored here.
	Host    bool                // the host itself: no snapshot. Not stored.
	Label   string              // for people
	Print   string              // fingerprint of the source
	Created time.Time
}

// Base finds the newest base of a key, or NotFound.
func (d *DB) Base(ctx context.Context, key string) (b Base, err error) {
	err = d.rows(ctx, "SELECT id,key,top,label,print,created FROM bases WHERE key=? AND key<>'' ORDER BY created DESC LIMIT 1", func(s scanner) error {
		var created int64
		err := s.Scan(&b.ID, &b.Key, &b.Top, &b.Label, &b.Print, &created)
		b.Created = time.UnixMicro(created).UTC()
		return err
	}, key)
	if err == nil && b.ID == "" {
		err = fault.New(fault.NotFound, "there is no base %q yet", key)
	}
	return b, err
}

// AddBase records a base with its snapshot and route.
func (d *DB) AddBase(ctx context.Context, b Base, s timeline.Snapshot, r timeline.Route) error {
	return d.tx(ctx, func(t *tx) error {
		t.addSnapshot(s)
		t.addRoute(r)
		t.exec("INSERT INTO bases(id,key,top,label,print,created) VALUES(?,?,?,?,?,?)", b.ID, b.Key, b.Top, b.Label, b.Print, b.Created.UnixMicro())
		return nil
	})
}
