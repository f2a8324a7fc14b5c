package meta

import "fmt"

const (
	// applicationID is PRAGMA application_id: the file is ours ("copp").
	applicationID = 0x636f7070
	// schemaVersion is PRAGMA user_version of the database that this build reads
	// and writes. Another one is refused, never converted in silence.
	schemaVersion = 1
)

// The statements that mark the file.
var (
	setApplicationID = fmt.Sprintf("PRAGMA application_id=%d", applicationID)
	setUserVersion   = fmt.Sprintf("PRAGMA user_version=%d", schemaVersion)
)

// schema is the database. Identifiers are lower-case hex, times are microseconds
// since 1970 UTC, structured values are JSON. What refers to a snapshot is
// checked when a transaction ends, so no change can leave a dangling reference.
// The exceptions are head and mount: where a power loss took a sandbox's first
// snapshot, they stay, and name what was lost.
const schema = `
-- What a person works with. A removed sandbox has no row; those of its snapshots
-- that others are built on stay, with an owner that no longer exists.
CREATE TABLE sandboxes (
	id       TEXT PRIMARY KEY,
	name     TEXT NOT NULL UNIQUE,
	created  INTEGER NOT NULL,
	head     TEXT NOT NULL,    -- the snapshot that the live state descends from
	mount    TEXT NOT NULL,    -- the snapshot that the live root stands on
	gen      INTEGER NOT NULL, -- the live root's generation directory
	config   TEXT NOT NULL,    -- everything else, JSON of Config without Enforced
	enforced TEXT NOT NULL     -- Config.Enforced, JSON
) STRICT;
CREATE INDEX sandboxes_head  ON sandboxes(head);
CREATE INDEX sandboxes_mount ON sandboxes(mount);

-- The history: a forest of immutable nodes. Only parent ever changes, when the
-- parent is deleted.
CREATE TABLE snapshots (
	id       TEXT PRIMARY KEY,
	sandbox  TEXT NOT NULL,    -- who made it; '' for a base
	parent   TEXT REFERENCES snapshots(id) DEFERRABLE INITIALLY DEFERRED, -- NULL for a first one
	cause    TEXT NOT NULL,
	message  TEXT NOT NULL,
	created  INTEGER NOT NULL,
	exit     INTEGER,          -- exit code of the command, with cause exec
	paths    INTEGER NOT NULL, -- entries that differ from the parent
	bytes    INTEGER NOT NULL  -- content bytes of added and changed files
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshots_sandbox ON snapshots(sandbox);
CREATE INDEX snapshots_parent  ON snapshots(parent);

-- Directories of the store. A directory without a row is garbage.
CREATE TABLE layers (
	seq      INTEGER PRIMARY KEY AUTOINCREMENT, -- order of creation
	id       TEXT NOT NULL UNIQUE,
	merged   INTEGER NOT NULL, -- built of others; may be dropped
	sealed   INTEGER NOT NULL,
	digest   TEXT NOT NULL,    -- sha256 of the manifest, when sealed
	diff_id  TEXT NOT NULL,    -- sha256 of the layer as OCI tar, when sealed
	size     INTEGER NOT NULL  -- content bytes, when sealed
) STRICT;
CREATE INDEX layers_unsealed ON layers(seq) WHERE sealed = 0;

-- "layer is all that top changed against below". A snapshot without a route
-- equals its parent.
CREATE TABLE routes (
	top      TEXT NOT NULL REFERENCES snapshots(id) DEFERRABLE INITIALLY DEFERRED,
	layer    TEXT NOT NULL REFERENCES layers(id) DEFERRABLE INITIALLY DEFERRED,
	below    TEXT REFERENCES snapshots(id) DEFERRABLE INITIALLY DEFERRED, -- NULL for the base itself
	merged   INTEGER NOT NULL, -- spans several snapshots' own routes; may be dropped
	PRIMARY KEY (top, layer)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX routes_own ON routes(top) WHERE NOT merged;
CREATE INDEX routes_below ON routes(below);
CREATE INDEX routes_layer ON routes(layer);

CREATE TABLE tags (
	sandbox  TEXT NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE,
	name     TEXT NOT NULL,
	snapshot TEXT NOT NULL REFERENCES snapshots(id) DEFERRABLE INITIALLY DEFERRED,
	PRIMARY KEY (sandbox, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_snapshot ON tags(snapshot);

-- When HEAD went to a snapshot that was there already: what @{5m} needs.
CREATE TABLE moves (
	sandbox  TEXT NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE,
	at       INTEGER NOT NULL,
	snapshot TEXT NOT NULL REFERENCES snapshots(id) ON DELETE CASCADE
) STRICT;
CREATE INDEX moves_sandbox  ON moves(sandbox);
CREATE INDEX moves_snapshot ON moves(snapshot);

-- Imported bases, found again by key.
CREATE TABLE bases (
	id       TEXT PRIMARY KEY,
	key      TEXT NOT NULL,    -- '' is never found again
	top      TEXT NOT NULL REFERENCES snapshots(id) DEFERRABLE INITIALLY DEFERRED,
	label    TEXT NOT NULL,
	print    TEXT NOT NULL,    -- fingerprint of the source
	created  INTEGER NOT NULL
) STRICT;
CREATE INDEX bases_key ON bases(key, created);
CREATE INDEX bases_top ON bases(top);

-- What is being done to the file system and must be completed or undone.
CREATE TABLE intents (
	id       INTEGER PRIMARY KEY AUTOINCREMENT,
	kind     TEXT NOT NULL,
	body     TEXT NOT NULL     -- JSON
) STRICT;

CREATE TABLE settings (
	key      TEXT PRIMARY KEY,
	value    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
`
