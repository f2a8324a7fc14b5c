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

// Facts describe what the harness has planted outside. The sandbox's user on the host can reach all of it.
type Facts struct {
	Secret   string   `json:"secret"`        // the content of every planted file
	Files    []string `json:"files"`         // files that contain Secret: outside, in the store, in another sandbox
	Sockets  []string `json:"sockets"`       // unix sockets with a listener, including the keeper's
	Abstract string   `json:"abstract"`      // an abstract socket on the host, without its leading NUL
	Port     int      `json:"port"`          // a TCP port on the host's loopback
	Victim   int      `json:"victim"`        // a process, by its pid on the host
	ShmKey   int      `json:"shm_key"`       // a System V shared memory segment
	NetHost  bool     `json:"net_host"`      // the sandbox has the host's network
	Own      bool     `json:"own,omitempty"` // the sandbox has its own kernel
	User     string   `json:"user"`          // the user that the sandbox runs as

	Words []string `json:"words,omitempty"` // words that identify the host: its boot, its kernel, its namespaces
	Shown []string `json:"shown,omitempty"` // a socket and a pipe inside, with a process outside at the other end
	Tasks int      `json:"tasks,omitempty"` // the limit of processes and threads; 0 for none

	Kept   []string `json:"kept,omitempty"`    // read-only files inside that contain Secret
	KeptIn string   `json:"kept_in,omitempty"` // a directory around them all, which is writable

	// Decoys are Glances honeytokens inside. Each of them hides a file that contains Secret.
	Decoys   []string `json:"decoys,omitempty"`
	DecoysIn string   `json:"decoys_in,omitempty"` // a directory around them all

	Gate *GateFacts `json:"gate,omitempty"` // nil without a gate
}

// Attack is one attempt.
type Attack struct {
	Name string
	What string // the attempt, for the table in the threat model
	// Applies reports whether a sandbox with these facts must stop the attempt. If nil, every sandbox must.
	Applies func(Facts) bool
	// Told is what a gate must have recorded of the attempt, after Facts.Fill: ADDRESS:PORT, or a name; "" for nothing.
	Told string
	// Because is the reason of a denial that a gate must have recorded.
	Because string
	// Refused are the system calls whose refusal must be recorded.
	Refused []string
	// None states why nothing is recorded, if none of Told, Because, Refused, Touches and Killed is set.
	None string
	// Touches says that the attempt reads honeytokens, and prints which ones (Touched). The opening of each must be
	// reported.
	Touches bool
	// Starts are the names (argv[0]) under which the attempt starts programs, all of which must be recorded.
	Starts []string
	// Killed says that the filter kills the attacker, if this architecture has the call, and that this is recorded.
	Killed bool
	// Emulated describes what the attempt gets from the sandbox's own kernel in tier gvisor. The attack recognizes such
	// a way (errOwn), and then tries the others.
	Emulated string
	Run      func(Facts) error
}

// Exit codes of Main.
const (
	Succeeded = 0
	Misused   = 2
	Refused   = 10
	Emulated  = 11 // refused, except for the ways in Attack.Emulated
)

// Argv0 is the argv[0] with which the attacker's binary must be started.
const Argv0 = "escape-attack"

// Main runs the attack args[1] with the facts in args[2], writes its result to out, and returns the exit code.
// Succeeded is a failure of the sandbox.
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

// each tries try with each thing until one succeeds.
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

// any1 is each for named ways.
func any1(ways map[string]func() error) error {
	names := make([]string, 0, len(ways))
	for n := range ways {
		names = append(names, n)
	}
	slices.Sort(names)
	return each(names, func(n string) error { return ways[n]() })
}

var errNothing = errors.New("found nothing")

// errOwn is the error of a way that succeeded only against the sandbox's own kernel.
var errOwn = errors.New("something of the sandbox's own kernel")

// own returns errOwn for a way that succeeded in a sandbox with its own kernel: it has reached only that kernel.
func (f Facts) own(err error) error {
	if err == nil && f.Own {
		return errOwn
	}
	return err
}

// holds returns nil if b contains the secret.
func (f Facts) holds(b []byte) error {
	if strings.Contains(string(b), f.Secret) {
		return nil
	}
	return errNothing
}

// Attacks is the corpus of all attacks.
var Attacks = slices.Concat(fileAttacks, decoyAttacks, keptAttacks, procAttacks, mountAttacks, kernelAttacks,
	btrfsAttacks, deviceAttacks, networkAttacks, gateAttacks, rootAttacks, ownAttacks)

// netOff excludes sandboxes that may use the host's network, and those with a gate, which may send what the gate drops.
func netOff(f Facts) bool { return !f.NetHost && f.Gate == nil }

// ownNet selects sandboxes whose loopback is not the host's.
func ownNet(f Facts) bool { return !f.NetHost }
