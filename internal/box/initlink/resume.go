//go:build linux

package initlink

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Self describes a connection to the sandbox's own socket. Its descriptor comes with the message.
type Self struct {
	// UID is the user that has made the connection, as in the sandbox; nil: unknown, also from an init of an older build.
	UID *uint32 `json:"uid,omitempty"`
}

// Adopt is a command that runs on in a resumed box.
type Adopt struct {
	Exec string   `json:"exec"`
	PID  int      `json:"pid"`
	Cmd  []string `json:"cmd"`
	Env  []string `json:"env,omitempty"`
	TTY  bool     `json:"tty,omitempty"`
	Has  []string `json:"has,omitempty"` // the descriptors that come with it, by name
}

// Rekey gives a resumed box its own identity.
type Rekey struct {
	Hostname string   `json:"hostname,omitempty"`
	Env      []string `json:"env"`          // the complete environment of every command from now on
	CA       []byte   `json:"ca,omitempty"` // as plan.Guest.CA
	// Seed is fresh randomness, 32 bytes. If it is empty, only Env, CA and Java are changed.
	Seed []byte `json:"seed,omitempty"`
	// Java is as plan.Guest.Java. An init of an older build refuses a message that has it.
	Java []plan.JavaStore `json:"java,omitempty"`
}

// Rekeyed lists the steps of a Rekey. The first step that fails is the last.
type Rekeyed struct {
	Steps []RekeyStep `json:"steps,omitempty"`
	Err   *wire.Error `json:"err,omitempty"`
	// Held is set if init wrote only to files that it held open. An init of an older build
	// opened them by name, and the sandbox can replace names.
	Held bool `json:"held,omitempty"`
}

// RekeyStep is one step of a Rekey.
type RekeyStep struct {
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
	Err    string `json:"err,omitempty"`
}
