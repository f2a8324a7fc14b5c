package meta

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/secretbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Sandbox is the record of a sandbox.
type Sandbox struct {
	ID       timeline.SandboxID
	Name     string
	Created  time.Time
	Head     timeline.SnapshotID // snapshot that the live state descends from
	MountTop timeline.SnapshotID // snapshot that the live root is mounted on
	Gen      int                 // the live root's generation, from 1
	// PolicyText is the text of Policy, if the database may not have it yet. A writer of a record sets it; in a
	// record that was read it is "": see DB.Policy.
	PolicyText string
	// OriginsText is the text of Origins; it is used like PolicyText.
	OriginsText string
	Config
}

// TimedRule is a network rule with an expiry.
type TimedRule struct {
	Rule  string    `json:"rule"` // as package policy writes it
	Deny  bool      `json:"deny,omitempty"`
	Until time.Time `json:"until"`
}

// Unchanged is the PolicyRecord of a sandbox whose policy has not changed since it was created.
const Unchanged = "unchanged"

// Config is the part of a record that is not searched. Fields that are also in private are stored encrypted.
type Config struct {
	From string `json:"from"` // shown to users
	Base string `json:"base,omitempty"`
	Host bool   `json:"host,omitempty"` // the base is the host itself
	// directory of the host that the root of the base was made from; "": none
	Root         string `json:"root,omitempty"`
	HostPrint    string `json:"host_print,omitempty"`
	Driver       string `json:"driver"`
	DriverReason string `json:"driver_reason,omitempty"`
	Tier         string `json:"tier"`
	TierReason   string `json:"tier_reason,omitempty"`
	User         string `json:"user"`
	Net          string `json:"net"`
	Policy       string `json:"policy,omitempty"` // digest; "": a record from before there were policies
	// digest of the origins of the parts of Policy, shown to users; "": unknown
	Origins string      `json:"origins,omitempty"`
	Timed   []TimedRule `json:"timed,omitempty"` // rules with an expiry, besides Policy
	// the inside trusts the gate's authority even without grants
	GrantsLater bool `json:"grants_later,omitempty"`
	// digest of the audit record of the newest change of Policy or Timed, stored with the change, or Unchanged; "": a
	// record from before this was stored
	PolicyRecord string   `json:"policy_record,omitempty"`
	Env          []string `json:"env,omitempty"`
	// secret variables of commands, as KEY=VALUE, oldest first
	Learnt []string    `json:"learnt,omitempty"`
	Limits wire.Limits `json:"limits,omitzero"`
	// paths inside whose content is not in its history: absolute, sorted, none within another one
	Ignored []string `json:"ignored,omitempty"`
	Strong  bool     `json:"strong,omitempty"` // refuse to start unless all protections are enforced
	// what processes inside may do with the history of the sandbox; "": wire.SelfRead
	Self     string             `json:"self,omitempty"`
	Enforced []wire.Enforcement `json:"enforced,omitempty"` // as of the last start
	// protections with which the sandbox, or the one that it was forked from, has run
	Required   []string              `json:"required,omitempty"`
	Redo       []timeline.SnapshotID `json:"redo,omitempty"`        // newest last
	Mark       string                `json:"mark,omitempty"`        // message of automatic snapshots
	KeepRecent int                   `json:"keep_recent,omitempty"` // for automatic snapshots; 0: the default
	KeepForMS  int64                 `json:"keep_for_ms,omitempty"` // likewise
	Notices    []string              `json:"notices,omitempty"`     // shown to users
	// a power failure lost its first snapshot, and so all of it
	Lost     bool       `json:"lost,omitempty"`
	Halted   *Halt      `json:"halted,omitempty"`   // last time that Coppice killed its processes unasked
	Run      *wire.Run  `json:"run,omitempty"`      // the supervised command, also when it has ended
	Again    bool       `json:"again,omitempty"`    // start Run again: a rewind is in progress
	Starting bool       `json:"starting,omitempty"` // Run was requested, and may not have been started
	Expires  *time.Time `json:"expires,omitempty"`
	// set by clients, as package label accepts them; a map that was read must not be changed
	Labels map[string]string `json:"labels,omitempty"`
	// time of inactivity after which its processes are stopped; 0: never
	IdleStopMS int64  `json:"idle_stop_ms,omitempty"`
	Tournament string `json:"tournament,omitempty"` // tournament whose candidate's fork this is; removed by gc
	// set while a trial or an unfinished tournament uses this fork; nil: none does
	Trial *Trial `json:"trial,omitempty"`
	// machine-id(5) inside, wherever its files have one of Foreign; "": that of its files
	MachineID string `json:"machine_id,omitempty"`
	// machine IDs of the host, or of sandboxes that it was forked from, newest last
	Foreign []string `json:"foreign,omitempty"`
	// a fork with SSH host keys or hooks of its parent: it is re-keyed before its first command
	Unkeyed bool `json:"unkeyed,omitempty"`
	// why its gate passes nothing; nil: not quarantined
	Quarantine *Quarantine `json:"quarantine,omitempty"`
	// repository of the host that it works on; nil: none
	Repo *Repo `json:"repo,omitempty"`
}

// Trial marks a fork that lives only as long as a trial, or a tournament in progress. The daemon that made it removes
// it at the end; a daemon that starts removes all that are left, with their processes.
type Trial struct {
	Of     timeline.SandboxID `json:"of"`               // the sandbox that it was forked from
	Inside bool               `json:"inside,omitempty"` // a process of that sandbox asked for it
}

// Repo is a git repository that a sandbox works on. Commits are full names.
type Repo struct {
	Top    string `json:"top"`            // of the work tree, on the host and inside
	Common string `json:"common"`         // its git directory, on the host
	Dir    string `json:"dir"`            // working directory of commands, inside
	Branch string `json:"branch"`         // short name of the branch that it started on
	Base   string `json:"base"`           // the frozen commit
	Start  string `json:"start"`          // the commit it started from: Base, or one on it with uncommitted work
	From   string `json:"from,omitempty"` // branch of the host whose tip was Base
	// Objects are directories of the host that have the objects, in the order in which they are shown inside.
	Objects []string `json:"objects,omitempty"`
}

// Quarantine records why nothing passes the gate of a sandbox whose processes resumed from the memory of another
// sandbox.
type Quarantine struct {
	Since  time.Time           `json:"since"`
	At     timeline.SnapshotID `json:"at"`             // its snapshot with the memory
	Step   string              `json:"step,omitempty"` // failed step; "": unknown
	Reason string              `json:"reason"`         // shown to users
}

// Halt records why Coppice killed the processes of a sandbox without a request.
type Halt struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

const sandboxCols = "id,name,created,head,mount,gen,config,enforced"

// encode returns the two columns of JSON that store a config. Enforced has its own column: it is long, and mostly
// equal for all sandboxes of a host.
func (c Config) encode(key secretbox.Key) (config, enforced string, err error) {
	e, err := json.Marshal(c.Enforced)
	if err != nil {
		return "", "", err
	}
	c.Enforced = nil
	config, err = encodeConfig(key, c)
	return config, string(e), err
}

// decoded caches decoded values by their JSON.
type decoded struct {
	config   map[string]Config
	enforced map[string][]wire.Enforcement
}

// scanSandbox reads a record. It does not decode values again that are in seen, which may be nil.
func scanSandbox(s scanner, key secretbox.Key, seen *decoded) (rec Sandbox, err error) {
	var created int64
	var config, enforced sql.RawBytes
	if err = s.Scan(&rec.ID, &rec.Name, &created, &rec.Head, &rec.MountTop, &rec.Gen, &config, &enforced); err != nil {
		return rec, err
	}
	rec.Created = time.UnixMicro(created).UTC()
	if seen == nil {
		seen = new(decoded)
	}
	c, okConfig := seen.config[string(config)]
	e, okEnforced := seen.enforced[string(enforced)]
	if !okConfig {
		c, err = openConfig(key, config)
	}
	if !okEnforced && err == nil {
		err = json.Unmarshal(enforced, &e)
	}
	if err != nil {
		return rec, fault.New(fault.Corrupt, "record of sandbox %s", rec.ID).Because(err).WithHint(corruptHint)
	}
	if seen.config != nil {
		c.Env, c.Redo, c.Notices, c.Timed = slices.Clip(c.Env), slices.Clip(c.Redo), slices.Clip(c.Notices),
			slices.Clip(c.Timed)
		seen.config[string(config)], seen.enforced[string(enforced)] = c, slices.Clip(e)
	}
	rec.Config = c
	rec.Enforced = e
	return rec, nil
}

// Sandbox finds a sandbox by name or id; a name takes precedence. It returns NotFound for an unknown one, with the
// nearest name as hint.
func (d *DB) Sandbox(ctx context.Context, name string) (rec Sandbox, err error) {
	found := false
	err = d.rows(ctx, "SELECT "+sandboxCols+" FROM sandboxes WHERE name=?1 OR id=?1 ORDER BY name=?1 DESC LIMIT 1",
		func(s scanner) (err error) {
			found = true
			rec, err = scanSandbox(s, d.key, nil)
			return err
		}, name)
	if err == nil && !found {
		return rec, d.unknown(ctx, name)
	}
	return rec, err
}

// Head returns the head of a sandbox, which it finds as Sandbox does.
func (d *DB) Head(ctx context.Context, name string) (head timeline.SnapshotID, err error) {
	found := false
	err = d.rows(ctx, "SELECT head FROM sandboxes WHERE name=?1 OR id=?1 ORDER BY name=?1 DESC LIMIT 1",
		func(s scanner) error {
			found = true
			return s.Scan(&head)
		}, name)
	if err == nil && !found {
		return "", d.unknown(ctx, name)
	}
	return head, err
}

// At finds a sandbox that has a snapshot as its head, or otherwise one whose live root is mounted on it. It returns
// NotFound if there is none.
func (d *DB) At(ctx context.Context, id timeline.SnapshotID) (rec Sandbox, err error) {
	found := false
	err = d.rows(ctx, "SELECT "+sandboxCols+" FROM sandboxes WHERE head=?1 OR mount=?1 ORDER BY head=?1 DESC LIMIT 1",
		func(s scanner) (err error) {
			found = true
			rec, err = scanSandbox(s, d.key, nil)
			return err
		}, id)
	if err == nil && !found {
		err = fault.New(fault.NotFound, "no sandbox is at snapshot %s", id)
	}
	return rec, err
}

// Taken reports whether a new sandbox cannot have that name.
func (d *DB) Taken(ctx context.Context, name string) (taken bool, err error) {
	err = d.rows(ctx, "SELECT 1 FROM sandboxes WHERE name=?1 OR id=?1",
		func(scanner) error { taken = true; return nil }, name)
	return taken, err
}

// unknown returns the error for a name that no sandbox has.
func (d *DB) unknown(ctx context.Context, name string) error {
	shown := name
	if len(shown) > timeline.MaxName {
		shown = shown[:timeline.MaxName] + "..."
	}
	f := fault.New(fault.NotFound, "sandbox %q not found", shown)
	var names []string
	err := d.rows(ctx, "SELECT name FROM sandboxes", func(s scanner) error {
		var n string
		err := s.Scan(&n)
		names = append(names, n)
		return err
	})
	if near := fault.Nearest(name, names); near != "" && err == nil {
		return f.WithHint("did you mean %s? List them: coppice ls", near)
	}
	return f.WithHint("list them: coppice ls")
}

// Sandboxes lists all sandboxes by name. Records with equal configurations share the elements of their slices and
// must not be changed.
func (d *DB) Sandboxes(ctx context.Context) (out []Sandbox, err error) {
	seen := &decoded{config: map[string]Config{}, enforced: map[string][]wire.Enforcement{}}
	err = d.rows(ctx, "SELECT "+sandboxCols+" FROM sandboxes ORDER BY name", func(s scanner) error {
		rec, err := scanSandbox(s, d.key, seen)
		out = append(out, rec)
		return err
	})
	return out, err
}

// Name returns the name of a sandbox; "" if it was removed.
func (d *DB) Name(ctx context.Context, id timeline.SandboxID) (name string, err error) {
	err = d.rows(ctx, "SELECT name FROM sandboxes WHERE id=?", func(s scanner) error { return s.Scan(&name) }, id)
	return name, err
}

// CreateSandbox records a sandbox and its first snapshot.
func (d *DB) CreateSandbox(ctx context.Context, rec Sandbox, first timeline.Snapshot) error {
	return d.CreateSandboxes(ctx, []Sandbox{rec}, []timeline.Snapshot{first})
}

// CreateSandboxes records several sandboxes, all or none. firsts[i] is the first snapshot of recs[i]. It returns
// Exists if a name is taken.
func (d *DB) CreateSandboxes(ctx context.Context, recs []Sandbox, firsts []timeline.Snapshot) error {
	return d.tx(ctx, func(t *tx) error { return t.createSandboxes(recs, firsts) })
}

// CreateSandboxOn is CreateSandbox for a sandbox whose first snapshot has a layer: r is the route of first. The
// intent that was begun for it ends in the same transaction; 0: none.
func (d *DB) CreateSandboxOn(
	ctx context.Context, rec Sandbox, first timeline.Snapshot, r timeline.Route, intent int64,
) error {
	return d.tx(ctx, func(t *tx) error {
		if err := t.createSandboxes([]Sandbox{rec}, []timeline.Snapshot{first}); err != nil {
			return err
		}
		t.addRoute(r)
		t.exec("DELETE FROM intents WHERE id=?", intent)
		return nil
	})
}

func (t *tx) createSandboxes(recs []Sandbox, firsts []timeline.Snapshot) error {
	for i := range recs {
		r := &recs[i]
		taken := false
		t.each("SELECT 1 FROM sandboxes WHERE name=?1 OR id=?1 OR id=?2",
			func(scanner) error { taken = true; return nil }, r.Name, r.ID)
		if taken {
			return fault.New(fault.Exists, "sandbox %s already exists", r.Name).
				WithHint("choose another name, or remove it: coppice rm %s", r.Name)
		}
		if i == 0 || r.Policy != recs[i-1].Policy || r.PolicyText != "" || r.Origins != recs[i-1].Origins ||
			r.OriginsText != "" {
			if err := t.pin(r); err != nil {
				return err
			}
		}
		config, enforced, err := r.encode(t.d.key)
		if err != nil {
			return fmt.Errorf("record of sandbox %s: %w", r.ID, err)
		}
		t.exec("INSERT INTO sandboxes("+sandboxCols+") VALUES(?,?,?,?,?,?,?,?)",
			r.ID, r.Name, r.Created.UnixMicro(), r.Head, r.MountTop, r.Gen, config, enforced)
		t.setRedo(r.ID, r.Redo)
		t.addSnapshot(firsts[i])
		if r.Head != firsts[i].ID {
			t.addMove(r.ID, firsts[i].Created, r.Head)
		}
	}
	return nil
}

// UpdateSandbox changes a record with fn, which must not retain it and must not use the database. If fn returns an
// error, the record is not changed.
func (d *DB) UpdateSandbox(ctx context.Context, id timeline.SandboxID, fn func(*Sandbox) error) error {
	return d.tx(ctx, func(t *tx) error {
		before, after, err := t.update(id, fn)
		if err == nil && before != after {
			t.addMove(id, d.Now(), after)
		}
		return err
	})
}

// update changes a record with fn, and returns HEAD before and after.
func (t *tx) update(id timeline.SandboxID, fn func(*Sandbox) error) (before, after timeline.SnapshotID, err error) {
	var rec Sandbox
	found := false
	t.each("SELECT "+sandboxCols+" FROM sandboxes WHERE id=?", func(s scanner) (err error) {
		found = true
		rec, err = scanSandbox(s, t.d.key, nil)
		return err
	}, id)
	if t.err != nil {
		return "", "", t.err
	}
	if !found {
		return "", "", fault.New(fault.NotFound, "sandbox %s no longer exists", id).
			WithHint("list them: coppice ls")
	}
	name, before, redo, policy, origins := rec.Name, rec.Head, slices.Clone(rec.Redo), rec.Policy, rec.Origins
	if err := fn(&rec); err != nil {
		return "", "", err
	}
	if rec.Policy != policy || rec.PolicyText != "" || rec.Origins != origins || rec.OriginsText != "" {
		if err := t.pin(&rec); err != nil {
			return "", "", err
		}
	}
	config, enforced, err := rec.encode(t.d.key)
	if err != nil {
		return "", "", fmt.Errorf("record of sandbox %s: %w", id, err)
	}
	t.exec("UPDATE sandboxes SET head=?,mount=?,gen=?,config=?,enforced=? WHERE id=?", rec.Head, rec.MountTop, rec.Gen,
		config, enforced, id)
	if rec.Name != name {
		t.exec("UPDATE sandboxes SET name=? WHERE id=?", rec.Name, id)
	}
	if !slices.Equal(rec.Redo, redo) {
		t.exec("DELETE FROM redos WHERE sandbox=?", id)
		t.setRedo(id, rec.Redo)
	}
	return before, rec.Head, t.err
}

// setRedo stores the redo list of a sandbox that has none stored.
func (t *tx) setRedo(id timeline.SandboxID, redo []timeline.SnapshotID) {
	for _, snap := range redo {
		t.exec("INSERT OR IGNORE INTO redos(sandbox,snapshot) VALUES(?,?)", id, snap)
	}
}

// addMove records that HEAD moved to an existing snapshot.
func (t *tx) addMove(id timeline.SandboxID, at time.Time, to timeline.SnapshotID) {
	t.exec("INSERT INTO moves(sandbox,at,snapshot) VALUES(?,?,?)", id, at.UnixMicro(), to)
}

// SetTag names a snapshot in a sandbox, or moves the name to it.
func (d *DB) SetTag(ctx context.Context, id timeline.SandboxID, name string, snap timeline.SnapshotID) error {
	return d.tx(ctx, func(t *tx) error {
		if err := t.mustExist(snap); err != nil {
			return err
		}
		t.exec("INSERT INTO tags VALUES(?,?,?) ON CONFLICT(sandbox,name) DO UPDATE SET snapshot=excluded.snapshot", id,
			name, snap)
		return nil
	})
}

// DeleteTag removes a tag. A missing one is not an error.
func (d *DB) DeleteTag(ctx context.Context, id timeline.SandboxID, name string) error {
	return d.tx(ctx, func(t *tx) error { t.exec("DELETE FROM tags WHERE sandbox=? AND name=?", id, name); return nil })
}
