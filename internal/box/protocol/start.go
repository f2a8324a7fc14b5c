//go:build linux && (amd64 || arm64)

package protocol

import "github.com/coppice-dev/coppice/internal/plan"

// Argv0 is the argv[0] with which coppice-init runs as a keeper.
const Argv0 = "coppice-keeper"

// Descriptors that Start gives to the keeper.
const (
	ConfigFD = 3
	ReadyFD  = 4
	LockFD   = 5
	GateFD   = 6 // coppice-gate, if the box has a gate
	SentryFD = 7 // coppice-sentry, in tier gvisor
	ClientFD = 8 // coppice, if the sandbox shows it
)

// Names in the run directory.
const (
	SocketName = "keeper.sock"
	LogName    = "keeper.log"
	LockName   = "lock" // held from before the keeper's start to its exit
	RootName   = "root" // mount point of the root
)

// LeftName is the file in the run directory to which an exiting keeper writes the program events that were
// not yet stored.
const LeftName = "programs.left"

// Outcome is the result of a start, which a keeper writes to its ready pipe once.
type Outcome struct {
	Enforced plan.Enforced `json:"enforced"`
	Err      *Failure      `json:"err,omitempty"`
}

// Env is the complete environment of keeper and init. There may be many of them, mostly idle, so they get few threads
// and little heap.
var Env = []string{"GOMAXPROCS=2", "GOGC=50", "GOMEMLIMIT=32MiB"}
