//go:build linux

package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// Kind is the first byte of a message between keeper and init.
type Kind byte

// The messages. A message is one byte of kind, one of how many descriptors
// travel with it, two of zero, four of length (big endian), and so much JSON.
// Either end of the stream going away ends the box.
//
//	kind      from    payload    descriptors
//	Setup     keeper  plan.Guest the root, a detached mount tree (tier process), as many
//	                             as Shared says, with
//	                             Self the directory of its socket, with Tell a Tally;
//	                             first, once
//	Ready     init    Ready      -; answers Setup
//	Spawn     keeper  Spawn      stdout, stderr, and stdin if it is not /dev/null;
//	                             none with a terminal
//	Spawned   init    Spawned    the terminal's master, when asked for; answers Spawn, in order
//	Exited    init    Exited     -; after the Spawned of the same pid
//	Refused   init    Refused    -; before the Exited of a command that it is about
//	Kill      keeper  Kill       -; no answer; an unknown pid is ignored
//	Freeze    keeper  -          -; spawns wait from here to Thaw. With
//	                             Guest.Outside init only ends what it has begun
//	Frozen    init    Frozen     -; answers Freeze
//	Thaw      keeper  -          -
//	Thawed    init    -          -; answers Thaw
//	Map       keeper  -          -; between Frozen and Thaw
//	Mapped    init    Mapped     -; answers Map
//	Count     keeper  -          -
//	Counted   init    Counted    -; answers Count
//	Clock     keeper  -          -
//	Clocked   init    Clocked    -; answers Clock
//	Programs  init    Programs   -; at any time, and before the Exited of a command
//	                             all that is known by then
//	Look      keeper  Look       -; any number at once
//	Resize    keeper  Resize     -; in tier gvisor, where the keeper's end of a terminal is
//	                             a socket
//	Self      init    -          a connection to SelfSocket, in tier gvisor
//	Adopt     init    Adopt      those that it Has; in tier gvisor, of each command that
//	                             lives in a box that was resumed, before Ready
//	Reseal    keeper  Reseal     -; makes a box that was resumed another one
//	Resealed  init    Resealed   -; answers Reseal
//	Save      keeper  -          the three files of a memory image, in tier gvisor; between
//	                             Frozen and Thaw
//	Saved     init    Saved      -; answers Save
//	Unknown   init    Unknown    -; in the place of the answer to a message of a kind that it
//	                             does not know: that of an image may be of an older build
//	Seen      init    Seen       a socket, to a Look at LookDial that went well;
//	                             answers the Look with its ID, in any order
const (
	MsgSetup    Kind = 'C'
	MsgReady    Kind = 'R'
	MsgSpawn    Kind = 'S'
	MsgSpawned  Kind = 's'
	MsgExited   Kind = 'e'
	MsgKill     Kind = 'K'
	MsgFreeze   Kind = 'F'
	MsgFrozen   Kind = 'f'
	MsgThaw     Kind = 'T'
	MsgThawed   Kind = 't'
	MsgMap      Kind = 'M'
	MsgMapped   Kind = 'm'
	MsgCount    Kind = 'N'
	MsgCounted  Kind = 'n'
	MsgClock    Kind = 'A'
	MsgClocked  Kind = 'a'
	MsgPrograms Kind = 'P'
	MsgLook     Kind = 'L'
	MsgSeen     Kind = 'l'
	MsgRefused  Kind = 'd'
	MsgResize   Kind = 'Z'
	MsgSelf     Kind = 'O'
	MsgAdopt    Kind = 'D'
	MsgReseal   Kind = 'I'
	MsgResealed Kind = 'i'
	MsgSave     Kind = 'V'
	MsgSaved    Kind = 'v'
	MsgUnknown  Kind = 'U'
)

// Pipes are the names of the descriptors of a Spawn, and Terminal that of a Spawned.
var Pipes = [3]string{"stdout", "stderr", "stdin"}

// Terminal is what Adopt calls the master of a terminal.
const Terminal = "terminal"

// Resize gives the terminal of a command a size.
type Resize struct {
	PID int `json:"pid"`
	wire.Size
}

// Adopt is a command that goes on in a box that was resumed.
type Adopt struct {
	Exec string   `json:"exec"`
	PID  int      `json:"pid"`
	Cmd  []string `json:"cmd"`
	Env  []string `json:"env,omitempty"`
	TTY  bool     `json:"tty,omitempty"`
	Has  []string `json:"has,omitempty"` // the descriptors that come with it, by name
}

// Reseal gives a box that was resumed its own identity.
type Reseal struct {
	Hostname string   `json:"hostname,omitempty"`
	Env      []string `json:"env"`            // of every command from now on, complete
	CA       []byte   `json:"ca,omitempty"`   // as plan.Guest.CA
	Seed     []byte   `json:"seed,omitempty"` // fresh randomness, 32 bytes; empty: nothing but Env, CA and Java is changed
	// Java are as plan.Guest.Java. An init of an older build refuses a message that has them.
	Java []plan.JavaStore `json:"java,omitempty"`
}

// Resealed tells what was done, step by step. Nothing is done after a step that failed.
type Resealed struct {
	Steps []ResealStep `json:"steps,omitempty"`
	Err   *wire.Error  `json:"err,omitempty"`
	// Held says that init wrote to files that it held open, and to none that it found by a
	// name in the sandbox, which an older one did.
	Held bool `json:"held,omitempty"`
}

// ResealStep is one of them.
type ResealStep struct {
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
	Err    string `json:"err,omitempty"`
}

// Saved says that a memory image is written.
type Saved struct {
	Err *wire.Error `json:"err,omitempty"`
}

// Unknown says that init does not know a message.
type Unknown struct {
	Kind Kind        `json:"kind"`
	Err  *wire.Error `json:"err"`
}

// Ready says that commands can be started, or why not.
type Ready struct {
	Weak []plan.Item `json:"weak,omitempty"` // walls that came out other than planned
	Err  *wire.Error `json:"err,omitempty"`
}

// Spawn asks for a command.
type Spawn struct {
	Exec string     `json:"exec,omitempty"` // its id, for Program.Exec
	Cmd  []string   `json:"cmd"`
	Env  []string   `json:"env,omitempty"` // over the sandbox's own
	Dir  string     `json:"dir,omitempty"` // "" is the home, else /
	TTY  bool       `json:"tty,omitempty"`
	Size *wire.Size `json:"size,omitempty"`
}

// Spawned says that a command runs as PID, or, with PID 0, why not: an exit code
// of 126 or 127 with a message, or an error.
type Spawned struct {
	PID     int         `json:"pid"`
	Code    int         `json:"code,omitempty"`
	Message string      `json:"message,omitempty"`
	Err     *wire.Error `json:"err,omitempty"`
}

// Exited is the end of a command, with its wait status.
type Exited struct {
	PID    int    `json:"pid"`
	Status uint32 `json:"status"`
	Alone  bool   `json:"alone,omitempty"` // no process but init was left
	// Written is how much the command, and others with its descriptors, have written to
	// the standard output and error by now, in bytes, where pipes of the keeper do not
	// tell: in tier gvisor.
	Written []int64 `json:"written,omitempty"`
	// Used is what the command used, and those of its descendants that it waited for.
	Used wire.Resources `json:"used,omitzero"`
}

// Refused tells of system calls that were refused since it was told last.
type Refused struct {
	Calls []RefusedCall `json:"calls,omitempty"`
	More  int64         `json:"more,omitempty"` // so many besides
}

// RefusedCall is a system call that was refused, perhaps several times. Program is any bytes.
type RefusedCall struct {
	Call    string `json:"call"`
	Errno   string `json:"errno"`             // what was answered
	Program string `json:"program,omitempty"` // what the caller runs
	PID     int    `json:"pid"`               // of the first
	Command int    `json:"command,omitempty"` // leads the caller's session; Lives says that it does still
	Lives   bool   `json:"lives,omitempty"`
	Count   int64  `json:"count"`
}

// Whom a Kill reaches.
const (
	KillGroup = "group" // the command's process group
	KillTree  = "tree"  // its session, its process group, and all descendants of these
	KillAll   = "all"   // every process but init; PID is ignored
	// KillForeground is the group in the foreground of the command's terminal, in tier
	// gvisor.
	KillForeground = "foreground"
)

// Kill sends a signal.
type Kill struct {
	PID    int    `json:"pid"`
	Signal int    `json:"signal"`
	Whom   string `json:"whom"`
	// Doom kills, when the command ends, what is left of its tree.
	Doom bool `json:"doom,omitempty"`
}

// Frozen says that nothing moves.
type Frozen struct {
	Procs int `json:"procs"`
	// Written are the files that can be written through shared mappings.
	Written Mapped `json:"written,omitzero"`
	// Programs are those that were started since the freeze before, with
	// Guest.Trace.
	Programs []wire.Program `json:"programs,omitempty"`
	Clock    uint64         `json:"clock,omitempty"` // as Clocked, in tier gvisor
	Err      *wire.Error    `json:"err,omitempty"`   // nothing is frozen
}

// Programs are those that began and ended, in this order. The bytes of one message are
// bounded.
type Programs struct {
	Events []ProgramEvent `json:"events"`
	// Dropped is how many events before these found no room, since the keeper took
	// none.
	Dropped uint64 `json:"dropped,omitempty"`
}

// ProgramEvent is the beginning of a program or the end of one.
type ProgramEvent struct {
	Began *Program      `json:"began,omitempty"`
	Ended *ProgramEnded `json:"ended,omitempty"`
}

// Program is a program that a process became: wire.StartedProgram, with what may be any
// bytes as such.
type Program struct {
	ID      uint64    `json:"id"` // counts from 1 in the life of init
	PID     int       `json:"pid"`
	PPID    int       `json:"ppid,omitempty"`
	Parent  uint64    `json:"parent,omitempty"`
	Before  uint64    `json:"before,omitempty"`
	Exec    string    `json:"exec,omitempty"`
	Exe     []byte    `json:"exe,omitempty"`
	Args    []byte    `json:"args,omitempty"` // each ends with NUL, if it is whole
	Cut     int64     `json:"cut,omitempty"`  // bytes of Args that were left out; -1: some
	Dir     []byte    `json:"dir,omitempty"`
	Started time.Time `json:"started"`
	Asked   bool      `json:"asked,omitempty"`
	Lost    bool      `json:"lost,omitempty"` // its end will not be seen
}

// ProgramEnded is the end of a program.
type ProgramEnded struct {
	ID uint64    `json:"id"`
	At time.Time `json:"at"`
	// Status is the wait status of the process; nil: it is not known.
	Status *uint32 `json:"status,omitempty"`
	Next   uint64  `json:"next,omitempty"` // the process became this one
}

// Counted is how many processes there are besides init.
type Counted struct {
	Procs int `json:"procs"`
}

// Clocked stands for how far the processes have come: as long as none has run, it
// stays.
type Clocked struct {
	Clock uint64      `json:"clock"`
	Err   *wire.Error `json:"err,omitempty"`
}

// What a Look is at.
const (
	LookProcesses = "processes"
	LookPorts     = "ports"
	LookDial      = "dial"   // connect to Port
	LookSignal    = "signal" // send Signal to PID; while the sandbox is frozen it waits
)

// Look asks for something of the sandbox's processes.
type Look struct {
	ID   uint64 `json:"id"`
	What string `json:"what"`
	Port uint16 `json:"port,omitempty"` // ports: of this one alone; 0: of all
	PID  int    `json:"pid,omitempty"`
	// Start, unless 0, is Process.Start of the process that is meant.
	Start  uint64 `json:"start,omitempty"`
	Signal int    `json:"signal,omitempty"`
}

// Seen answers a Look. As JSON it fits into a frame of the keeper (wire.MaxFrame).
type Seen struct {
	ID        uint64      `json:"id"`
	Err       *wire.Error `json:"err,omitempty"`
	Processes []Process   `json:"processes,omitempty"` // by pid
	Ports     []Port      `json:"ports,omitempty"`     // by number
	More      int         `json:"more,omitempty"`      // how many were left out
	// Shared says that the network is not the sandbox's own: at the number of a port
	// somebody else may listen the next moment.
	Shared bool `json:"shared,omitempty"`
}

// Process is one process of the sandbox. What it says of itself is any bytes.
type Process struct {
	PID   int    `json:"pid"`
	PPID  int    `json:"ppid"`
	State string `json:"state"` // a letter, as proc_pid_stat(5) has it
	// Start is when it was started, in clock ticks since boot: with the pid it tells
	// a process from all others.
	Start   uint64    `json:"start"`
	Started time.Time `json:"started"`
	CPUMS   int64     `json:"cpu_ms"`
	RSS     int64     `json:"rss"` // bytes
	Name    []byte    `json:"name"`
	Args    [][]byte  `json:"args,omitempty"` // the first of them; none of one that is dead
	Cut     bool      `json:"cut,omitempty"`  // there are more Args
}

// Port is a TCP socket of the sandbox that listens.
type Port struct {
	Addr  netip.AddrPort `json:"addr"`
	Inode uint64         `json:"inode"`
	// PID is a process that holds it; 0 where that cannot be told.
	PID  int    `json:"pid,omitempty"`
	Name []byte `json:"name,omitempty"` // of the process
}

const (
	maxMessage = 16 << 20 // bytes of a payload
	maxFDs     = 4 + rootspec.MaxShared
)

// Message is one received message. The receiver owns the descriptors.
type Message struct {
	Kind    Kind
	Payload []byte
	FDs     []int
}

// Decode reads the payload into v.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Payload, v); err != nil {
		return fmt.Errorf("message %q: %w", m.Kind, err)
	}
	return nil
}

// Obey is Decode for who is to carry out what the payload says: what it does not know it
// refuses, rather than to leave it undone. An init may be of an older build than its keeper.
func (m Message) Obey(v any) error {
	d := json.NewDecoder(bytes.NewReader(m.Payload))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return older("does not know all of message %q", byte(m.Kind)).Because(err)
	}
	return nil
}

// older is the error of an init that another build of coppice asks for what it does not know.
func older(format string, args ...any) *fault.Error {
	return fault.New(fault.Version, "the sandbox's init, which is of another version of coppice, "+format, args...).
		WithHint("start the sandbox anew, without what its processes have in memory: coppice stop NAME")
}

// Close closes the descriptors.
func (m Message) Close() {
	for _, fd := range m.FDs {
		_ = unix.Close(fd)
	}
}
