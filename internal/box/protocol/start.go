//go:build linux && (amd64 || arm64)

package protocol

import "github.com/coppice-dev/coppice/internal/plan"

// Argv0 is the name by which coppice-init is a keeper.
const Argv0 = "coppice-keeper"

// Descriptors that Start gives to the keeper.
const (
	ConfigFD = 3
	ReadyFD  = 4
	LockFD   = 5
	GateFD   = 6 // coppice-gate, where the box is gated
	SentryFD = 7 // coppice-sentry, in tier gvisor
)

// Names in the run directory.
const (
	SocketName = "keeper.sock"
	LogName    = "keeper.log"
	LockName   = "lock" // held for the keeper from before its start to its end
	RootName   = "root" // where the keeper mounts the root
)

// LeftName is the file in the run directory to which a keeper that ends writes the events of
// programs that nobody has kept.
const LeftName = "programs.left"

// Outcome is what a keeper writes to its ready pipe, once.
type Outcome struct {
	Enforced plan.Enforced `json:"enforced"`
	Err      *Failure      `json:"err,omitempty"`
}

// Env is the whole environment of keeper and init. They are idle most of
// the time and many: few threads, little heap.
var Env = []string{"GOMAXPROCS=2", "GOGC=50", "GOMEMLIMIT=32MiB"}
