// Package timeline is the history as pure data: identifiers, snapshots, the tree that they form, references
// to them, the choice of layers that make up a snapshot's root, and the plan of what retention may remove. It
// does no I/O. Every package that deals with snapshots may import it; it imports only fault.
package timeline

import "time"

// SandboxID names a sandbox for ever: 12 lower-case hex digits.
type SandboxID string

// SnapshotID names a snapshot for ever: 12 lower-case hex digits.
type SnapshotID string

// LayerID names a layer directory of the store: 16 lower-case hex digits.
type LayerID string

// Cause says why a snapshot exists.
type Cause string

// The causes. They travel on the wire and are only ever added.
const (
	CauseImport   Cause = "import"   // the first snapshot of a sandbox: its base
	CauseExec     Cause = "exec"     // a command changed something
	CauseAuto     Cause = "auto"     // captured automatically
	CauseManual   Cause = "manual"   // coppice snapshot create
	CauseMark     Cause = "mark"     // labelled from outside, or by the agent's harness
	CauseFork     Cause = "fork"     // the first snapshot of a fork
	CauseCheckout Cause = "checkout" // the present, captured before a rewind
)

// Stats is the size of what a snapshot changed against its parent, as far as it is known when the snapshot is
// acknowledged.
type Stats struct {
	Paths int   `json:"paths"` // entries added, changed or removed (a removed directory counts once)
	Bytes int64 `json:"bytes"` // content bytes of added and changed files
}

// Snapshot is an immutable node of the history.
type Snapshot struct {
	ID        SnapshotID
	Sandbox   SandboxID  // the sandbox that made it
	Parent    SnapshotID // "" for a first snapshot; a fork's first snapshot has its source as parent
	Cause     Cause
	Message   string
	Created   time.Time
	Exit      *int // exit code of the command, with CauseExec
	Stats     Stats
	Finalized bool    // its layer survives power loss and is covered by a digest
	Memory    *Memory // memory of its processes; nil: not stored
}

// Memory describes the memory image of a snapshot, which is of the same moment as its files.
type Memory struct {
	Image string            `json:"image"`         // its name in the store of images
	Size  int64             `json:"size"`          // bytes of memory and of the kernel's state
	Added int64             `json:"added"`         // bytes that it took of the disk
	Facts map[string]string `json:"facts"`         // must be the same where it is resumed
	Run   string            `json:"run,omitempty"` // id of the supervised command in it
}

// Route says that Layer holds everything that Top changed against Below. A snapshot has its own route (whose
// Below is usually, not always, its parent) and may have merged ones that reach deeper. A snapshot without a
// route equals its parent.
type Route struct {
	Top    SnapshotID
	Below  SnapshotID // "" : the base itself
	Layer  LayerID
	Merged bool // built from others, and may be dropped and built again
}
