package meta

// schemaVersion is PRAGMA user_version of the database that this build reads
// and writes. Another one is refused, never converted in silence.
const schemaVersion = 1

// schema is the database. Identifiers are lower-case hex, times are microseconds
// since 1970 UTC, structured values are JSON.
const schema = `
-- What a snapshot belongs to. A removed sandbox has no row; those of its
-- snapshots that others descend from stay, with an owner that no longer exists.
CREATE TABLE sandboxes (
	id       TEXT PRIMARY KEY,
	name     TEXT NOT NULL UNIQUE,
	created  INTEGER NOT NULL,
	head     TEXT NOT NULL,    -- the snapshot that the live state descends from
	mount    TEXT NOT NULL,    -- the snapshot that the live root stands on
	gen      INTEGER NOT NULL, -- the live root's generation directory
	config   TEXT NOT NULL     -- everything else, JSON of Config
) STRICT;

-- The history: a forest of immutable nodes.
CREATE TABLE snapshots (
	id       TEXT PRIMARY KEY,
	sandbox  TEXT NOT NULL,    -- who made it; '' for a base
	parent   TEXT NOT NULL,    -- '' for a first one
	cause    TEXT NOT NULL,
	message  TEXT NOT NULL,
	created  INTEGER NOT NULL,
	exit     INTEGER,
	paths    INTEGER NOT NULL,
	bytes    INTEGER NOT NULL
) STRICT;
CREATE INDEX snapshots_sandbox ON snapshots(sandbox);
CREATE INDEX snapshots_parent  ON snapshots(parent);

-- Directories of the store. A directory without a row is garbage.
CREATE TABLE layers (
	id       TEXT PRIMARY KEY,
	merged   INTEGER NOT NULL, -- built of others; may be dropped
	seq      INTEGER NOT NULL, -- order of creation
	sealed   INTEGER NOT NULL,
	digest   TEXT NOT NULL,    -- sha256 of the manifest, when sealed
	diff_id  TEXT NOT NULL,    -- sha256 of the layer as OCI tar, when sealed
	size     INTEGER NOT NULL  -- content bytes, when sealed
) STRICT;
CREATE INDEX layers_unsealed ON layers(seq) WHERE sealed = 0;

-- "layer is all that top changed against below" ('' is the empty base).
CREATE TABLE routes (
	top      TEXT NOT NULL,
	below    TEXT NOT NULL,
	layer    TEXT NOT NULL REFERENCES layers(id),
	merged   INTEGER NOT NULL,
	PRIMARY KEY (top, below, layer)
) STRICT, WITHOUT ROWID;
CREATE INDEX routes_below ON routes(below);
CREATE INDEX routes_layer ON routes(layer);

CREATE TABLE tags (
	sandbox  TEXT NOT NULL REFERENCES sandboxes(id) ON DELETE CASCADE,
	name     TEXT NOT NULL,
	snapshot TEXT NOT NULL,
	PRIMARY KEY (sandbox, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tags_snapshot ON tags(snapshot);

-- Imported bases, found again by key.
CREATE TABLE bases (
	id       TEXT PRIMARY KEY,
	key      TEXT NOT NULL,    -- '' is never found again
	top      TEXT NOT NULL,    -- snapshot
	label    TEXT NOT NULL,
	print    TEXT NOT NULL,    -- fingerprint of the source
	created  INTEGER NOT NULL
) STRICT;
CREATE INDEX bases_key ON bases(key, created);

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
