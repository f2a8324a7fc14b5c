package wire

import (
	"io"
	"time"
	"unicode/utf8"
)

// CreateRequest asks for a new sandbox.
type CreateRequest struct {
	// 1 to 63 of a-z 0-9 _ . -, a letter or digit first; "" lets the daemon choose one
	Name string `json:"name,omitempty"`
	// source of the first snapshot; the default is the host
	From Source `json:"from,omitzero"`
	// user of commands: "root", "me" or a user of the sandbox's /etc/passwd; "" lets the base decide
	User string `json:"user,omitempty"`
	// storage driver: "auto" or "", "overlay", "copy", "btrfs"
	Driver string `json:"driver,omitempty"`
	// isolation tier: "auto" or "", "workspace", "process", "supervised", "container", "gvisor"
	Tier string `json:"tier,omitempty"`
	// "off" or "" (only its own loopback, unless the policy allows more), "rules" (what the policy allows), "host"
	Net string   `json:"net,omitempty"`
	Env []string `json:"env,omitempty"` // KEY=VALUE each, for every command
	// number of newest automatic snapshots to keep; 0 is 200
	KeepRecent int `json:"keep_recent,omitempty"`
	// minimum age of automatic snapshots before they are deleted; 0 is an hour
	KeepForMS int64 `json:"keep_for_ms,omitempty"`
	// such as "memory=4GiB,cpus=1.5,pids=512,disk=10GiB,time=30m,output=100MiB,files=1024"; "" is none
	Limits string       `json:"limits,omitempty"`
	Policy []PolicyFile `json:"policy,omitempty"` // policy files; none selects the built-in policy
	// access of the inside to its own history: "read" or "" (read, and mark), "rewind" (also commit, tag and rewind),
	// "off"
	Self string `json:"self,omitempty"`
	// time until the sandbox is removed, or, if it has tags, reduced to the tagged snapshots; 0 is never
	TTLMS      int64 `json:"ttl_ms,omitempty"`
	IdleStopMS int64 `json:"idle_stop_ms,omitempty"` // idle time after which its processes are stopped; 0 is never
	// labels, for its clients to find it by: see docs/LIMITS.md; with From a sandbox, they are added to its labels
	Labels map[string]string `json:"labels,omitempty"`
	// grants by name, given before its first start
	Grants map[string]GrantSpec `json:"grants,omitempty"`
	// the sandbox trusts the gate's authority from its start, so that grants can be given while it runs
	GrantsLater bool `json:"grants_later,omitempty"`

	// the sandbox keeps the machine ID of its source, and with From a sandbox its SSH host keys; otherwise it gets its own
	SameIdentity bool `json:"same_identity,omitempty"`

	Repo *RepoRequest `json:"repo,omitempty"` // the git repository to work on
	// absolute path, on the daemon's host, of the directory that its commands will work in. If the host is the
	// source, a warning reports what they cannot change there; in tier workspace, which has no root, the sandbox is
	// a copy of the directory
	Dir string `json:"dir,omitempty"`

	// Tar is the archive if From.Kind is SourceTar: tar, optionally compressed with gzip, zstd or xz. It is sent
	// after the JSON, in the same HTTP body.
	Tar io.Reader `json:"-"`
}

// The default retention of automatic snapshots.
const (
	DefaultKeepRecent = 200
	DefaultKeepForMS  = 60 * 60 * 1000
)

// The values of CreateRequest.Self: the access of the inside to its own history, at SelfSocket.
const (
	SelfOff    = "off"    // none: there is no socket
	SelfRead   = "read"   // read it, and mark it
	SelfRewind = "rewind" // also commit, tag, and rewind in place

	SelfSocket = "/run/coppice.sock" // a symbolic link to SelfTarget
	SelfTarget = "/run/coppice/sock"

	// SelfProgram is the program coppice in every sandbox, read-only; not in tier workspace.
	SelfProgram = "/run/coppice-bin/coppice"
)

// The kinds of a Source. The empty kind is SourceHost.
const (
	SourceHost     = "host"      // the host's own root, shared and never copied
	SourceHostCopy = "host-copy" // the host's system directories, imported once
	SourceDir      = "dir"       // a directory of the daemon's host
	SourceTar      = "tar"       // an archive, sent with the request
	SourceSandbox  = "sandbox"   // a snapshot of another sandbox
)

// Source is the source of the first snapshot of a sandbox.
type Source struct {
	// "host" or "" (the host's own root, shared and never copied), "host-copy" (its
	// system directories, imported once), "dir" (a directory of the daemon's host),
	// "tar" (an archive, sent with the request), "sandbox" (a snapshot of another one)
	Kind    string `json:"kind,omitempty"`
	Path    string `json:"path,omitempty"`    // with "dir": absolute; with "tar": a display name of the archive
	Sandbox string `json:"sandbox,omitempty"` // with "sandbox": its name or id
	// with "sandbox": a reference to the snapshot; "" is HEAD, after a capture of the live state
	Ref string `json:"ref,omitempty"`
}

// IsZero reports whether s is unset; encoding/json then omits it.
func (s Source) IsZero() bool { return s == Source{} }

// The states of a Sandbox.
const (
	StateIdle = "idle" // no process and no keeper: uses no memory
	StateLive = "live" // a keeper runs, perhaps with processes
	// The keeper does not answer; whether processes run is unknown.
	StateUnavailable = "unavailable"
)

// Sandbox describes a sandbox.
type Sandbox struct {
	ID      string            `json:"id"`               // 12 hexadecimal digits
	Name    string            `json:"name"`             // unique
	Created time.Time         `json:"created"`          // time of creation
	Head    string            `json:"head"`             // the snapshot that the live state descends from
	State   string            `json:"state"`            // "idle" (no keeper: uses no memory), "live", or "unavailable"
	Procs   int               `json:"procs,omitempty"`  // number of processes of commands, if live
	From    string            `json:"from"`             // description of its source
	Driver  string            `json:"driver"`           // in force: "overlay", "copy", "btrfs"
	Tier    string            `json:"tier"`             // in force; as in CreateRequest, except auto
	User    string            `json:"user"`             // user of commands
	Net     string            `json:"net"`              // "off", "rules" or "host"
	Policy  string            `json:"policy,omitempty"` // digest of its policy, without temporary rules
	Env     []string          `json:"env,omitempty"`    // KEY=VALUE each, for every command
	Limits  Limits            `json:"limits,omitzero"`  // resource limits
	Self    string            `json:"self,omitempty"`   // access of the inside to its own history: "off", "read", "rewind"
	Labels  map[string]string `json:"labels,omitempty"` // labels
	// paths inside whose content is in no snapshot
	Ignored []string `json:"ignored,omitempty"`
	// only in the answer to create and fork: what was refused, unreadable or weaker than requested
	Warnings []string `json:"warnings,omitempty"`
	Notes    []string `json:"notes,omitempty"` // only in the answer to create: what was done in addition
	// only in the answer to create: why this tier, and what would be stronger; later it is in the status
	TierReason string `json:"tier_reason,omitempty"`

	// when it is removed, or, if it has tags, reduced to the tagged snapshots
	Expires    *time.Time `json:"expires,omitempty"`
	IdleStopMS int64      `json:"idle_stop_ms,omitempty"` // idle time after which its processes are stopped

	// set for the fork of a candidate: its tournament; gc removes the fork
	Tournament string `json:"tournament,omitempty"`
	// set for a fork in which a trial runs, or a candidate of a tournament in progress: the ID of the sandbox that it was
	// forked from; the fork is removed at the end of the trial, and when the daemon is started
	TrialOf string `json:"trial_of,omitempty"`

	Repo *Repo `json:"repo,omitempty"` // the git repository that it works on

	Paused     bool        `json:"paused,omitempty"`     // its processes are paused
	Quarantine *Quarantine `json:"quarantine,omitempty"` // its gate is closed, because re-keying failed
}

// Quarantine is the reason why the gate of a fork with memory is closed: until it is re-keyed, it is in part a copy
// of another sandbox.
type Quarantine struct {
	Since time.Time `json:"since"` // when it was forked
	// the failed step; "" if unknown: re-keying is in progress, or was interrupted
	Step   string `json:"step,omitempty"`
	Reason string `json:"reason"` // reason, for people
}

// Limits are a sandbox's limits; 0 is none.
type Limits struct {
	Memory    int64 `json:"memory,omitempty"`     // bytes
	Pids      int64 `json:"pids,omitempty"`       // processes and threads
	Disk      int64 `json:"disk,omitempty"`       // bytes
	MilliCPUs int64 `json:"milli_cpus,omitempty"` // thousandths of a processor
	TimeMS    int64 `json:"time_ms,omitempty"`    // wall time of one command
	Output    int64 `json:"output,omitempty"`     // bytes of output of one command
	Files     int64 `json:"files,omitempty"`      // open files of one process
}

// The limits that can stop a command (Exit.Limit), and those shared by all processes of a sandbox (Exit.Hits).
const (
	LimitTime   = "time"
	LimitOutput = "output"
	LimitMemory = "memory"
	LimitPids   = "pids"
)

// ListResult is the answer to list.
type ListResult struct {
	Sandboxes []Sandbox `json:"sandboxes"` // by name
}

// RemoveResult is the answer to remove.
type RemoveResult struct {
	Removed []string `json:"removed"` // names of the sandboxes
}

// Enforcement states.
const (
	EnforcedOn   = "on"
	EnforcedOff  = "off"
	EnforcedWeak = "weak"
)

// Enforcement is one protection of a sandbox as it was enforced.
type Enforcement struct {
	Name   string `json:"name"`             // such as "seccomp", "net", "memory"
	State  string `json:"state"`            // "on", "off" or "weak"
	Detail string `json:"detail,omitempty"` // what was enforced, or why not
}

// Disk is the space that a sandbox's history takes, in bytes.
type Disk struct {
	Own     int64 `json:"own"`               // layers that only this sandbox uses
	Shared  int64 `json:"shared"`            // layers that other sandboxes use too
	Live    int64 `json:"live"`              // changes that are not in a layer yet
	Limited int64 `json:"limited,omitempty"` // the part that counts towards the limit, if there is one
}

// StatusResult is the state of one sandbox.
type StatusResult struct {
	Sandbox      Sandbox `json:"sandbox"`                 // the sandbox
	DriverReason string  `json:"driver_reason,omitempty"` // why this driver
	TierReason   string  `json:"tier_reason,omitempty"`   // why this tier
	// protections as of the last start; empty if never started
	Enforced  []Enforcement `json:"enforced"`
	Snapshots int           `json:"snapshots"`       // number of snapshots
	Branches  int           `json:"branches"`        // number of leaves of its history
	Disk      Disk          `json:"disk"`            // space that its history takes
	Dirty     bool          `json:"dirty,omitempty"` // the live state differs from HEAD; a hint only
	Run       *Run          `json:"run,omitempty"`   // the supervised command
	// notices for people: the host changed underneath, a layer is damaged
	Notices []string `json:"notices,omitempty"`
	// host paths that it does not show, as of the last start
	LeftOut []LeftOut `json:"left_out,omitempty"`
	Grants  []Grant   `json:"grants,omitempty"` // its grants, by name, also those that are no longer live
}

// LeftOut is a host path that a sandbox with source host does not show.
type LeftOut struct {
	Path string `json:"path"` // the path; bytes that are not UTF-8 read as U+FFFD
	Why  string `json:"why"`  // reason, for people
}

// DaemonStatus is the state of the daemon.
type DaemonStatus struct {
	Version   string    `json:"version"`   // version of the program
	PID       int       `json:"pid"`       // process ID of the daemon
	Home      string    `json:"home"`      // the directory of its store
	Started   time.Time `json:"started"`   // time of its start
	Sandboxes int       `json:"sandboxes"` // number of sandboxes
	Live      int       `json:"live"`      // number of running sandboxes

	Listeners []Listener `json:"listeners,omitempty"` // listen addresses, its own socket first

	Memory *DaemonMemory `json:"memory,omitempty"` // memory of the daemon itself
}

// DaemonMemory is the daemon's own memory. Costly requests wait for memory, or are refused if there is none.
type DaemonMemory struct {
	Limit    int64  `json:"limit"`    // the soft limit, in bytes
	Live     int64  `json:"live"`     // heap after the last garbage collection, in bytes
	Requests int64  `json:"requests"` // budget of all requests, in bytes
	Held     int64  `json:"held"`     // reserved by requests in progress, in bytes
	Waiting  int    `json:"waiting"`  // waiting requests
	Refused  uint64 `json:"refused"`  // requests refused since the daemon started
}

// The values of Listener.Auth.
const (
	AuthPeer  = "peer"  // the client must be the daemon's own user
	AuthToken = "token" // a bearer token
	AuthNone  = "none"  // nothing
)

// Listener is one listen address of the daemon.
type Listener struct {
	URL  string `json:"url"`  // such as "unix:///home/daemon.sock", "https://127.0.0.1:8443"
	Auth string `json:"auth"` // authentication: "peer" (the client must be the daemon's own user), "token", "none"
}

// ProbeItem is one feature that this host does or does not support.
type ProbeItem struct {
	Name string `json:"name"` // such as "process", "overlay-in-userns"
	// "tiers", "drivers", "features", or "home": results of sandbox starts in this home
	Group string `json:"group"`
	OK    bool   `json:"ok"`             // it works
	Weak  bool   `json:"weak,omitempty"` // it works with restrictions
	// Unknown means that the probe itself failed, for lack of descriptors, memory or time.
	Unknown bool   `json:"unknown,omitempty"`
	Detail  string `json:"detail,omitempty"` // result of the test
	Remedy  string `json:"remedy,omitempty"` // the command or setting that fixes it
}

// ProbeReport describes what this host supports, as tested.
type ProbeReport struct {
	Kernel string      `json:"kernel"` // kernel release
	User   string      `json:"user"`   // user of the daemon
	Items  []ProbeItem `json:"items"`  // the tested features
	// the choice of "auto", unless the policy requests more, or what this tier cannot provide: "supervised", "process",
	// or "" if neither works
	Tier   string `json:"tier"`
	Driver string `json:"driver"` // the choice of "auto"
}

// Snapshot is a node of the history.
type Snapshot struct {
	ID      string `json:"id"`               // 12 hexadecimal digits
	Parent  string `json:"parent,omitempty"` // the previous snapshot
	Message string `json:"message"`          // the command line, or the message
	Head    bool   `json:"head,omitempty"`   // it is HEAD
	Leaf    bool   `json:"leaf,omitempty"`   // it has no children
	// "import", "exec", "auto", "manual", "mark", "fork" or "checkout"; more may be added
	Cause     string    `json:"cause"`
	Created   time.Time `json:"created"`             // time of creation
	Exit      *int      `json:"exit,omitempty"`      // exit code of the command, with cause "exec"
	Paths     int       `json:"paths"`               // number of paths that differ from its parent
	Bytes     int64     `json:"bytes"`               // content bytes of added and changed files
	Finalized bool      `json:"finalized,omitempty"` // it has a digest and survives a power failure
	Tags      []string  `json:"tags,omitempty"`      // tags of the snapshot
	Sandbox   string    `json:"sandbox,omitempty"`   // name of the sandbox that made it
	Memory    *Memory   `json:"memory,omitempty"`    // the saved memory of its processes, if any
}

// Memory is the saved memory of the processes of a snapshot, from the same moment as its files.
type Memory struct {
	Image string `json:"image"` // names the stored image: the sha256 of its manifest
	Size  int64  `json:"size"`  // bytes of memory and kernel state
	Added int64  `json:"added"` // bytes of disk space that no earlier image used
	// properties that a host must have to resume it; init is the sha256 of the program that is PID 1 in it, which is
	// stored with it
	Facts map[string]string `json:"facts,omitempty"`
}

// LogRow is one line of the drawn history.
type LogRow struct {
	Graph string `json:"graph"`          // lanes in plain ASCII, as git log --graph draws them
	Node  string `json:"node,omitempty"` // the snapshot drawn in this line; "" if the line has only lanes
}

// LogResult is the history of a sandbox.
type LogResult struct {
	Nodes []Snapshot `json:"nodes"`          // newest first
	Head  string     `json:"head"`           // HEAD
	Rows  []LogRow   `json:"rows,omitempty"` // the drawing, from the top

	// Truncated means that Rows end before the oldest snapshot, because there are too many branches to draw. Nodes is
	// complete.
	Truncated bool `json:"truncated,omitempty"`
}

// HeadResult is HEAD after an operation.
type HeadResult struct {
	Head string `json:"head"` // HEAD
}

// BranchesResult lists the leaves of the history.
type BranchesResult struct {
	Nodes []Snapshot `json:"nodes"` // the leaves, newest first
	Head  string     `json:"head"`  // HEAD
}

// The kinds of a Change.
const (
	Added    = "+"
	Removed  = "-"
	Modified = "M"
)

// Change is one path that differs.
type Change struct {
	Kind string `json:"kind"`          // "+" added, "-" removed, "M" modified
	Path string `json:"path"`          // without a leading slash; bytes that are not UTF-8 read as U+FFFD
	Raw  []byte `json:"raw,omitempty"` // the exact bytes of the path, when they are not valid UTF-8

	// "file", "dir", "symlink", "fifo", "socket", "device"; of the new file, or of a removed one
	Type   string `json:"type,omitempty"`
	Size   int64  `json:"size,omitempty"`   // size in bytes after the change; before it, if the path was removed
	Lines  *Lines `json:"lines,omitempty"`  // set if requested and the file is text
	Binary bool   `json:"binary,omitempty"` // the file is binary; set if lines were requested
}

// Lines counts the lines of one changed text file.
type Lines struct {
	Added   int `json:"added"`   // added lines
	Removed int `json:"removed"` // removed lines
}

// NewChange returns a Change for the bytes of a path on disk: leading slashes are removed, and Raw is set if the path
// is not valid UTF-8.
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

// Name returns the exact bytes of the path.
func (c Change) Name() string {
	if c.Raw != nil {
		return string(c.Raw)
	}
	return c.Path
}

// ShowResult is one snapshot and its changes from its parent.
type ShowResult struct {
	Snapshot
	Changes []Change `json:"changes"` // by path
	// there are more changes than one answer holds; ask for the diff of a path
	Truncated bool `json:"truncated,omitempty"`
}

// DiffRequest asks for the difference between two states of a sandbox, or with Other between states of two
// sandboxes, of which only content, mode, owner and attributes count, and not the time of a file.
type DiffRequest struct {
	A     string   `json:"a"`               // a reference; "" is the live state, which requires Other
	B     string   `json:"b,omitempty"`     // a reference; "" is the live state
	Other string   `json:"other,omitempty"` // the sandbox that B is a state of, by name or ID; "" is the same one
	Paths []string `json:"paths,omitempty"` // only these paths and those below them; a leading slash is ignored
	Stat  bool     `json:"stat,omitempty"`  // count lines
	Limit int      `json:"limit,omitempty"` // maximum number of changes; 0 means as many as one answer holds
}

// DiffResult is the answer to a DiffRequest.
type DiffResult struct {
	A       string   `json:"a"`           // the first snapshot; "" is the live state
	B       string   `json:"b,omitempty"` // the second snapshot; "" is the live state
	Changes []Change `json:"changes"`     // from A to B, by path

	Truncated bool `json:"truncated,omitempty"` // there are more changes than one answer holds; restrict Paths
}

// CommitRequest asks for a snapshot of the current state.
type CommitRequest struct {
	Message string `json:"message"`          // message of the snapshot; "" lets the daemon describe the changes
	Memory  bool   `json:"memory,omitempty"` // also save the memory of its processes; in tier gvisor
}

// CommitResult is the answer to a CommitRequest or a MarkRequest.
type CommitResult struct {
	Node    string `json:"node"`              // the new snapshot; the old head if nothing changed
	Head    string `json:"head"`              // HEAD afterwards
	Changed bool   `json:"changed,omitempty"` // something changed, and a snapshot was taken
	Paths   int    `json:"paths,omitempty"`   // number of changed paths
	Bytes   int64  `json:"bytes,omitempty"`   // content bytes of added and changed files

	Memory  *Memory `json:"memory,omitempty"`   // if requested
	StillUS int64   `json:"still_us,omitempty"` // microseconds for which processes were frozen
}

// The phases of a MarkRequest.
const (
	MarkPoint = "" // take a snapshot of the live state with the message
	// MarkBegin takes a snapshot of earlier changes with their previous message, and gives automatic snapshots the message
	// until MarkEnd or the next MarkBegin.
	MarkBegin = "begin"
	MarkEnd   = "end" // take a snapshot with Label, or with that of MarkBegin if it is ""
)

// MarkRequest sets the label of snapshots in a sandbox. The answer is a CommitResult.
type MarkRequest struct {
	// "" takes a snapshot of the live state with the label; "begin" gives automatic snapshots the label until "end"
	// or the next "begin"; "end" takes a snapshot with the label, or with that of "begin" if it is ""
	Phase string `json:"phase,omitempty"`
	Label string `json:"label"` // the label; "" only with "end"
}

// CheckoutRequest asks to rewind to another snapshot.
type CheckoutRequest struct {
	Node    string `json:"node"`               // a reference to the target snapshot
	InPlace bool   `json:"in_place,omitempty"` // keep processes running and change their files in place
	// restore only the files, even if the snapshot has memory
	FilesOnly bool `json:"files_only,omitempty"`
	// time between SIGTERM and SIGKILL for a supervised command; 0 is 2000, negative is none; not used in place
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// MoveResult is the answer to checkout, undo and redo.
type MoveResult struct {
	Head      string `json:"head"`                // HEAD afterwards
	From      string `json:"from"`                // the previous HEAD
	Kept      string `json:"kept,omitempty"`      // the snapshot of the previous state, if it had changed
	Message   string `json:"message,omitempty"`   // of the snapshot at HEAD
	Stopped   int    `json:"stopped,omitempty"`   // number of processes stopped
	Restarted bool   `json:"restarted,omitempty"` // the supervised command was started again
	InPlace   bool   `json:"in_place,omitempty"`  // processes continued; false if none were running
	Rewritten int    `json:"rewritten,omitempty"` // in place: number of paths changed under the processes

	Resumed []string `json:"resumed,omitempty"` // IDs of the commands that were resumed from memory
}

// UndoRequest asks to rewind by N snapshots.
type UndoRequest struct {
	N       int  `json:"n,omitempty"`        // number of snapshots; 0 is 1
	InPlace bool `json:"in_place,omitempty"` // keep processes running and change their files in place
}

// RedoRequest asks to revert the last undo. The request body is optional.
type RedoRequest struct {
	InPlace bool `json:"in_place,omitempty"` // keep processes running and change their files in place
}

// SocketResult is the socket of a sandbox's line protocol.
type SocketResult struct {
	Path string `json:"path"` // path of the socket, on the daemon's host
}

// TagRequest asks for a tag on a snapshot.
type TagRequest struct {
	Name string `json:"name"`          // 1 to 63 of a-z 0-9 _ . -, a letter or digit first; not "head"
	Ref  string `json:"ref,omitempty"` // a reference to the snapshot; "" is HEAD
}

// TagResult is the answer to a TagRequest.
type TagResult struct {
	Name string `json:"name"` // the tag
	Node string `json:"node"` // the tagged snapshot
}

// TagsResult lists all tags of a sandbox.
type TagsResult struct {
	Tags map[string]string `json:"tags"` // map from tag to snapshot
}

// GCRequest asks to delete unused data.
type GCRequest struct {
	DryRun    bool     `json:"dry_run,omitempty"`   // report what would be removed
	Keep      Keep     `json:"keep,omitzero"`       // which old snapshots to keep; if omitted, none are deleted
	Sandboxes []string `json:"sandboxes,omitempty"` // names or IDs of the sandboxes; none is all
}

// Keep selects the snapshots to keep when old ones are deleted: those that match at least one rule. The zero value
// deletes nothing. HEAD, tagged snapshots, manual snapshots, branch points and branch tips, the start of a fork and
// what can be redone are always kept.
type Keep struct {
	Last     int   `json:"last,omitempty"`      // the newest N
	WithinMS int64 `json:"within_ms,omitempty"` // all that are newer than this
	Hourly   int   `json:"hourly,omitempty"`    // the newest of each of the last N hours, in UTC
	Daily    int   `json:"daily,omitempty"`     // the newest of each of the last N days
	Weekly   int   `json:"weekly,omitempty"`    // the newest of each of the last N weeks
}

// GCResult is the answer to a GCRequest.
type GCResult struct {
	Removed []string   `json:"removed"`           // IDs of deleted snapshots
	Dropped []Snapshot `json:"dropped,omitempty"` // snapshots that keep did not select
	Layers  int        `json:"layers"`            // unreferenced layer directories, including merged ones
	Images  int        `json:"images,omitempty"`  // unused memory images
	Bytes   int64      `json:"bytes"`             // bytes freed, or that would be freed
	DryRun  bool       `json:"dry_run,omitempty"` // nothing was removed

	Forks []string `json:"forks,omitempty"` // removed forks of finished tournaments
}

// Damage is one problem that verify found.
type Damage struct {
	Sandbox  string `json:"sandbox,omitempty"`  // name of the sandbox
	Snapshot string `json:"snapshot,omitempty"` // ID of the snapshot
	Layer    string `json:"layer,omitempty"`    // ID of the layer
	Image    string `json:"image,omitempty"`    // the damaged memory image
	Path     string `json:"path,omitempty"`     // the first damaged path
	Message  string `json:"message"`            // what is wrong
}

// VerifyResult is the answer to verify.
type VerifyResult struct {
	Layers      int   `json:"layers"`      // layers whose content was hashed
	Bytes       int64 `json:"bytes"`       // bytes of content that was read
	Unfinalized int   `json:"unfinalized"` // layers without a digest
	// of those, layers that never get a digest: they have too many or too deep paths for a manifest, so that they
	// cannot be verified
	Unverifiable int      `json:"unverifiable,omitempty"`
	Images       int      `json:"images,omitempty"` // memory images whose pages were hashed
	Records      int64    `json:"records"`          // verified records of the ledger
	Damage       []Damage `json:"damage,omitempty"` // damage found; empty if none
}

// ForkRequest asks for forks of a sandbox.
type ForkRequest struct {
	Names []string `json:"names,omitempty"` // names of the forks, as in create
	N     int      `json:"n,omitempty"`     // number of forks; the daemon chooses names beyond those given
	At    string   `json:"at,omitempty"`    // a reference to the snapshot; "" is HEAD, after a capture of the live state

	// policy files that extend the policy of this sandbox, which forks inherit
	Policy []PolicyFile `json:"policy,omitempty"`
	// isolation tier of the forks, weaker or stronger: "process", "supervised", "container", "gvisor"; "" is that of this
	// sandbox
	Tier string `json:"tier,omitempty"`
	// labels of the forks, besides those of this sandbox, which forks inherit
	Labels map[string]string `json:"labels,omitempty"`

	// the forks keep the machine ID and the SSH host keys of this sandbox; otherwise each gets its own. Not with memory
	SameIdentity bool `json:"same_identity,omitempty"`

	// processes continue in the forks; each fork is re-keyed before its gate opens; in tier gvisor. With at, that
	// snapshot must have memory
	Memory bool `json:"memory,omitempty"`

	// which live grants are issued again for the forks, with new placeholders: "" those with fork "reissue", "none",
	// "reissue" all. A warning of each fork names the others
	Grants string `json:"grants,omitempty"`
}

// ForkResult is the answer to a ForkRequest.
type ForkResult struct {
	Sandboxes []Sandbox `json:"sandboxes"` // the forks
}

// StopResult is the answer to stop.
type StopResult struct {
	Stopped int    `json:"stopped"` // number of processes stopped
	Head    string `json:"head"`    // HEAD after a capture of the final state
	// the sandbox did not report its number of processes: Stopped is unknown
	Uncounted bool `json:"uncounted,omitempty"`
}

// Progress is the progress of a long operation. Done and Total count Unit; a Total of 0 is unknown.
type Progress struct {
	Phase string `json:"phase"`           // such as "import", "scan", "verify"; for people
	Unit  string `json:"unit,omitempty"`  // unit of done and total: "bytes", "entries"
	Done  int64  `json:"done"`            // amount done
	Total int64  `json:"total,omitempty"` // total amount; 0 is unknown
	Note  string `json:"note,omitempty"`  // a message to show on its own line, such as a warning

	Branch *TournamentBranch `json:"branch,omitempty"` // the candidate that has just finished
}

// Event is one line of the answer to a long operation when the client asked for
// application/x-ndjson: any number of lines with Progress, then one with Result
// or Error.
type Event struct {
	Progress *Progress `json:"progress,omitempty"` // progress of the operation
	Result   any       `json:"result,omitempty"`   // the result; on the last line
	Error    *Error    `json:"error,omitempty"`    // the error; on the last line
}

// Problem is an error over HTTP: an RFC 9457 problem document, with the kind and
// the hint as extensions.
type Problem struct {
	Type   string `json:"type"`   // "about:blank"; see kind
	Title  string `json:"title"`  // standard text of the status
	Status int    `json:"status"` // HTTP status of the response
	Detail string `json:"detail"` // what went wrong
	// to branch on: "invalid", "not_found", "ambiguous", "exists", "conflict", "unsupported", "denied", "no_space",
	// "read_only", "corrupt", "version", "unavailable", "cancelled", "timeout", "too_large", "internal"; more may be
	// added
	Kind string `json:"kind"`
	Hint string `json:"hint,omitempty"` // how to fix it
}
