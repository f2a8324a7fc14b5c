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
	// user of commands: "root", "me" or a name of the sandbox's /etc/passwd; "" lets the base decide
	User string `json:"user,omitempty"`
	// storage driver: "auto" or "", "overlay", "copy", "btrfs"
	Driver string `json:"driver,omitempty"`
	// isolation tier: "auto" or "", "workspace", "process", "supervised", "gvisor"
	Tier string `json:"tier,omitempty"`
	// "off" or "" (nothing but its own loopback, if the policy does not say more), "rules" (what the
	// policy allows), "host"
	Net string   `json:"net,omitempty"`
	Env []string `json:"env,omitempty"` // KEY=VALUE each, for every command
	// number of newest automatic snapshots to keep; 0 is 200
	KeepRecent int `json:"keep_recent,omitempty"`
	// minimum age of automatic snapshots before they are deleted; 0 is an hour
	KeepForMS int64 `json:"keep_for_ms,omitempty"`
	// such as "memory=4GiB,cpus=1.5,pids=512,disk=10GiB,time=30m,output=100MiB,files=1024"; "" is none
	Limits string       `json:"limits,omitempty"`
	Policy []PolicyFile `json:"policy,omitempty"` // policy files; none selects the built-in policy
	// what the inside may do with its own history: "read" or "" (look, and mark),
	// "rewind" (also commit, tag and go back), "off"
	Self string `json:"self,omitempty"`
	// so long from now it is removed, or, when it has tags, cut back to what they name; 0 is never
	TTLMS      int64 `json:"ttl_ms,omitempty"`
	IdleStopMS int64 `json:"idle_stop_ms,omitempty"` // idle time after which its processes are stopped; 0 is never

	Repo *RepoRequest `json:"repo,omitempty"` // the git repository that it works on

	// Tar is the archive when From.Kind is SourceTar: tar, or tar compressed by
	// gzip, zstd or xz. It travels beside the JSON, in the same HTTP body.
	Tar io.Reader `json:"-"`
}

// What stays of automatic snapshots unless something else is asked for.
const (
	DefaultKeepRecent = 200
	DefaultKeepForMS  = 60 * 60 * 1000
)

// What the inside of a sandbox may do with its own history, at SelfSocket.
const (
	SelfOff    = "off"    // nothing: there is no socket
	SelfRead   = "read"   // look at it, and mark it
	SelfRewind = "rewind" // also commit, tag, and go back in place

	SelfSocket = "/run/coppice.sock"
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
	Path    string `json:"path,omitempty"`    // with "dir": absolute; with "tar": what the archive is called, for people
	Sandbox string `json:"sandbox,omitempty"` // with "sandbox": its name or id
	// with "sandbox": a reference to the snapshot; "" is HEAD, after a capture of the present
	Ref string `json:"ref,omitempty"`
}

// IsZero makes an unset Source vanish from JSON.
func (s Source) IsZero() bool { return s == Source{} }

// The states of a Sandbox.
const (
	StateIdle = "idle" // no process and no keeper: costs no memory
	StateLive = "live" // a keeper runs, perhaps with processes
	// It may be live: its keeper does not answer, and nothing else is known of its processes.
	StateUnavailable = "unavailable"
)

// Sandbox is one isolated environment with history.
type Sandbox struct {
	ID      string    `json:"id"`               // 12 hexadecimal digits
	Name    string    `json:"name"`             // unique
	Created time.Time `json:"created"`          // when
	Head    string    `json:"head"`             // the snapshot that the live state descends from
	State   string    `json:"state"`            // "idle" (no keeper: it costs no memory), "live", or "unavailable"
	Procs   int       `json:"procs,omitempty"`  // processes of commands, when live
	From    string    `json:"from"`             // description of its source
	Driver  string    `json:"driver"`           // in force: "overlay", "copy", "btrfs"
	Tier    string    `json:"tier"`             // in force: "workspace", "process", "supervised", "gvisor"
	User    string    `json:"user"`             // user of commands
	Net     string    `json:"net"`              // "off", "rules" or "host"
	Policy  string    `json:"policy,omitempty"` // digest of its policy, without temporary rules
	Env     []string  `json:"env,omitempty"`    // KEY=VALUE each, for every command
	Limits  Limits    `json:"limits,omitzero"`  // resource limits
	Self    string    `json:"self,omitempty"`   // what the inside may do with its own history: "off", "read", "rewind"
	// only in the answer to create and fork: what was refused, unreadable or weaker than asked
	Warnings []string `json:"warnings,omitempty"`
	Notes    []string `json:"notes,omitempty"` // only in the answer to create: what was done besides

	// when it is removed, or, when it has tags, cut back to what they name
	Expires    *time.Time `json:"expires,omitempty"`
	IdleStopMS int64      `json:"idle_stop_ms,omitempty"` // after so long without use its processes are stopped

	// set in the fork of a candidate, and says of which tournament: gc removes it
	Tournament string `json:"tournament,omitempty"`

	Repo *Repo `json:"repo,omitempty"` // the git repository that it works on

	Paused     bool        `json:"paused,omitempty"`     // its processes are paused
	Quarantine *Quarantine `json:"quarantine,omitempty"` // its gate is closed, because re-keying failed
}

// Quarantine is why nothing passes the gate of a fork with memory: it still is, in part,
// the copy of another sandbox.
type Quarantine struct {
	Since  time.Time `json:"since"`          // when it was forked
	Step   string    `json:"step,omitempty"` // the step that failed; "" is not known: it is under way, or was cut off
	Reason string    `json:"reason"`         // for people
}

// Limits are a sandbox's limits; 0 is none.
type Limits struct {
	Memory    int64 `json:"memory,omitempty"`     // bytes
	Pids      int64 `json:"pids,omitempty"`       // processes and threads
	Disk      int64 `json:"disk,omitempty"`       // bytes
	MilliCPUs int64 `json:"milli_cpus,omitempty"` // thousandths of a processor
	TimeMS    int64 `json:"time_ms,omitempty"`    // wall time of one command
	Output    int64 `json:"output,omitempty"`     // bytes that one command prints
	Files     int64 `json:"files,omitempty"`      // files that one process has open
}

// The limits that can end a command (Exit.Limit), and those that it can come to with
// others (Exit.Hits).
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
	Own     int64 `json:"own"`               // layers that this sandbox alone uses
	Shared  int64 `json:"shared"`            // layers that other sandboxes use as well
	Live    int64 `json:"live"`              // changes that are not in a layer yet
	Limited int64 `json:"limited,omitempty"` // what counts towards the limit, where there is one
}

// StatusResult is the state of one sandbox.
type StatusResult struct {
	Sandbox      Sandbox `json:"sandbox"`                 // what it is
	DriverReason string  `json:"driver_reason,omitempty"` // why this driver
	TierReason   string  `json:"tier_reason,omitempty"`   // why this tier
	// protections as of the last start; empty if never started
	Enforced  []Enforcement `json:"enforced"`
	Snapshots int           `json:"snapshots"`       // how many it made
	Branches  int           `json:"branches"`        // how many leaves its history has
	Disk      Disk          `json:"disk"`            // what its history takes
	Dirty     bool          `json:"dirty,omitempty"` // the live state differs from HEAD; a hint only
	Run       *Run          `json:"run,omitempty"`   // the supervised command
	// what a person should know: the host changed below, a layer is damaged
	Notices []string `json:"notices,omitempty"`
	// places of the host that it does not show, as of the last start
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// LeftOut is a place of the host that a sandbox from host does not show.
type LeftOut struct {
	Path string `json:"path"` // where it is not UTF-8, U+FFFD stands for what is wrong
	Why  string `json:"why"`  // for people
}

// DaemonStatus is the state of the daemon.
type DaemonStatus struct {
	Version   string    `json:"version"`   // of the program
	PID       int       `json:"pid"`       // of the daemon
	Home      string    `json:"home"`      // the directory of its store
	Started   time.Time `json:"started"`   // when
	Sandboxes int       `json:"sandboxes"` // how many there are
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

// What a Listener asks of those who come.
const (
	AuthPeer  = "peer"  // to be the daemon's own user
	AuthToken = "token" // a bearer token
	AuthNone  = "none"  // nothing
)

// Listener is one place where the daemon is served.
type Listener struct {
	URL  string `json:"url"`  // such as "unix:///home/daemon.sock", "https://127.0.0.1:8443"
	Auth string `json:"auth"` // authentication: "peer" (to be the daemon's own user), "token", "none"
}

// ProbeItem is one feature that this host does or does not support.
type ProbeItem struct {
	Name string `json:"name"` // such as "process", "overlay-in-userns"
	// "tiers", "drivers", "features", or "home": what the starts of this home's sandboxes found
	Group string `json:"group"`
	OK    bool   `json:"ok"`             // it works
	Weak  bool   `json:"weak,omitempty"` // it works with less than it should have
	// Unknown says that the probe itself failed, for lack of descriptors, memory or time:
	// whether it works is not known.
	Unknown bool   `json:"unknown,omitempty"`
	Detail  string `json:"detail,omitempty"` // what was found
	Remedy  string `json:"remedy,omitempty"` // the command or setting that fixes it
}

// ProbeReport is what this host supports, as tested.
type ProbeReport struct {
	Kernel string      `json:"kernel"` // its release
	User   string      `json:"user"`   // user of the daemon
	Items  []ProbeItem `json:"items"`  // the tested features
	Tier   string      `json:"tier"`   // the choice of "auto"
	Driver string      `json:"driver"` // the choice of "auto"
}

// Snapshot is a node of the history.
type Snapshot struct {
	ID      string `json:"id"`               // 12 hexadecimal digits
	Parent  string `json:"parent,omitempty"` // the snapshot that it came after
	Message string `json:"message"`          // the command line, label or message
	Head    bool   `json:"head,omitempty"`   // HEAD is here
	Leaf    bool   `json:"leaf,omitempty"`   // nothing came after it
	// "import", "exec", "auto", "manual", "mark", "fork" or "checkout"; more may be added
	Cause   string    `json:"cause"`
	Created time.Time `json:"created"`           // when
	Exit    *int      `json:"exit,omitempty"`    // exit code of the command, with cause "exec"
	Paths   int       `json:"paths"`             // how many paths it changed against its parent
	Bytes   int64     `json:"bytes"`             // content bytes of what it added and changed
	Sealed  bool      `json:"sealed,omitempty"`  // it is finalized: it has a digest and survives a power failure
	Tags    []string  `json:"tags,omitempty"`    // that name it
	Sandbox string    `json:"sandbox,omitempty"` // name of the sandbox that made it
	Memory  *Memory   `json:"memory,omitempty"`  // the saved memory of its processes, if any
}

// Memory is what the processes of a snapshot had in memory, at the moment of its files.
type Memory struct {
	Image string `json:"image"` // names the stored image: the sha256 of its manifest
	Size  int64  `json:"size"`  // bytes of memory, and of the state of its kernel
	Added int64  `json:"added"` // bytes that it took of the disk: what no image before had
	// what has to be the same where it is resumed; init: the sha256 of the program that is PID 1 in
	// it, which is kept with it
	Facts map[string]string `json:"facts,omitempty"`
}

// LogRow is one line of the drawn history.
type LogRow struct {
	Graph string `json:"graph"`          // lanes in plain ASCII, as git log --graph draws them
	Node  string `json:"node,omitempty"` // the snapshot drawn in this line; "" is a line of lanes only
}

// LogResult is the history of a sandbox.
type LogResult struct {
	Nodes []Snapshot `json:"nodes"`          // newest first
	Head  string     `json:"head"`           // HEAD
	Rows  []LogRow   `json:"rows,omitempty"` // the drawing, topmost line first

	// Truncated says that Rows end before the oldest snapshot: so many branches would make
	// the drawing too large. Nodes has all.
	Truncated bool `json:"truncated,omitempty"`
}

// HeadResult is HEAD after an operation.
type HeadResult struct {
	Head string `json:"head"` // HEAD
}

// BranchesResult is the leaves of the history.
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

	// "file", "dir", "symlink", "fifo", "socket", "device"; of what is there now, else of what was
	Type   string `json:"type,omitempty"`
	Size   int64  `json:"size,omitempty"`   // size in bytes after the change; before it, if the path was removed
	Lines  *Lines `json:"lines,omitempty"`  // set if requested and the file is text
	Binary bool   `json:"binary,omitempty"` // the file is binary; set if lines were requested
}

// Lines counts the lines of one changed text file.
type Lines struct {
	Added   int `json:"added"`   // how many
	Removed int `json:"removed"` // how many
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
	// there are more changes than one answer holds; ask for the diff of a path
	Truncated bool `json:"truncated,omitempty"`
}

// DiffRequest asks how two states of a sandbox differ, or with Other states of two sandboxes. Of two, only what
// differs in content, mode, owner or attributes counts, and not the time of a file.
type DiffRequest struct {
	A     string   `json:"a"`               // a reference; "" is the live state, which requires Other
	B     string   `json:"b,omitempty"`     // a reference; "" is the live state
	Other string   `json:"other,omitempty"` // the sandbox that B is a state of, by its name or id; "" is the same one
	Paths []string `json:"paths,omitempty"` // only at and below these; a leading slash does not matter
	Stat  bool     `json:"stat,omitempty"`  // count lines
	Limit int      `json:"limit,omitempty"` // maximum number of changes; 0 means as many as one answer holds
}

// DiffResult is the answer to a DiffRequest.
type DiffResult struct {
	A       string   `json:"a"`           // the snapshot that is compared; "" is the live state
	B       string   `json:"b,omitempty"` // the snapshot that it is compared with; "" is the live state
	Changes []Change `json:"changes"`     // from A to B, by path

	Truncated bool `json:"truncated,omitempty"` // there are more changes than one answer holds; ask for a part, by Paths
}

// CommitRequest asks for a snapshot of the current state.
type CommitRequest struct {
	Message string `json:"message"`          // of the snapshot; "" lets the daemon describe what changed
	Memory  bool   `json:"memory,omitempty"` // also save the memory of its processes; in tier gvisor
}

// CommitResult is the answer to a CommitRequest.
type CommitResult struct {
	Node    string `json:"node"`              // the new snapshot; the old head when nothing had changed
	Head    string `json:"head"`              // HEAD afterwards
	Changed bool   `json:"changed,omitempty"` // something had changed, and a snapshot was taken
	Paths   int    `json:"paths,omitempty"`   // how many paths changed
	Bytes   int64  `json:"bytes,omitempty"`   // content bytes of what was added and changed

	Memory  *Memory `json:"memory,omitempty"`   // if requested
	StillUS int64   `json:"still_us,omitempty"` // microseconds for which processes were frozen
}

// The phases of a MarkRequest.
const (
	MarkPoint = "" // take a snapshot of the present with Label
	// MarkBegin keeps the present as it is called so far, and gives automatic
	// snapshots Label until MarkEnd or the next MarkBegin.
	MarkBegin = "begin"
	MarkEnd   = "end" // take a snapshot with Label, "" being that of MarkBegin, and forget it
)

// MarkRequest labels what happens in a sandbox. The answer is a CommitResult.
type MarkRequest struct {
	// "" takes a snapshot of the present with the label; "begin" gives automatic
	// snapshots the label until "end" or the next "begin"; "end" takes one with the
	// label, "" being that of "begin", and forgets it
	Phase string `json:"phase,omitempty"`
	Label string `json:"label"` // what happens; "" only with "end"
}

// CheckoutRequest asks to rewind to another snapshot.
type CheckoutRequest struct {
	Node    string `json:"node"`               // a reference to the target snapshot
	InPlace bool   `json:"in_place,omitempty"` // keep processes running and change their files in place
	// restore only the files, even if the snapshot has memory
	FilesOnly bool `json:"files_only,omitempty"`
	// time of a supervised command between SIGTERM and SIGKILL; 0 is 2000, negative is none; unused in place
	GraceMS int64 `json:"grace_ms,omitempty"`
}

// MoveResult is the answer to checkout, undo and redo.
type MoveResult struct {
	Head      string `json:"head"`                // HEAD afterwards
	From      string `json:"from"`                // where it was
	Kept      string `json:"kept,omitempty"`      // the snapshot of the previous state, if it had changed
	Message   string `json:"message,omitempty"`   // of the snapshot at HEAD
	Stopped   int    `json:"stopped,omitempty"`   // number of processes stopped
	Restarted bool   `json:"restarted,omitempty"` // the supervised command was started again
	InPlace   bool   `json:"in_place,omitempty"`  // processes continued; false if none were running
	Rewritten int    `json:"rewritten,omitempty"` // in place: how many paths were changed under the processes

	Resumed []string `json:"resumed,omitempty"` // ids of the commands that were resumed from memory
}

// UndoRequest asks to go N snapshots back; 0 is 1.
type UndoRequest struct {
	N       int  `json:"n,omitempty"`        // how many snapshots to go back; 0 is 1
	InPlace bool `json:"in_place,omitempty"` // keep processes running and change their files in place
}

// RedoRequest asks to take the last undo back. A request without one is as good.
type RedoRequest struct {
	InPlace bool `json:"in_place,omitempty"` // keep processes running and change their files in place
}

// SocketResult is the socket of a sandbox's line protocol.
type SocketResult struct {
	Path string `json:"path"` // of the socket, on the daemon's host
}

// TagRequest asks for a tag on a snapshot.
type TagRequest struct {
	Name string `json:"name"`          // 1 to 63 of a-z 0-9 _ . -, a letter or digit first; not "head"
	Ref  string `json:"ref,omitempty"` // a reference to the snapshot; "" is HEAD
}

// TagResult is the answer to a TagRequest.
type TagResult struct {
	Name string `json:"name"` // the tag
	Node string `json:"node"` // the snapshot that it names
}

// TagsResult is all tags of a sandbox.
type TagsResult struct {
	Tags map[string]string `json:"tags"` // names, and the snapshots that they name
}

// GCRequest asks to delete unused data.
type GCRequest struct {
	DryRun    bool     `json:"dry_run,omitempty"`   // report what would be removed
	Keep      Keep     `json:"keep,omitzero"`       // which old snapshots to keep; if omitted, none are deleted
	Sandboxes []string `json:"sandboxes,omitempty"` // names or ids of the sandboxes; none is all
}

// Keep says which snapshots stay when old ones are dropped: those that one of
// its rules names. The zero value drops nothing. Whatever it says, HEAD, tagged
// snapshots, those of commit, branches and their ends, and what a fork began at
// or can be redone stay.
type Keep struct {
	Last     int   `json:"last,omitempty"`      // the newest N
	WithinMS int64 `json:"within_ms,omitempty"` // all that are newer
	Hourly   int   `json:"hourly,omitempty"`    // the newest of each of the last N hours, in UTC
	Daily    int   `json:"daily,omitempty"`     // the newest of each of the last N days
	Weekly   int   `json:"weekly,omitempty"`    // the newest of each of the last N weeks
}

// GCResult is the answer to a GCRequest.
type GCResult struct {
	Removed []string   `json:"removed"`           // ids of snapshots
	Dropped []Snapshot `json:"dropped,omitempty"` // those that keep did not select
	Layers  int        `json:"layers"`            // layer directories that nothing referred to, merged ones too
	Images  int        `json:"images,omitempty"`  // unused memory images
	Bytes   int64      `json:"bytes"`             // bytes freed, or to be freed
	DryRun  bool       `json:"dry_run,omitempty"` // nothing was removed

	Forks []string `json:"forks,omitempty"` // removed forks of finished tournaments
}

// Damage is one thing that verify found.
type Damage struct {
	Sandbox  string `json:"sandbox,omitempty"`  // name of the sandbox
	Snapshot string `json:"snapshot,omitempty"` // its id
	Layer    string `json:"layer,omitempty"`    // its id
	Image    string `json:"image,omitempty"`    // the memory image that it is in
	Path     string `json:"path,omitempty"`     // the first path that is wrong
	Message  string `json:"message"`            // what is wrong
}

// VerifyResult is the answer to verify.
type VerifyResult struct {
	Layers   int   `json:"layers"`   // layers whose content was hashed again
	Bytes    int64 `json:"bytes"`    // content that was read
	Unsealed int   `json:"unsealed"` // layers that have no digest, or none yet
	// of those, the layers that never get one: their paths are too many or too deep for a
	// manifest, so that they cannot be verified
	Unverifiable int      `json:"unverifiable,omitempty"`
	Images       int      `json:"images,omitempty"` // memory images whose pages were hashed again
	Records      int64    `json:"records"`          // of the ledger, all of which fit
	Damage       []Damage `json:"damage,omitempty"` // damage found; none is good
}

// ForkRequest asks for forks of a sandbox.
type ForkRequest struct {
	Names []string `json:"names,omitempty"` // of the forks, as in create
	N     int      `json:"n,omitempty"`     // number of forks; the daemon chooses names beyond those given
	At    string   `json:"at,omitempty"`    // a reference to the snapshot; "" is HEAD, after a capture of the present

	// policy files that extend the policy of this sandbox, which forks inherit
	Policy []PolicyFile `json:"policy,omitempty"`
	// how processes of the forks are confined, weaker or stronger: "process", "supervised", "gvisor"; "" is as in this one
	Tier string `json:"tier,omitempty"`

	// processes go on in the forks, each of which is made a sandbox of its own before
	// anything of it passes the gate; in tier gvisor. With at, that snapshot has to have
	// what its processes had in memory
	Memory bool `json:"memory,omitempty"`
}

// ForkResult is the answer to a ForkRequest.
type ForkResult struct {
	Sandboxes []Sandbox `json:"sandboxes"` // the forks
}

// StopResult is the answer to stop.
type StopResult struct {
	Stopped   int    `json:"stopped"`             // number of processes stopped
	Head      string `json:"head"`                // where HEAD is after the capture of what they left
	Uncounted bool   `json:"uncounted,omitempty"` // the sandbox did not say how many processes it had: Stopped is unknown
}

// Progress tells how far a long operation has come. Done and Total count Unit;
// a Total of 0 is unknown.
type Progress struct {
	Phase string `json:"phase"`           // such as "import", "scan", "verify", for people
	Unit  string `json:"unit,omitempty"`  // of done and total: "bytes", "entries"
	Done  int64  `json:"done"`            // how far it is
	Total int64  `json:"total,omitempty"` // how far it goes; 0 is unknown
	Note  string `json:"note,omitempty"`  // something that is worth a line of its own, as a warning

	Branch *TournamentBranch `json:"branch,omitempty"` // the candidate that has just ended
}

// Event is one line of the answer to a long operation when the client asked for
// application/x-ndjson: any number of lines with Progress, then one with Result
// or Error.
type Event struct {
	Progress *Progress `json:"progress,omitempty"` // how far it is
	Result   any       `json:"result,omitempty"`   // last: the result
	Error    *Error    `json:"error,omitempty"`    // last: why it failed
}

// Problem is an error over HTTP: an RFC 9457 problem document, with the kind and
// the hint as extensions.
type Problem struct {
	Type   string `json:"type"`   // "about:blank": the kind says more
	Title  string `json:"title"`  // what the status is called
	Status int    `json:"status"` // of the answer
	Detail string `json:"detail"` // what went wrong
	// to branch on: "invalid", "not_found", "ambiguous", "exists", "conflict",
	// "unsupported", "denied", "no_space", "read_only", "corrupt", "version",
	// "unavailable", "cancelled", "timeout", "too_large", "internal"; more may be added
	Kind string `json:"kind"`
	Hint string `json:"hint,omitempty"` // how to fix it
}
