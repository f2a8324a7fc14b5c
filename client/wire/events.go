package wire

import (
	"math"
	"time"
)

// The kinds of a SandboxEvent. More may come.
const (
	EventCreated    = "created"    // a sandbox; Detail is what it was made from
	EventStarted    = "started"    // its keeper: from here on it costs memory
	EventStopped    = "stopped"    // its keeper
	EventPaused     = "paused"     // its processes stand still
	EventResumed    = "resumed"    // they go on; Detail says from where, if it was not from there
	EventExec       = "exec"       // a command began; Message is that of its snapshot
	EventExited     = "exited"     // it ended, and what it changed is in Snapshot
	EventRun        = "run"        // a supervised command began
	EventRestarted  = "restarted"  // a supervised command began again
	EventSnapshot   = "snapshot"   // one was recorded
	EventCheckout   = "checkout"   // HEAD went from Parent to Snapshot
	EventMark       = "mark"       // Detail is the phase, Message the message
	EventFork       = "fork"       // of Snapshot; Detail is the names of the forks
	EventTag        = "tag"        // Message is on Snapshot; without one it was removed
	EventDeleted    = "deleted"    // Snapshot left the history
	EventRemoved    = "removed"    // the sandbox
	EventTournament = "tournament" // it has ended; Message is the winner and Snapshot its own, if there is one
	EventPort       = "port"       // Port was opened or closed, as Detail says; Message is the program
	// Message is a place in the network that waits for a person; Detail says so, or what came of it
	EventAsk   = "ask"
	EventLimit = "limit" // a command came to a limit of the sandbox: Detail is which one
	// Message is a decoy that was opened, or of which a token was to be sent, as Detail says
	EventDecoy   = "decoy"
	EventDropped = "dropped" // the listener was too slow, or came too late
)

// What SandboxEvent.Detail says of a port.
const (
	PortOpened = "opened"
	PortClosed = "closed"
)

// What SandboxEvent.Detail says of a place that waits for a person, or did.
const (
	AskWaits   = "waits"
	AskAllowed = "allowed"
	AskDenied  = "denied"
	AskTimeout = "no decision in time"
)

// EventsNow asks for the events from now on alone.
const EventsNow uint64 = math.MaxUint64

// SandboxEvent is an event of a sandbox. It is sent after the operation is recorded.
type SandboxEvent struct {
	Seq  uint64    `json:"seq"`  // grows from event to event, also over restarts of the daemon; not always by one
	Time time.Time `json:"time"` // when it happened
	// "created", "started", "stopped", "exec", "exited", "run", "restarted", "snapshot",
	// "checkout", "mark", "fork", "tag", "deleted", "removed", "tournament", "port",
	// "ask", "limit", "decoy", "dropped"; more may be added
	Kind     string `json:"kind"`
	Sandbox  string `json:"sandbox,omitempty"`  // name of the sandbox
	ID       string `json:"id,omitempty"`       // id of the sandbox
	Snapshot string `json:"snapshot,omitempty"` // the snapshot that it is about
	Parent   string `json:"parent,omitempty"`   // of the snapshot; with "checkout", where HEAD was
	// of the snapshot, of the command, tag or winner, place in the network, path of a decoy; the
	// beginning of a long one
	Message string `json:"message,omitempty"`
	Cause   string `json:"cause,omitempty"` // of the snapshot: as in Snapshot
	Exit    *int   `json:"exit,omitempty"`  // exit code of the command
	Paths   int    `json:"paths,omitempty"` // how many paths changed
	Bytes   int64  `json:"bytes,omitempty"` // content bytes of what was added and changed
	Exec    string `json:"exec,omitempty"`  // id of the command
	// what a sandbox was made from, what moved HEAD, the phase of a mark, the names of forks, "opened" or
	// "closed" of a port; of a place in the network "waits", "allowed", "denied" or "nobody
	// decided"; "time", "output", "memory" or "pids" of a limit; what was done to a decoy, and what followed
	Detail string `json:"detail,omitempty"`
	Port   int    `json:"port,omitempty"` // with "port": its number
	// with "dropped": number of lost events of all sandboxes; 0 is unknown
	Dropped int64 `json:"dropped,omitempty"`
}
