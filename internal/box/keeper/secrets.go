//go:build linux && (amd64 || arm64)

package keeper

import (
	"fmt"
	"os"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/secret/line"
)

// linePatience is how long the broker may take to accept a line.
const linePatience = 2 * time.Second

// openLine opens the line to the broker for the grants of s; nil if none of them is live. The caller closes it. The
// keeper reads nothing but the broker's consent from it.
func openLine(s plan.Secrets) (*os.File, error) {
	if !s.Live() {
		return nil, nil
	}
	return line.Dial(s.Socket, s.Ticket, linePatience)
}

// firstSecrets returns the grants for a gate that begins, with a line. A box starts without a broker: the gate refuses
// requests with a placeholder until setSecrets is called.
func (k *keeper) firstSecrets() control.Secrets {
	s := k.secrets.Load()
	conn, err := openLine(*s)
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper: no request can get a secret until the broker runs:", err)
	}
	return control.Secrets{Line: conn, Grants: s.Grants, Later: s.Later}
}

// setSecrets replaces the grants: those of the gate, and the placeholders for commands that start from now on. It
// returns Unavailable if the broker did not accept a line for them; the gate has them nevertheless.
func (k *keeper) setSecrets(s plan.Secrets) error {
	if !k.config.Gated() || k.config.Entered() {
		return fault.New(fault.Unsupported, "a sandbox of tier %s has no gate that inspects HTTPS", k.config.Tier).
			WithHint("create one that has: coppice create --tier supervised")
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart != nil { // its gate begins with them
		k.secrets.Store(&s)
		return nil
	}
	if !k.trusted {
		if len(s.Grants) == 0 {
			return nil
		}
		return fault.New(fault.Conflict, "the sandbox was started without grants: it does not trust the gate's authority").
			WithHint("stop it, and give the grant then: coppice stop NAME")
	}
	p, err := k.gate.process()
	if err != nil {
		return err
	}
	conn, noLine := openLine(s)
	if conn != nil {
		defer conn.Close()
	}
	if err := p.SetSecrets(conn, s.Grants, s.Answers...); err != nil {
		return err
	}
	s.Answers = nil // another gate has other questions
	k.secrets.Store(&s)
	return noLine
}
