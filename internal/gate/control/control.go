// Package control starts the process that runs the gate of one sandbox, and talks to
// it. The gate reads what a hostile sandbox sends, so it has a process of its own,
// which is left no capability and cannot gain any; when it ends, however it does, the
// sandbox has no network. The keeper imports it, and the process itself, which is
// package process; it imports plan, client/wire, gate/link, program and fault, and nothing of
// the gate's network stack.
package control

import (
	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Argv0 is the name by which the program coppice-gate is started.
const Argv0 = "coppice-gate"

// ConnFD is the descriptor that the process is given: a stream socket. One byte brings
// the packet socket of link.Open, or the gate's end of link.Pair; Requests and Replies
// follow, as JSON.
const ConnFD = 3

// TouchFD is the descriptor by which the process tells of a token of a decoy: one byte or
// more, once the journal has it.
const TouchFD = 4

// Decoys are what the gate looks for in what the sandbox sends.
type Decoys struct {
	Tokens []plan.Token `json:"tokens,omitempty"`
	Stops  bool         `json:"stops,omitempty"` // whoever reads TouchFD kills the sandbox's processes then
}

// Request is asked of the process, one after the other. The first one begins the gate,
// and has a Journal.
type Request struct {
	Journal string       `json:"journal,omitempty"` // the directory of the journal
	Key     []byte       `json:"key,omitempty"`     // with a Journal: the secret of its key, see package journal
	Phases  []plan.Phase `json:"phases,omitempty"`  // the policies to keep to from now on; none leaves them
	Decoys  Decoys       `json:"decoys,omitzero"`   // with a Journal
}

// Reply answers a Request.
type Reply struct {
	Now wire.NetNow `json:"now"`
	// CA answers the first request: the certificate that the sandbox has to trust, as PEM,
	// where a policy has the gate look at HTTP requests; else there is none.
	CA  []byte      `json:"ca,omitempty"`
	Err *wire.Error `json:"err,omitempty"`
}

// Failed makes the Reply of an error, or of none.
func Failed(err error) Reply {
	if err == nil {
		return Reply{}
	}
	err = fault.OfHost(err)
	return Reply{Err: &wire.Error{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)}}
}

func (r Reply) fault() error {
	if r.Err == nil {
		return nil
	}
	return &fault.Error{Kind: fault.Kind(r.Err.Kind), Message: r.Err.Message, Hint: r.Err.Hint}
}
