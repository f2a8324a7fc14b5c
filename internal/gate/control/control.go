// Package control starts the process that runs the gate of one sandbox, and talks to it. The gate parses input from a
// hostile sandbox, so it is a separate process, without capabilities and unable to gain any. When it exits, for
// whatever reason, the sandbox has no network. The keeper and package process import control; it imports plan,
// client/wire, landlock, program, thread and fault, and nothing of the gate's network stack.
package control

import (
	"os"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// Argv0 is the argv[0] of the coppice-gate program.
const Argv0 = "coppice-gate"

// ConnFD is the number of the process's control descriptor, a stream socket. It first carries one byte with the
// packet socket of link.Open, or the gate's end of link.Pair, or the two listeners of an entrance, that for streams
// first; and then Requests and Replies, as JSON.
const ConnFD = 3

// TouchFD is the descriptor on which the process reports tokens of decoys: at least one byte, written after the
// journal has the event.
const TouchFD = 4

// Decoys are the tokens to search for in traffic from the sandbox.
type Decoys struct {
	Tokens []plan.Token `json:"tokens,omitempty"`
	Stops  bool         `json:"stops,omitempty"` // the reader of TouchFD then kills the sandbox's processes
}

// Secrets are the grants of the sandbox, and its line to the broker of secrets.
type Secrets struct {
	// Line is a line that the broker has accepted (package secret/line). Without one, requests that would carry a secret
	// are refused. It is not closed.
	Line    *os.File     `json:"-"`
	HasLine bool         `json:"has_line,omitempty"` // set by Process
	Grants  []plan.Grant `json:"grants,omitempty"`
	// Answers settle pending requests, after the grants have been replaced.
	Answers []plan.Answer `json:"answers,omitempty"`
	// Later makes the sandbox trust the gate's authority although it has no grants yet; only in the first Request.
	Later bool `json:"later,omitempty"`
}

// Request is a request to the process, which answers requests in order. The first one starts the gate, and has a
// Journal.
type Request struct {
	Journal string       `json:"journal,omitempty"` // directory of the journal; only in the first Request
	Key     []byte       `json:"key,omitempty"`     // with a Journal: the secret of its key, see package journal
	Phases  []plan.Phase `json:"phases,omitempty"`  // the policies from now on; none leaves them unchanged
	Decoys  Decoys       `json:"decoys,omitzero"`   // with a Journal
	// Secrets are the grants from now on; nil leaves them unchanged. Without a line the process keeps that which it has.
	Secrets *Secrets `json:"secrets,omitempty"`
}

// Reply is the answer to a Request.
type Reply struct {
	Now wire.NetNow `json:"now"`
	// CA answers the first request: the certificate that the sandbox must trust, as PEM, if a policy inspects HTTP
	// requests, or if there are grants or may be later; else it is empty.
	CA  []byte      `json:"ca,omitempty"`
	Err *wire.Error `json:"err,omitempty"`
}

// Failed returns the Reply for an error, or for nil.
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
