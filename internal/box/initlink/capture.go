//go:build linux

package initlink

import (
	"github.com/coppice-dev/coppice/client/wire"
)

// Frozen is the answer to Freeze: no process of the sandbox runs, unless Err is set.
type Frozen struct {
	Procs int `json:"procs"`
	// Written are the files that can be written through shared mappings.
	Written Mapped `json:"written,omitzero"`
	// Programs are the programs that were started since the previous freeze, with Guest.Trace.
	Programs []wire.Program `json:"programs,omitempty"`
	Clock    uint64         `json:"clock,omitempty"` // as Clocked, in tier gvisor
	Err      *wire.Error    `json:"err,omitempty"`   // nothing is frozen
}

// Held is the answer to Hold. The processes are those that are stopped now, without Programs.
type Held struct {
	Frozen
	// Ran says that a process has run since Freeze, or since the Hold before. All have been stopped again.
	Ran bool `json:"ran,omitempty"`
}

// Mapped lists the files that processes have mapped, by inode and by path. The path is needed because a file that an
// overlay file system has copied up shows the inode of the lower file and, before Linux 6.7, so does a file that was
// not copied up.
type Mapped struct {
	Inodes []uint64 `json:"inodes,omitempty"`
	Paths  [][]byte `json:"paths,omitempty"` // absolute, inside; any bytes
	// All is set if there are too many files to list, if a process could not be examined, or
	// if a file has no path any more: any file may be mapped.
	All bool `json:"all,omitempty"`
}

// Counted is the number of processes besides init.
type Counted struct {
	Procs int `json:"procs"`
}

// Clocked has a number that changes when any process of the sandbox has run.
type Clocked struct {
	Clock uint64      `json:"clock"`
	Err   *wire.Error `json:"err,omitempty"`
}

// Saved is the answer to Save: the memory image is written, unless Err is set.
type Saved struct {
	Err *wire.Error `json:"err,omitempty"`
}
