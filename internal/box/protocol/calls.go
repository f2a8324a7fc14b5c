//go:build linux && (amd64 || arm64)

// Package protocol defines how the daemon and the keeper of a sandbox communicate: how a keeper is started,
// where it listens, and the calls that it answers. Package box is the daemon's side, package keeper the
// other.
package protocol

import (
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/plan"
)

// The calls of a keeper. A connection carries one call, as a wire frame of type FrameRequest with a JSON
// Call.
//
//	op       answer
//	exec     the frames of an exec stream, see package wire
//	freeze   FrameReply with a FrozenReply. The next frame thaws the box and is
//	         answered by another FrameReply; the end of the connection thaws it
//	         too. Before that, each FrameRoot is answered by FrameReply with the
//	         live root and, if it is mounted, one byte that carries its descriptor;
//	         each FrameSave with a directory is answered by FrameReply when the
//	         memory image is in it, and one byte that carries the image's init,
//	         and another one that carries the program coppice if the SaveReply says so;
//	         if the FrozenReply is Loose, each FrameHold by FrameReply with a HeldReply
//	rekey    FrameReply with an initlink.Rekeyed
//	release  FrameReply when the gate of a resumed box is open
//	pause    FrameReply when all processes are paused; resume, when they run again
//	count    FrameReply with a number
//	ping     FrameReply: the keeper is alive. Init is not involved
//	status   a FrameExec with an ExecStatus for each command, then FrameReply with
//	         the rest of Status
//	signal   FrameReply; to a running exec
//	cancel   FrameReply; the exec is terminated, and killed if it does not exit
//	input    the caller sends Stdin and StdinEOF frames for a running exec, then
//	         one FrameThaw, which is answered by FrameReply when all of it was queued
//	wait     FrameRecorded and FrameReply with an Exit when an exec has ended
//	active   FrameReply with a clock that differs from Since, as soon as there is
//	         one: a process has run. Does not keep an idle box alive
//	ran      like active, but slower, with a clock that does not count what init does
//	         for the keeper
//	programs FrameReply with events of programs after Since, as soon as there are
//	         some, or at once with Now. Does not keep an idle box alive
//	processes, ports      FrameReply with the list that init made; only the given
//	                      Port unless it is 0
//	signal-process        FrameReply when the signal was sent
//	dial     FrameReply, and one byte that carries a socket, connected or connecting
//	root     FrameReply with the user of commands and how ids appear and, if the
//	         root is mounted, one byte that carries its descriptor. Keeps an idle
//	         box alive until the connection ends
//	policy   FrameReply when the gate enforces Phases
//	secrets  FrameReply when the gate has the grants of Secrets. A Failure of kind Unavailable says that it has
//	         them, or that nothing passes, but that no request can get a secret
//	net      FrameReply with a wire.NetNow
//	stop     FrameReply when all processes are gone; then the keeper exits
//
// Every call may be answered by FrameFailed instead.
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
	OpSecrets       = "secrets"
	OpPrograms      = "programs"
	OpNet           = "net"
	OpRekey         = "reseal"
	OpRelease       = "release"
	OpPause         = "pause"
	OpResume        = "resume"

	FrameReply wire.FrameType = 64
	FrameThaw  wire.FrameType = 65
	FrameRoot  wire.FrameType = 66
	FrameSave  wire.FrameType = 67
	FrameExec  wire.FrameType = 68
	FrameHold  wire.FrameType = 69
)

// Exit is the result of an exec, and the payload of FrameExit in its stream.
type Exit struct {
	wire.Exit
	// Alone says that no process was left in the box when the command was reaped. The box then has no process until the
	// next exec starts.
	Alone bool `json:"alone,omitempty"`
	// Stopped says that the box was being stopped when the command exited.
	Stopped bool `json:"stopped,omitempty"`
	// TTY says that the command had a terminal.
	TTY bool `json:"tty,omitempty"`
	// Resources are those of the command and of the descendants that it waited for.
	Resources wire.Resources `json:"resources,omitzero"`
	// Env is the command's own environment, as KEY=VALUE. Secrets in its output are recognized from it.
	Env []string `json:"env,omitempty"`
	// Output is the recorded output, which is sent in separate frames.
	Output []wire.Recorded `json:"-"`
}

// Call is one call to a keeper: the operation and its arguments.
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
	Start  uint64            `json:"start,omitempty"`  // signal-process: the start of the process, unless 0
	Port   uint16            `json:"port,omitempty"`   // ports, dial
	Phases []plan.Phase      `json:"phases,omitempty"` // policy
	Rekey  *Rekey            `json:"reseal,omitempty"` // rekey

	Secrets *plan.Secrets `json:"secrets,omitempty"` // secrets
}

// Failure is a fault as it is sent over a connection.
type Failure wire.Error

// FailureOf returns err as a Failure with a bounded text; nil for nil.
func FailureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Kind: string(fault.KindOf(err)), Message: limit.Cut(err.Error(), limit.KeeperText),
		Hint: limit.Cut(fault.HintOf(err), limit.KeeperText)}
}

// Fault returns f as a fault.
func (f *Failure) Fault() error {
	return &fault.Error{Kind: fault.Kind(f.Kind), Message: f.Message, Hint: f.Hint}
}

// Status is a keeper's report on itself.
type Status struct {
	ID       string        `json:"id"`
	PID      int           `json:"pid"` // the keeper's
	Started  time.Time     `json:"started"`
	Enforced plan.Enforced `json:"enforced"`
	Procs    int           `json:"procs"`
	Paused   bool          `json:"paused,omitempty"` // by Pause
	Execs    []ExecStatus  `json:"execs,omitempty"`  // running, or with a result that was not fetched
}

// ExecStatus describes one exec in a Status.
type ExecStatus struct {
	ID       string     `json:"id"`
	PID      int        `json:"pid"` // inside
	Cmd      []string   `json:"cmd"` // cut to limit.StatusArgs; the last argument then ends in "..."
	Started  time.Time  `json:"started"`
	Attached bool       `json:"attached,omitempty"`
	Kept     bool       `json:"kept,omitempty"`
	TTY      bool       `json:"tty,omitempty"`
	Stdin    bool       `json:"stdin,omitempty"` // it takes input
	Exit     *wire.Exit `json:"exit,omitempty"`  // nil while it runs

	Capture wire.Capture `json:"capture,omitzero"` // as it was started with; the zero value from an older keeper
}

// FrozenReply is the answer to freeze.
type FrozenReply struct {
	Procs   int             `json:"procs"`
	Written initlink.Mapped `json:"written,omitzero"`
	Since   time.Time       `json:"since"` // when the box was started; zero from an older keeper
	// Programs fit into one frame, because init bounds their number.
	Programs []wire.Program `json:"programs,omitempty"`
	// Loose says that processes can continue themselves: FrameHold tells whether one did.
	Loose bool `json:"loose,omitempty"`
}

// HeldReply is the answer to FrameHold: the processes that are stopped now, without Programs.
type HeldReply struct {
	FrozenReply
	// Ran says that a process has run since the freeze, or since the FrameHold before. All have been stopped again.
	Ran bool `json:"ran,omitempty"`
}

// Owners maps stored ids to those that appear in a root: N appears as Shift+N for N below Size. If Size is 0,
// ids are not mapped.
type Owners struct {
	Shift uint32 `json:"shift,omitempty"`
	Size  uint32 `json:"size,omitempty"`
}

// RootReply is the answer to FrameRoot.
type RootReply struct {
	Owners Owners          `json:"owners,omitzero"`
	Mapped initlink.Mapped `json:"mapped,omitzero"`
	Rooted bool            `json:"rooted,omitempty"` // a descriptor follows
	Frozen bool            `json:"frozen"`           // an older keeper takes any frame for a thaw
}

// InsideUser is the user that commands of a box run as. Its ids are those inside; the maps give the ids that
// the caller sees.
type InsideUser struct {
	UID    uint32       `json:"uid"`
	GID    uint32       `json:"gid"`
	Groups []uint32     `json:"groups,omitempty"`
	UIDs   []plan.IDMap `json:"uids"`
	GIDs   []plan.IDMap `json:"gids"`
}

// InsideReply is the answer to root.
type InsideReply struct {
	User   InsideUser `json:"user"`
	Rooted bool       `json:"rooted,omitempty"` // a descriptor follows
	Unseen []string   `json:"unseen,omitempty"`
}

// Rekey is the new identity of a box that was resumed from a memory image.
type Rekey struct {
	Hostname string `json:"hostname,omitempty"` // empty: that of its configuration
	Seed     []byte `json:"seed"`               // 32 bytes of fresh randomness
}

// SaveRequest asks for an image of which Facts are true. A keeper from before inits were kept expects Build
// instead, and refuses a request without it.
type SaveRequest struct {
	Dir   string            `json:"dir"`
	Facts map[string]string `json:"facts"`
	Build string            `json:"build"`
}

// SaveReply answers a SaveRequest.
type SaveReply struct {
	Client bool `json:"client,omitempty"` // the program coppice of the image follows its init
}

// ProgramEvent is an event with its number.
type ProgramEvent struct {
	Seq uint64 `json:"seq"`
	initlink.ProgramEvent
}

// ProgramsReply is the answer to programs.
type ProgramsReply struct {
	Events  []ProgramEvent `json:"events,omitempty"`
	Next    uint64         `json:"next"`
	Dropped uint64         `json:"dropped,omitempty"`
}

// LookPatience bounds how long the keeper waits for init to look something up: while the control group
// freezes the box, init is frozen too.
const LookPatience = 20 * time.Second
