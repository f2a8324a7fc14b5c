package wire

import (
	"io"
	"time"
	"unicode/utf8"
)

// CreateRequest asks for a new sandbox.
type CreateRequest struct {
	Name   string   `json:"name,omitempty"`   // "" lets the daemon choose one
	From   Source   `json:"from,omitzero"`    // the zero value is the host
	User   string   `json:"user,omitempty"`   // "root", "me" or a name of the sandbox's /etc/passwd; "" lets the base decide
	Driver string   `json:"driver,omitempty"` // "auto" or "", "overlay", "copy", "btrfs"
	Tier   string   `json:"tier,omitempty"`   // "auto" or "", "workspace", "process"
	Net    string   `json:"net,omitempty"`    // "off" or "", "host"
	Env    []string `json:"env,omitempty"`    // KEY=VALUE, for every command
	Limits string   `json:"limits,omitempty"` // "memory=4GiB,pids=512,disk=10GiB"

	// Tar is the archive when From.Kind is SourceTar: tar, or tar compressed by
	// gzip, zstd or xz. It travels beside the JSON, in the same HTTP body.
	Tar io.Reader `json:"-"`
}

// The kinds of a Source. The empty kind is SourceHost.
const (
	SourceHost     = "host"      // the host's own root, shared and never copied
	SourceHostCopy = "host-copy" // the host's system directories, imported once
	SourceDir      = "dir"       // a directory of the daemon's host
	SourceTar      = "tar"       // an archive, sent with the request
	SourceSandbox  = "sandbox"   // a snapshot of another sandbox
)

// Source says what the first snapshot of a sandbox is made of.
type Source struct {
	Kind    string `json:"kind,omitempty"`
	Path    string `json:"path,omitempty"`    // SourceDir: absolute; SourceTar: what the archive is called, for people
	Sandbox string `json:"sandbox,omitempty"` // SourceSandbox: its name or id
	Ref     string `json:"ref,omitempty"`     // SourceSandbox: "" is HEAD, after a capture of the present
}

// IsZero makes an unset Source vanish from JSON.
func (s Source) IsZero() bool { return s == Source{} }

// The states of a Sandbox.
const (
	StateIdle = "idle" // no process and no keeper: costs no memory
	StateLive = "live" // a keeper runs, perhaps with processes
)

// Sandbox is one isolated environment with history.
type Sandbox struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	Head     string    `json:"head"`            // the snapshot that the live state descends from
	State    string    `json:"state"`           // StateIdle, StateLive
	Procs    int       `json:"procs,omitempty"` // processes of commands, when live
	From     string    `json:"from"`            // what it was made from, for people
	Driver   string    `json:"driver"`          // in force
	Tier     string    `json:"tier"`            // in force
	User     string    `json:"user"`
	Net      string    `json:"net"`
	Env      []string  `json:"env,omitempty"`
	Limits   Limits    `json:"limits,omitzero"`
	Warnings []string  `json:"warnings,omitempty"` // only in the answer to create and fork: what was refused, unreadable or weaker than asked
	Notes    []string  `json:"notes,omitempty"`    // only in the answer to create: what was done besides
}

// Limits are a sandbox's limits; 0 is none.
type Limits struct {
	Memory int64 `json:"memory,omitempty"` // bytes
	Pids   int64 `json:"pids,omitempty"`
	Disk   int64 `json:"disk,omitempty"` // bytes
}

// ListResult is the answer to list.
type ListResult struct {
	Sandboxes []Sandbox `json:"sandboxes"` // by name
}

// RemoveResult is the answer to remove.
type RemoveResult struct {
	Removed []string `json:"removed"` // names
}

// Enforcement states.
const (
	EnforcedOn   = "on"
	EnforcedOff  = "off"
	EnforcedWeak = "weak"
)

// Enforcement is one wall of a sandbox as it was really put up.
type Enforcement struct {
	Name   string `json:"name"`  // "seccomp", "net", "memory"
	State  string `json:"state"` // EnforcedOn, EnforcedOff, EnforcedWeak
	Detail string `json:"detail,omitempty"`
}

// Disk is the space that a sandbox's history takes, in bytes.
type Disk struct {
	Own    int64 `json:"own"`    // layers that this sandbox alone uses
	Shared int64 `json:"shared"` // layers that other sandboxes use as well
	Live   int64 `json:"live"`   // changes that are not in a layer yet
}

// StatusResult is the state of one sandbox.
type StatusResult struct {
	Sandbox      Sandbox       `json:"sandbox"`
	DriverReason string        `json:"driver_reason,omitempty"` // why this driver
	TierReason   string        `json:"tier_reason,omitempty"`   // why this tier
	Enforced     []Enforcement `json:"enforced"`                // as of the last start; empty when never started
	Snapshots    int           `json:"snapshots"`
	Branches     int           `json:"branches"`
	Disk         Disk          `json:"disk"`
	Dirty        bool          `json:"dirty,omitempty"`    // the live state differs from HEAD, as far as is known
	Notices      []string      `json:"notices,omitempty"`  // what a person should know: the host changed below, a layer is damaged
	LeftOut      []LeftOut     `json:"left_out,omitempty"` // of the host, since the last start
}

// LeftOut is a place of the host that a sandbox from host does not show.
type LeftOut struct {
	Path string `json:"path"` // where it is not UTF-8, U+FFFD stands for what is wrong
	Why  string `json:"why"`
}

// DaemonStatus is the state of the daemon.
type DaemonStatus struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Home      string    `json:"home"`
	Started   time.Time `json:"started"`
	Sandboxes int       `json:"sandboxes"`
	Live      int       `json:"live"` // sandboxes with a keeper
}

// ProbeItem is one thing that this host can or cannot do.
type ProbeItem struct {
	Name   string `json:"name"`             // "process", "overlay-in-userns"
	Group  string `json:"group"`            // "tiers", "drivers", "features"
	OK     bool   `json:"ok"`               //
	Weak   bool   `json:"weak,omitempty"`   // it works with less than it should have
	Detail string `json:"detail,omitempty"` // what was found
	Remedy string `json:"remedy,omitempty"` // the one command or setting that mends it
}

// ProbeReport is what this host can do, found by trying.
type ProbeReport struct {
	Kernel string      `json:"kernel"`
	User   string      `json:"user"` // who the daemon runs as
	Items  []ProbeItem `json:"items"`
	Tier   string      `json:"tier"`   // what --tier auto takes
	Driver string      `json:"driver"` // what --driver auto takes
}

// Snapshot is a node of the history.
type Snapshot struct {
	ID      string    `json:"id"`
	Parent  string    `json:"parent,omitempty"`
	Message string    `json:"message"`
	Head    bool      `json:"head,omitempty"`
	Leaf    bool      `json:"leaf,omitempty"`
	Cause   string    `json:"cause"` // "import", "exec", "auto", "manual", "fork", "checkout"
	Created time.Time `json:"created"`
	Exit    *int      `json:"exit,omitempty"` // exit code of the command, with cause exec
	Paths   int       `json:"paths"`          // how many paths it changed against its parent
	Bytes   int64     `json:"bytes"`          // content bytes of what it added and changed
	Sealed  bool      `json:"sealed,omitempty"`
	Tags    []string  `json:"tags,omitempty"`
	Sandbox string    `json:"sandbox,omitempty"` // name of the sandbox that made it
}

// LogRow is one line of the drawn history.
type LogRow struct {
	Graph string `json:"graph"`          // lanes in plain ASCII, as git log --graph draws them
	Node  string `json:"node,omitempty"` // the snapshot drawn in this line; "" is a line of lanes only
}

// LogResult is the history of a sandbox.
type LogResult struct {
	Nodes []Snapshot `json:"nodes"` // newest first
	Head  string     `json:"head"`
	Rows  []LogRow   `json:"rows,omitempty"` // the drawing, topmost line first
}

// HeadResult is the answer to whatever tells or moves HEAD.
type HeadResult struct {
	Head string `json:"head"`
}

// BranchesResult is the leaves of the history.
type BranchesResult struct {
	Nodes []Snapshot `json:"nodes"` // newest first
	Head  string     `json:"head"`
}

// The kinds of a Change.
const (
	Added    = "+"
	Removed  = "-"
	Modified = "M"
)

// Change is one path that differs.
type Change struct {
	Kind string `json:"kind"` // Added, Removed, Modified
	Path string `json:"path"` // relative to the root; bytes that are not UTF-8 read as U+FFFD
	Raw  []byte `json:"raw,omitempty"`

	Type string `json:"type,omitempty"` // "file", "dir", "symlink", "fifo", "socket", "device"; of what is there now, else of what was
	Size int64  `json:"size,omitempty"` // bytes, of what is there now
	// Lines is set when they were asked for and the file is text.
	Lines  *Lines `json:"lines,omitempty"`
	Binary bool   `json:"binary,omitempty"` // set with DiffRequest.Stat
}

// Lines counts the lines of one changed text file.
type Lines struct {
	Added   int `json:"added"`
	Removed int `json:"removed"`
}

// NewChange makes a Change of a path as it is on disk: leading slashes are cut
// off, and Raw is set when the path is not valid UTF-8.
func NewChange(kind, path string) Change {
	for path != "" && path[0] == '/' {
		path = path[1:]
	}
	c := Change{Kind: kind, Path: path}
	if !utf8.ValidString(path) {
		c.Raw = []byte(path)
	}
	return c
}

// Name gives the exact bytes of the path.
func (c Change) Name() string {
	if c.Raw != nil {
		return string(c.Raw)
	}
	return c.Path
}

// ShowResult is one snapshot and what it changed against its parent.
type ShowResult struct {
	Snapshot
	Changes []Change `json:"changes"` // by path
}

// DiffRequest asks how two states differ.
type DiffRequest struct {
	A     string   `json:"a"`               // a reference
	B     string   `json:"b,omitempty"`     // a reference; "" is the live state
	Paths []string `json:"paths,omitempty"` // only at and below these; a leading slash does not matter
	Stat  bool     `json:"stat,omitempty"`  // count lines
}

// DiffResult is the answer to a DiffRequest.
type DiffResult struct {
	A       string   `json:"a"`           // the snapshot that A stands for
	B       string   `json:"b,omitempty"` // the snapshot that B stands for; "" is the live state
	Changes []Change `json:"changes"`     // from A to B, by path
}

// CommitRequest asks for a snapshot of the present.
type CommitRequest struct {
	Message string `json:"message"`
}

// CommitResult is the answer to a CommitRequest.
type CommitResult struct {
	Node    string `json:"node"` // the new snapshot; the old head when nothing had changed
	Head    string `json:"head"`
	Changed bool   `json:"changed,omitempty"`
	Paths   int    `json:"paths,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
}

// CheckoutRequest asks to go to another snapshot.
type CheckoutRequest struct {
	Node string `json:"node"`
}

// MoveResult is the answer to checkout, undo and redo.
type MoveResult struct {
	Head    string `json:"head"`              // where HEAD is now
	From    string `json:"from"`              // where it was
	Kept    string `json:"kept,omitempty"`    // the snapshot that was taken of the present before, if it had changed
	Message string `json:"message,omitempty"` // of the new head
	Stopped int    `json:"stopped,omitempty"` // processes that were stopped
}

// UndoRequest asks to go N snapshots back; 0 is 1.
type UndoRequest struct {
	N int `json:"n,omitempty"`
}

// TagRequest asks for a tag on a snapshot.
type TagRequest struct {
	Name string `json:"name"`
	Ref  string `json:"ref,omitempty"` // "" is HEAD
}

// TagResult is the answer to a TagRequest.
type TagResult struct {
	Name string `json:"name"`
	Node string `json:"node"`
}

// TagsResult is all tags of a sandbox.
type TagsResult struct {
	Tags map[string]string `json:"tags"` // name to snapshot
}

// GCRequest asks to free what nothing refers to.
type GCRequest struct {
	DryRun    bool     `json:"dry_run,omitempty"`
	Keep      Keep     `json:"keep,omitzero"`
	Sandboxes []string `json:"sandboxes,omitempty"` // that Keep is about; none: all
}

// Keep says which snapshots stay when old ones are dropped: those that one of
// its rules names. The zero value drops nothing. Whatever it says, HEAD, tagged
// snapshots, those of commit, branches and their ends, and what a fork began at
// or can be redone stay.
type Keep struct {
	Last     int   `json:"last,omitempty"`      // so many of the newest
	WithinMS int64 `json:"within_ms,omitempty"` // all that are younger
	Hourly   int   `json:"hourly,omitempty"`    // the newest of each of so many last hours, counted in UTC
	Daily    int   `json:"daily,omitempty"`
	Weekly   int   `json:"weekly,omitempty"`
}

// GCResult is the answer to a GCRequest.
type GCResult struct {
	Removed []string   `json:"removed"`           // snapshots
	Dropped []Snapshot `json:"dropped,omitempty"` // those of Removed that GCRequest.Keep did not keep
	Layers  int        `json:"layers"`            // layer directories that nothing referred to, merged ones too
	Bytes   int64      `json:"bytes"`             // what removing Layers freed or would free
	DryRun  bool       `json:"dry_run,omitempty"` // nothing was removed
}

// Damage is one thing that verify found.
type Damage struct {
	Sandbox  string `json:"sandbox,omitempty"` // name
	Snapshot string `json:"snapshot,omitempty"`
	Layer    string `json:"layer,omitempty"`
	Path     string `json:"path,omitempty"` // the first path that is wrong
	Message  string `json:"message"`
}

// VerifyResult is the answer to verify.
type VerifyResult struct {
	Layers   int      `json:"layers"`   // layers whose content was hashed again
	Bytes    int64    `json:"bytes"`    // content that was read
	Unsealed int      `json:"unsealed"` // layers that have no digest yet
	Damage   []Damage `json:"damage,omitempty"`
}

// ForkRequest asks for new sandboxes that share everything with this one.
type ForkRequest struct {
	Names []string `json:"names,omitempty"`
	N     int      `json:"n,omitempty"`  // how many in all; the daemon names those that Names does not
	At    string   `json:"at,omitempty"` // a reference; "" is HEAD, after a capture of the present
}

// ForkResult is the answer to a ForkRequest.
type ForkResult struct {
	Sandboxes []Sandbox `json:"sandboxes"`
}

// StopResult is the answer to stop.
type StopResult struct {
	Stopped int    `json:"stopped"` // processes that were stopped
	Head    string `json:"head"`    // after the capture of what they left
}

// Progress tells how far a long operation has come. Done and Total count Unit;
// a Total of 0 is unknown.
type Progress struct {
	Phase string `json:"phase"`          // "import", "scan", "verify", for people
	Unit  string `json:"unit,omitempty"` // "bytes", "entries"
	Done  int64  `json:"done"`
	Total int64  `json:"total,omitempty"`
	Note  string `json:"note,omitempty"` // something that is worth a line of its own, as a warning
}

// Event is one line of the answer to a long operation when the client asked for
// application/x-ndjson: any number of lines with Progress, then one with Result
// or Error.
type Event struct {
	Progress *Progress `json:"progress,omitempty"`
	Result   any       `json:"result,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// Problem is an error over HTTP: an RFC 9457 problem document, with the kind and
// the hint as extensions.
type Problem struct {
	Type   string `json:"type"` // "about:blank"
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Kind   string `json:"kind"`
	Hint   string `json:"hint,omitempty"`
}
