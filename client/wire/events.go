package wire

import (
	"math"
	"time"
)

// The kinds of a SandboxEvent. More may be added.
const (
	EventCreated    = "created"    // a sandbox was created; Detail is its source
	EventStarted    = "started"    // its keeper was started: it uses memory from here on
	EventStopped    = "stopped"    // its keeper exited
	EventPaused     = "paused"     // its processes were paused
	EventResumed    = "resumed"    // they were resumed; Detail says from where, if not from where they were paused
	EventExec       = "exec"       // a command was started; Message is that of its snapshot
	EventExited     = "exited"     // a command exited; Snapshot has its changes
	EventRun        = "run"        // a supervised command was started
	EventRestarted  = "restarted"  // a supervised command was restarted
	EventSnapshot   = "snapshot"   // a snapshot was recorded
	EventCheckout   = "checkout"   // HEAD was moved from Parent to Snapshot
	EventMark       = "mark"       // Detail is the phase, Message the message
	EventFork       = "fork"       // Snapshot was forked; Detail is the names of the forks
	EventTag        = "tag"        // the tag Message was set on Snapshot, or removed if there is no Snapshot
	EventDeleted    = "deleted"    // Snapshot was removed from the history
	EventRemoved    = "removed"    // the sandbox was removed
	EventTournament = "tournament" // a tournament ended; Message is the winner and Snapshot the winner's, if any
	EventPort       = "port"       // Port was opened or closed, see Detail; Message is the program
	// a request for the destination Message is pending or was settled, see Detail
	EventAsk   = "ask"
	EventLimit = "limit" // a command reached a limit of the sandbox: Detail is the limit
	// the decoy Message was opened, or one of its tokens was about to be sent, see Detail
	EventDecoy   = "decoy"
	EventDropped = "dropped" // events were lost: the listener was too slow, or connected too late
)

// The values of SandboxEvent.Detail with EventPort.
const (
	PortOpened = "opened"
	PortClosed = "closed"
)

// The values of SandboxEvent.Detail with EventAsk.
const (
	AskWaits   = "waits"
	AskAllowed = "allowed"
	AskDenied  = "denied"
	AskTimeout = "no decision in time"
)

// EventsNow selects new events only.
const EventsNow uint64 = math.MaxUint64

// SandboxEvent is an event of a sandbox. It is sent after the operation is recorded.
type SandboxEvent struct {
	Seq  uint64    `json:"seq"`  // increases from event to event, also across restarts of the daemon; not always by one
	Time time.Time `json:"time"` // when it happened
	// "created", "started", "stopped", "exec", "exited", "run", "restarted", "snapshot",
	// "checkout", "mark", "fork", "tag", "deleted", "removed", "tournament", "port",
	// "ask", "limit", "decoy", "dropped"; more may be added
	Kind     string `json:"kind"`
	Sandbox  string `json:"sandbox,omitempty"`  // name of the sandbox
	ID       string `json:"id,omitempty"`       // id of the sandbox
	Snapshot string `json:"snapshot,omitempty"` // the snapshot that the event is about
	Parent   string `json:"parent,omitempty"`   // parent of the snapshot; with "checkout", the previous HEAD
	// message of the snapshot, message of the command, tag or winner, network destination, path of a decoy; a long one
	// is truncated
	Message string `json:"message,omitempty"`
	Cause   string `json:"cause,omitempty"` // cause of the snapshot: as in Snapshot
	Exit    *int   `json:"exit,omitempty"`  // exit code of the command
	Paths   int    `json:"paths,omitempty"` // number of changed paths
	Bytes   int64  `json:"bytes,omitempty"` // content bytes of added and changed files
	Exec    string `json:"exec,omitempty"`  // id of the command
	// source of the sandbox, operation that moved HEAD, phase of a mark, names of forks, "opened" or "closed" of a
	// port; of a pending request "waits", "allowed", "denied" or "no decision in time"; "time", "output", "memory" or
	// "pids" of a limit; access to a decoy, and the response
	Detail string `json:"detail,omitempty"`
	Port   int    `json:"port,omitempty"` // with "port": its number
	// with "dropped": number of lost events of all sandboxes; 0 is unknown
	Dropped int64 `json:"dropped,omitempty"`
}
