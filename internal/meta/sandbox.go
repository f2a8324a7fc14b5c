package meta

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sandbox is the record of a sandbox.
type Sandbox struct {
	ID       timeline.SandboxID
	Name     string
	Created  time.Time
	Head     timeline.SnapshotID // what the live state descends from
	MountTop timeline.SnapshotID // what the live root stands on
	Gen      int                 // the live root's generation, from 1
	Config
}

// Config is the part of a record that is not searched for.
type Config struct {
	From         string                `json:"from"` // for people
	Base         string                `json:"base,omitempty"`
	Host         bool                  `json:"host,omitempty"` // the base is the host itself
	HostPrint    string                `json:"host_print,omitempty"`
	Driver       string                `json:"driver"`
	DriverReason string                `json:"driver_reason,omitempty"`
	Tier         string                `json:"tier"`
	TierReason   string                `json:"tier_reason,omitempty"`
	User         string                `json:"user"`
	Net          string                `json:"net"`
	Env          []string              `json:"env,omitempty"`
	Limits       wire.Limits           `json:"limits,omitzero"`
	Enforced     []wire.Enforcement    `json:"enforced,omitempty"` // as of the last start
	Redo         []timeline.SnapshotID `json:"redo,omitempty"`     // newest last
	Notices      []string              `json:"notices,omitempty"`  // what people must be told
}

const sandboxCols = "id,name,created,head,mount,gen,config"

func scanSandbox(s scanner) (rec Sandbox, err error) {
	var created int64
	var config string
	if err = s.Scan(&rec.ID, &rec.Name, &created, &rec.Head, &rec.MountTop, &rec.Gen, &config); err != nil {
		return rec, err
	}
	rec.Created = time.UnixMicro(created).UTC()
	if err = json.Unmarshal([]byte(config), &rec.Config); err != nil {
		return rec, fault.New(fault.Corrupt, "record of sandbox %s", rec.ID).Because(err)
	}
	return rec, nil
}

// Sandbox finds a sandbox by name or id. An unknown one is NotFound, with the
// names that are near.
func (d *DB) Sandbox(ctx context.Context, name string) (rec Sandbox, err error) {
	found := false
	err = d.rows(ctx, "SELECT "+sandboxCols+" FROM sandboxes WHERE name=?1 OR id=?1 ORDER BY name=?1 LIMIT 1", func(s scanner) (err error) {
		found = true
		rec, err = scanSandbox(s)
		return err
	}, name)
	if err == nil && !found {
		f := fault.New(fault.NotFound, "there is no sandbox %q", name)
		return rec, f.WithHint("%s", d.near(ctx, name))
	}
	return rec, err
}

// near suggests what was meant.
func (d *DB) near(ctx context.Context, name string) string {
	var names []string
	_ = d.rows(ctx, "SELECT name FROM sandboxes WHERE name LIKE ? ESCAPE '\\' ORDER BY name LIMIT 5", func(s scanner) error { //nolint:errcheck // a hint
		var n string
		if err := s.Scan(&n); err != nil {
			return err
		}
		names = append(names, n)
		return nil
	}, "%"+strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(name)+"%")
	if len(names) > 0 {
		return "did you mean " + strings.Join(names, ", ") + "? All of them: coppice ls"
	}
	return "see which there are with: coppice ls"
}

// Sandboxes lists all sandboxes by name.
func (d *DB) Sandboxes(ctx context.Context) (out []Sandbox, err error) {
	err = d.rows(ctx, "SELECT "+sandboxCols+" FROM sandboxes ORDER BY name", func(s scanner) error {
		rec, err := scanSandbox(s)
		out = append(out, rec)
		return err
	})
	return out, err
}

// Heads lists the heads of all sandboxes.
func (d *DB) Heads(ctx context.Context) (out []timeline.SnapshotID, err error) {
	err = d.rows(ctx, "SELECT DISTINCT head FROM sandboxes", func(s scanner) error {
		var id timeline.SnapshotID
		err := s.Scan(&id)
		out = append(out, id)
		return err
	})
	return out, err
}

// Names gives the names of all sandboxes by id.
func (d *DB) Names(ctx context.Context) (map[timeline.SandboxID]string, error) {
	out := map[timeline.SandboxID]string{}
	err := d.rows(ctx, "SELECT id,name FROM sandboxes", func(s scanner) error {
		var id timeline.SandboxID
		var n string
		err := s.Scan(&id, &n)
		out[id] = n
		return err
	})
	return out, err
}

// CreateSandbox records a sandbox and the snapshot that it begins with.
func (d *DB) CreateSandbox(ctx context.Context, rec Sandbox, first timeline.Snapshot) error {
	return d.CreateSandboxes(ctx, []Sandbox{rec}, []timeline.Snapshot{first})
}

// CreateSandboxes records several at once, or none. firsts[i] belongs to
// recs[i]. A name that is taken is Exists.
func (d *DB) CreateSandboxes(ctx context.Context, recs []Sandbox, firsts []timeline.Snapshot) error {
	return d.tx(ctx, func(t *tx) error {
		for i := range recs {
			r := &recs[i]
			taken := false
			t.each("SELECT 1 FROM sandboxes WHERE name=? OR id=?", func(scanner) error { taken = true; return nil }, r.Name, r.Name)
			if taken {
				return fault.New(fault.Exists, "there is a sandbox %s already", r.Name).
					WithHint("choose another name, or remove it: coppice rm %s", r.Name)
			}
			config, err := json.Marshal(r.Config)
			if err != nil {
				return fmt.Errorf("record of sandbox %s: %w", r.ID, err)
			}
			t.exec("INSERT INTO sandboxes("+sandboxCols+") VALUES(?,?,?,?,?,?,?)",
				r.ID, r.Name, r.Created.UnixMicro(), r.Head, r.MountTop, r.Gen, string(config))
			t.addSnapshot(firsts[i])
		}
		return nil
	})
}

// UpdateSandbox changes a record by fn, which must not keep it.
func (d *DB) UpdateSandbox(ctx context.Context, id timeline.SandboxID, fn func(*Sandbox) error) error {
	return d.tx(ctx, func(t *tx) error { return t.update(id, fn) })
}

func (t *tx) update(id timeline.SandboxID, fn func(*Sandbox) error) error {
	var rec Sandbox
	found := false
	t.each("SELECT "+sandboxCols+" FROM sandboxes WHERE id=?", func(s scanner) (err error) {
		found = true
		rec, err = scanSandbox(s)
		return err
	}, id)
	if t.err != nil {
		return t.err
	}
	if !found {
		return fault.New(fault.NotFound, "there is no sandbox %s any more", id).WithHint("see which there are with: coppice ls")
	}
	if err := fn(&rec); err != nil {
		return err
	}
	config, err := json.Marshal(rec.Config)
	if err != nil {
		return fmt.Errorf("record of sandbox %s: %w", id, err)
	}
	t.exec("UPDATE sandboxes SET name=?,head=?,mount=?,gen=?,config=? WHERE id=?", rec.Name, rec.Head, rec.MountTop, rec.Gen, string(config), id)
	return t.err
}

// SetTag names a snapshot in a sandbox, or moves the name there.
func (d *DB) SetTag(ctx context.Context, id timeline.SandboxID, name string, snap timeline.SnapshotID) error {
	return d.tx(ctx, func(t *tx) error {
		t.exec("INSERT INTO tags VALUES(?,?,?) ON CONFLICT(sandbox,name) DO UPDATE SET snapshot=excluded.snapshot", id, name, snap)
		return nil
	})
}

// DeleteTag removes a name.
func (d *DB) DeleteTag(ctx context.Context, id timeline.SandboxID, name string) error {
	return d.tx(ctx, func(t *tx) error { t.exec("DELETE FROM tags WHERE sandbox=? AND name=?", id, name); return nil })
}
