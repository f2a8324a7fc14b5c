//go:build linux && (amd64 || arm64)

// Package protocol is what the daemon and the keeper of a sandbox are to each other: how a
// keeper is started, where it listens, and the calls that it answers. Package box is the
// daemon's side, and package keeper the other one.
package protocol

import (
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The calls of a keeper. A connection carries one call, as a wire frame of type
// FrameRequest with a JSON call.
//
//	op       answer
//	exec     the frames of an exec stream, see package wire
//	freeze   FrameReply with Freeze's answer; thaws at the next frame, which is
//	         answered by another FrameReply, and when the connection ends; each
//	         FrameRoot before that is answered by FrameReply with the live root,
//	         and one byte that brings its descriptor, where it is mounted; each
//	         FrameSave with a directory by FrameReply, when a memory image is in it, and
//	         one byte that brings the program that is its init
//	reseal   FrameReply with a initlink.Resealed
//	release  FrameReply, when the gate of a resumed box is open
//	pause    FrameReply, when all processes are paused; resume, when they run again
//	count    FrameReply with a number
//	ping     frameReply: the keeper is alive. Init is not asked
//	status   a FrameExec with an ExecStatus for each command, and FrameReply with the rest
//	         of Status
//	signal   FrameReply; to a running exec
//	cancel   FrameReply; the exec is asked to end, and killed when it does not
//	input    Stdin and StdinEOF frames of the caller's for a running exec follow, then
//	         one FrameThaw, which is answered by frameReply: all is on its way
//	wait     FrameRecorded and FrameReply with an Exit, when an exec has ended
//	active   FrameReply with a clock that differs from Since, as soon as there is one:
//	         a process has run. It does not keep the box from ending, being idle
//	ran      as active, less promptly, by a clock that leaves out what init does for
//	         the keeper
//	programs FrameReply with events of programs after Since, as soon as there are some,
//	         or Now. It does not keep the box from ending, being idle
//	processes, ports      FrameReply with what init has seen; ports of one Port alone
//	                      unless it is 0
//	signal-process        FrameReply, when the signal was sent
//	dial     FrameReply, and one byte that brings a socket, connected or about to be
//	root     FrameReply with the user of commands and how ids appear, and, where the
//	         root is mounted, one byte that brings its descriptor. The box does not
//	         end, being idle, before the connection does
//	policy   FrameReply, when the gate keeps to Phases
//	net      FrameReply with a wire.NetNow
//	stop     FrameReply when all processes are gone; then the keeper ends
//
// Every call can be answered by FrameFailed instead.
const (
	OpExec   = "exec"
	OpFreeze = "freeze"
	OpCount  = "count"
	OpPing   = "ping"
	OpStatus = "status"
	OpSignal = "signal"
	OpCancel = "cancel"
	OpInput  = "input"
	OpStop   = "stop"
	OpWait   = "wait"
	OpForget = "forget"
	OpActive = "active"
	OpRan    = "ran"

	OpProcesses     = "processes"
	OpSignalProcess = "signal-process"
	OpPorts         = "ports"
	OpDial          = "dial"
	OpRoot          = "root"
	OpPolicy        = "policy"
	OpPrograms      = "programs"
	OpNet           = "net"
	OpReseal        = "reseal"
	OpRelease       = "release"
	OpPause         = "pause"
	OpResume        = "resume"

	FrameReply wire.FrameType = 64
	FrameThaw  wire.FrameType = 65
	FrameRoot  wire.FrameType = 66
	FrameSave  wire.FrameType = 67
	FrameExec  wire.FrameType = 68
)

// Exit is what FrameExit holds in the stream of an exec.
type Exit struct {
	wire.Exit
	// Alone says that no process was left in the box when the command was
	// reaped: then there is none until the next exec is begun.
	Alone bool `json:"alone,omitempty"`
	// Stopped says that the box was being stopped when the command ended.
	Stopped bool `json:"stopped,omitempty"`
	// TTY says that it had a terminal.
	TTY bool `json:"tty,omitempty"`
	// Resources are what the command used, and those of its descendants that it waited for.
	Resources wire.Resources `json:"resources,omitzero"`
	// Env is its own environment, as KEY=VALUE: what of its output is a secret.
	Env []string `json:"env,omitempty"`
	// Output is what was recorded of its output. It comes in frames of its own.
	Output []wire.Recorded `json:"-"`
}

// Call is a call.
type Call struct {
	Op     string            `json:"op"`
	Exec   *wire.ExecRequest `json:"exec,omitempty"`
	ExecID string            `json:"exec_id,omitempty"` // signal, cancel, input, wait, forget
	Signal string            `json:"signal,omitempty"`
	Since  uint64            `json:"since,omitempty"`  // active, ran, programs
	Now    bool              `json:"now,omitempty"`    // programs
	Kept   uint64            `json:"kept,omitempty"`   // programs
	Grace  time.Duration     `json:"grace,omitempty"`  // stop
	PID    int               `json:"pid,omitempty"`    // signal-process
	Start  uint64            `json:"start,omitempty"`  // signal-process: of the process that is meant, unless 0
	Port   uint16            `json:"port,omitempty"`   // ports, dial
	Phases []plan.Phase      `json:"phases,omitempty"` // policy
	Reseal *Reseal           `json:"reseal,omitempty"` // reseal
}

// Failure is a fault on its way.
type Failure wire.Error

// FailureOf returns the fault of err as it travels, with a bounded text; nil for nil.
func FailureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Kind: string(fault.KindOf(err)), Message: limit.Cut(err.Error(), limit.KeeperText),
		Hint: limit.Cut(fault.HintOf(err), limit.KeeperText)}
}

// Fault returns the fault.
func (f *Failure) Fault() error {
	return &fault.Error{Kind: fault.Kind(f.Kind), Message: f.Message, Hint: f.Hint}
}

// Status is what a keeper says of itself.
type Status struct {
	ID       string        `json:"id"`
	PID      int           `json:"pid"` // the keeper's
	Started  time.Time     `json:"started"`
	Enforced plan.Enforced `json:"enforced"`
	Procs    int           `json:"procs"`
	Paused   bool          `json:"paused,omitempty"` // by Pause
	Execs    []ExecStatus  `json:"execs,omitempty"`  // running, or with a result that was not fetched
}

// ExecStatus is one exec of a Status.
type ExecStatus struct {
	ID       string     `json:"id"`
	PID      int        `json:"pid"` // inside
	Cmd      []string   `json:"cmd"` // no more of it than limit.StatusArgs: then the last argument ends in "..."
	Started  time.Time  `json:"started"`
	Attached bool       `json:"attached,omitempty"`
	Kept     bool       `json:"kept,omitempty"`
	TTY      bool       `json:"tty,omitempty"`
	Stdin    bool       `json:"stdin,omitempty"` // it takes input
	Exit     *wire.Exit `json:"exit,omitempty"`  // nil while it runs
}

// FrozenReply answers freeze.
type FrozenReply struct {
	Procs   int             `json:"procs"`
	Written initlink.Mapped `json:"written,omitzero"`
	Since   time.Time       `json:"since"` // when the box was started; an older keeper does not tell
	// Programs fit, with what init bounds them to, into one frame.
	Programs []wire.Program `json:"programs,omitempty"`
}

// Owners says how stored ids appear in a root: N as Shift+N, for N below Size; as
// they are where Size is 0.
type Owners struct {
	Shift uint32 `json:"shift,omitempty"`
	Size  uint32 `json:"size,omitempty"`
}

// RootReply answers FrameRoot.
type RootReply struct {
	Owners Owners          `json:"owners,omitzero"`
	Mapped initlink.Mapped `json:"mapped,omitzero"`
	Rooted bool            `json:"rooted,omitempty"` // a descriptor follows
	Frozen bool            `json:"frozen"`           // an older keeper takes any frame for a thaw
}

// InsideUser is who commands of a box run as. Its ids are those that are seen
// inside; the maps say how the caller sees them.
type InsideUser struct {
	UID    uint32       `json:"uid"`
	GID    uint32       `json:"gid"`
	Groups []uint32     `json:"groups,omitempty"`
	UIDs   []plan.IDMap `json:"uids"`
	GIDs   []plan.IDMap `json:"gids"`
}

// InsideReply answers root.
type InsideReply struct {
	User   InsideUser `json:"user"`
	Rooted bool       `json:"rooted,omitempty"` // a descriptor follows
	Unseen []string   `json:"unseen,omitempty"`
}

// Reseal is the identity of a box that was resumed from a memory image.
type Reseal struct {
	Hostname string `json:"hostname,omitempty"` // empty: that of its configuration
	Seed     []byte `json:"seed"`               // 32 bytes of fresh randomness
}

// SaveRequest is what Save asks for: an image of which Facts are true. A keeper from before
// inits were kept knows Build in their place, and refuses the one that there is none of.
type SaveRequest struct {
	Dir   string            `json:"dir"`
	Facts map[string]string `json:"facts"`
	Build string            `json:"build"`
}

// ProgramEvent is an event with its place among all.
type ProgramEvent struct {
	Seq uint64 `json:"seq"`
	initlink.ProgramEvent
}

// ProgramsReply answers a call for events.
type ProgramsReply struct {
	Events  []ProgramEvent `json:"events,omitempty"`
	Next    uint64         `json:"next"`
	Dropped uint64         `json:"dropped,omitempty"`
}

// LookPatience is how long init is waited for when it looks at something: while the
// box is frozen by its control group, so is init.
const LookPatience = 20 * time.Second
