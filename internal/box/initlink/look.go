//go:build linux

package initlink

import (
	"net/netip"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
)

// The kinds of a Look.
const (
	LookProcesses = "processes"
	LookPorts     = "ports"
	LookDial      = "dial"   // connect to Port
	LookSignal    = "signal" // send Signal to PID; waits while the sandbox is frozen
)

// Look asks for something about the sandbox's processes.
type Look struct {
	ID   uint64 `json:"id"`
	What string `json:"what"`
	Port uint16 `json:"port,omitempty"` // restricts "ports" to this port unless 0; the port of "dial"
	PID  int    `json:"pid,omitempty"`
	// Start is the Process.Start that the process with that PID must have, or 0 for any process.
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
	// Shared is set if the sandbox shares the network of the host: a process of the host may listen on the same port
	// later.
	Shared bool `json:"shared,omitempty"`
}

// Process is one process of the sandbox. The process controls Name and Args, which may hold any bytes.
type Process struct {
	PID   int    `json:"pid"`
	PPID  int    `json:"ppid"`
	State string `json:"state"` // a letter, as in proc_pid_stat(5)
	// Start is when it was started, in clock ticks since boot. Together with PID it identifies
	// the process.
	Start   uint64    `json:"start"`
	Started time.Time `json:"started"`
	CPUMS   int64     `json:"cpu_ms"`
	RSS     int64     `json:"rss"` // bytes
	Name    []byte    `json:"name"`
	Args    [][]byte  `json:"args,omitempty"` // the first arguments; none if the process is dead
	Cut     bool      `json:"cut,omitempty"`  // there are more Args
}

// Port is a listening TCP socket of the sandbox.
type Port struct {
	Addr  netip.AddrPort `json:"addr"`
	Inode uint64         `json:"inode"`
	// PID is a process that has the socket open; 0 if none is known.
	PID  int    `json:"pid,omitempty"`
	Name []byte `json:"name,omitempty"` // of the process
}
