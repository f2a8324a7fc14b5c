//go:build linux && (amd64 || arm64)

package escape

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Facts describe what the harness has planted outside, all of it within reach of the sandbox's user on the
// host.
type Facts struct {
	Secret   string   `json:"secret"`        // the content of every planted file
	Files    []string `json:"files"`         // files that hold it: outside, in the store, in another sandbox
	Sockets  []string `json:"sockets"`       // unix sockets with a listener, including the keeper's
	Abstract string   `json:"abstract"`      // an abstract socket on the host, without its leading NUL
	Port     int      `json:"port"`          // a TCP port on the host's loopback
	Victim   int      `json:"victim"`        // a process, as the host numbers it
	ShmKey   int      `json:"shm_key"`       // a System V shared memory segment
	NetHost  bool     `json:"net_host"`      // the sandbox has the host's network
	Own      bool     `json:"own,omitempty"` // the sandbox has its own kernel
	User     string   `json:"user"`          // the user that the sandbox runs as

	Words []string `json:"words,omitempty"` // words that identify the host: its boot, its kernel, its namespaces
	Shown []string `json:"shown,omitempty"` // a socket and a pipe inside, with a process outside at the other end
	Tasks int      `json:"tasks,omitempty"` // the limit of processes and threads; 0 is no limit

	Kept   []string `json:"kept,omitempty"`    // files inside that hold it, and are read-only
	KeptIn string   `json:"kept_in,omitempty"` // a directory around them all, which is not

	// decoys inside, Glances of them; each of them hides a file with Secret
	Decoys   []string `json:"decoys,omitempty"`
	DecoysIn string   `json:"decoys_in,omitempty"` // a directory around them all

	Gate *GateFacts `json:"gate,omitempty"` // nil without a gate
}

// Attack is one attempt.
type Attack struct {
	Name string
	What string // the attempt, for the table in the threat model
	// Applies reports whether a sandbox with these facts promises to stop the attempt; nil: every one does.
	Applies func(Facts) bool
	// Told is what a gate must have recorded of the attempt, filled in by Facts.Fill: ADDRESS:PORT, or a
	// name; "" for nothing.
	Told string
	// Because is the reason of any denial that a gate must have recorded.
	Because string
	// Refused are the system calls whose refusal must be recorded.
	Refused []string
	// None says why nothing is recorded, if none of Told, Because, Refused, Touches and Killed is set.
	None string
	// Touches says that the attempt reads decoys, and prints which (Touched): the opening of each must be
	// reported.
	Touches bool
	// Starts are the names (argv[0]) under which the attempt starts programs, all of which must be recorded.
	Starts []string
	// Killed says that the filter kills the attacker, if this architecture has the call; that is recorded.
	Killed bool
	// Emulated says what the attempt is given in tier gvisor, by the sandbox's own kernel, in ways that the
	// attack recognizes (errOwn); it then tries the others.
	Emulated string
	Run      func(Facts) error
}

// Exit codes of Main.
const (
	Succeeded = 0
	Misused   = 2
	Refused   = 10
	Emulated  = 11 // refused, except for what Attack.Emulated says
)

// Argv0 is the name by which the attacker's binary must be started.
const Argv0 = "escape-attack"

// Main runs the attack args[1] with the facts in args[2], writes its result to out, and returns the exit
// code: Succeeded is bad.
func Main(args []string, out io.Writer) int {
	if len(args) < 3 {
		return Misused
	}
	var f Facts
	if err := json.Unmarshal([]byte(args[2]), &f); err != nil {
		tell(out, err)
		return Misused
	}
	i := slices.IndexFunc(Attacks, func(a Attack) bool { return a.Name == args[1] })
	if i < 0 {
		tell(out, "no such attack")
		return Misused
	}
	if err := Attacks[i].Run(f); errors.Is(err, errOwn) {
		tell(out, "emulated:", err)
		return Emulated
	} else if err != nil {
		tell(out, "refused:", err)
		return Refused
	}
	tell(out, "SUCCEEDED")
	return Succeeded
}

// tell writes to the test's output; an attacker can do nothing about an error.
func tell(w io.Writer, words ...any) { _, _ = fmt.Fprintln(w, words...) }

// each tries several ways; one that succeeds is enough.
func each[T any](things []T, try func(T) error) error {
	var errs []error
	for _, t := range things {
		err := try(t)
		if err == nil {
			tell(os.Stdout, "by", t)
			return nil
		}
		errs = append(errs, fmt.Errorf("%v: %w", t, err))
	}
	if len(errs) > 4 {
		emulated := errors.Is(errors.Join(errs[4:]...), errOwn)
		errs = append(errs[:4], fmt.Errorf("and %d more", len(errs)-4))
		if emulated {
			errs = append(errs, errOwn)
		}
	}
	return errors.Join(errs...)
}

// any1 is each over named ways.
func any1(ways map[string]func() error) error {
	names := make([]string, 0, len(ways))
	for n := range ways {
		names = append(names, n)
	}
	slices.Sort(names)
	return each(names, func(n string) error { return ways[n]() })
}

var errNothing = errors.New("found nothing")

// errOwn is of a way that succeeds against nothing but a kernel of the sandbox's own.
var errOwn = errors.New("something of the sandbox's own kernel")

// own says that a way which succeeded has reached nothing but the sandbox's own kernel,
// where it has one.
func (f Facts) own(err error) error {
	if err == nil && f.Own {
		return errOwn
	}
	return err
}

// holds returns nil when b holds the secret.
func (f Facts) holds(b []byte) error {
	if strings.Contains(string(b), f.Secret) {
		return nil
	}
	return errNothing
}

// Attacks is the corpus of all attacks.
var Attacks = slices.Concat(fileAttacks, decoyAttacks, keptAttacks, procAttacks, mountAttacks, kernelAttacks,
	btrfsAttacks, deviceAttacks, networkAttacks, gateAttacks, rootAttacks, ownAttacks)

// netOff: a sandbox that was given the host's network may use it, and one with a gate may send what the gate
// drops.
func netOff(f Facts) bool { return !f.NetHost && f.Gate == nil }

// ownNet: the loopback is not the host's.
func ownNet(f Facts) bool { return !f.NetHost }
