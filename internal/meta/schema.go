package meta

import "fmt"

const (
	// applicationID is PRAGMA application_id, which marks the file as Coppice's ("copp").
	applicationID = 0x636f7070
	// schemaVersion is PRAGMA user_version of the database that this build reads and writes. A database of an older
	// version gets the missing tables when it is opened; any other is refused. Version 4 adds no table: it encrypts
	// values that may contain secrets.
	schemaVersion = 7
)

// The statements that mark the file.
var (
	setApplicationID = fmt.Sprintf("PRAGMA application_id=%d", applicationID)
	setUserVersion   = fmt.Sprintf("PRAGMA user_version=%d", schemaVersion)
)

// schema is the schema of a new database.
const schema = schema1 + schema2 + schema3 + schema5 + schema6 + schema7

// schemas returns what each version adds to the previous one.
func schemas() []string { return []string{schema1, schema2, schema3, "", schema5, schema6, schema7} }

// schema7 is what version 7 adds to version 6.
const schema7 = `
-- The grants of sandboxes, also those that are no longer live. No secret is stored.
CREATE TABLE grants (
	sandbox TEXT NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE,
	name    TEXT NOT NULL,
	secret  TEXT NOT NULL,    -- its name
	state   TEXT NOT NULL,
	until   INTEGER,          -- NULL is never
	used    INTEGER NOT NULL,
	body    TEXT NOT NULL,    -- the rest, JSON of GrantBody, sealed
	PRIMARY KEY (sandbox, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX grants_state ON grants(state);

-- What the broker of secrets knows the keeper of a sandbox by.
CREATE TABLE tickets (
	sandbox TEXT PRIMARY KEY REFERENCES sandboxes(id) ON DELETE CASCADE,
	ticket  TEXT NOT NULL     -- sealed
) STRICT, WITHOUT ROWID;
`

// schema6 is what version 6 adds to version 5.
const schema6 = `
-- The snapshots of Config.Redo, found by snapshot. One of them may be gone.
CREATE TABLE redos (
	sandbox  TEXT NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE,
	snapshot TEXT NOT NULL,
	PRIMARY KEY (sandbox, snapshot)
) STRICT, WITHOUT ROWID;
CREATE INDEX redos_snapshot ON redos(snapshot);
INSERT INTO redos SELECT DISTINCT b.id,r.value
	FROM sandboxes b, json_each(iif(json_valid(b.config),b.config,'{}'),'$.redo') r;
`

// schema5 is what version 5 adds to version 4.
const schema5 = `
-- What the processes of a snapshot had in memory, for those that have it.
CREATE TABLE memories (
	snapshot TEXT PRIMARY KEY REFERENCES snapshots(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
	image    TEXT NOT NULL,    -- of the store of memory images
	body     TEXT NOT NULL     -- the rest of timeline.Memory, JSON
) STRICT, WITHOUT ROWID;
CREATE INDEX memories_image ON memories(image);
`

// schema3 is what version 3 adds to version 2.
const schema3 = `
-- What sandboxes may use. Config.Policy names a row; one that no sandbox names goes
-- with the next gc.
CREATE TABLE policies (
	digest   TEXT PRIMARY KEY, -- sha256 of the text
	text     TEXT NOT NULL     -- as package policy writes it, sealed
) STRICT, WITHOUT ROWID;
`

// schema2 is what version 2 adds to version 1.
const schema2 = `
-- Who may come over TCP. Secrets are not kept.
CREATE TABLE tokens (
	id        TEXT PRIMARY KEY,
	name      TEXT NOT NULL,
	scope     TEXT NOT NULL,
	sandboxes TEXT NOT NULL,    -- JSON list of ids; null is all
	created   INTEGER NOT NULL,
	expires   INTEGER,          -- NULL is never
	used      INTEGER,          -- to the minute; NULL is never
	hash      BLOB NOT NULL     -- sha256 of the secret
) STRICT;

-- What was answered to requests that must not be carried out twice.
CREATE TABLE answers (
	key      TEXT PRIMARY KEY,
	answer   BLOB NOT NULL,    -- sealed
	expires  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX answers_expires ON answers(expires);
`

// schema1 is the database of version 1. Identifiers are lower-case hex, times are microseconds since 1970 UTC,
// structured values are JSON. References to snapshots are checked when a transaction ends, so no change can leave a
// dangling one. The exceptions are head and mount: if a power failure lost a sandbox's first snapshot, they still
// name the lost one.
const schema1 = `
-- What a person works with. A removed sandbox has no row; those of its snapshots
-- that others are built on stay, with an owner that no longer exists.
CREATE TABLE sandboxes (
	id       TEXT PRIMARY KEY,
	name     TEXT NOT NULL UNIQUE,
	created  INTEGER NOT NULL,
	head     TEXT NOT NULL,    -- the snapshot that the live state descends from
	mount    TEXT NOT NULL,    -- the snapshot that the live root stands on
	gen      INTEGER NOT NULL, -- the live root's generation directory
	config   TEXT NOT NULL,    -- everything else, JSON of stored without Enforced
	enforced TEXT NOT NULL     -- Config.Enforced, JSON
) STRICT;
CREATE INDEX sandboxes_head  ON sandboxes(head);
CREATE INDEX sandboxes_mount ON sandboxes(mount);

-- The history: a forest of immutable nodes. Only parent ever changes, when the
-- parent is deleted, and sandbox, when another one takes the snapshot over.
CREATE TABLE snapshots (
	id       TEXT PRIMARY KEY,
	sandbox  TEXT NOT NULL,    -- who made it or took it over; '' for a base
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
