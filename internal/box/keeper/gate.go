//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/control"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/journal"
	"github.com/coppice-dev/coppice/internal/plan"
)

// startGate starts the gate, which waits for its end of the link.
func (b *building) startGate(context.Context) (err error) {
	k, c := b.k, b.config
	if !c.Gated() {
		return nil
	}
	if k.gate, err = control.Start(k.helpers.gate, c.ID, c.Journal, c.JournalKey, os.Stderr); err != nil {
		return err
	}
	b.undos[undoGate] = func() {
		k.gate.Close()
		k.gate = nil
	}
	return nil
}

// openWire links the box with its gate, which starts unless the box is resumed from memory, and makes the inside trust
// it.
func (b *building) openWire(ctx context.Context) error {
	k := b.k
	if !b.config.Gated() {
		return nil
	}
	b.undos[undoWire] = func() {
		for i, f := range k.wire {
			f.Close() // returns ErrInvalid for nil
			k.wire[i] = nil
		}
	}
	packets, err := k.openLink()
	if err != nil {
		return err
	}
	stores := func() (javaStores, error) { return findJava(ctx, b.files) }
	if b.config.Image != "" { // no connection passes before release
		k.apart = &quarantine{guest: b.guest, packets: packets}
		b.undos[undoApart] = func() {
			k.apart.close()
			k.apart = nil
		}
		k.apart.java, err = stores()
		return err
	}
	ca, err := k.beginGate(packets)
	packets.Close()
	if err != nil {
		return err
	}
	return trust(&b.guest, &b.enforced, ca, stores)
}

// openLink creates the link between the box, in which no program of the sandbox runs yet, and its gate, and returns the
// gate's end. The other end is the only interface of init's network namespace or, if the sandbox has its own kernel,
// one of a pair of sockets.
func (k *keeper) openLink() (*os.File, error) {
	if k.config.Tier == plan.TierGvisor {
		box, gate, err := link.Pair()
		if err != nil {
			return nil, err
		}
		k.wire = [2]*os.File{box, gate} // both are held until the keeper exits: see link.Pair
		fd, err := unix.FcntlInt(gate.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, fault.Wrap(err, "create the sandbox's network interface")
		}
		return os.NewFile(uintptr(fd), "gate"), nil
	}
	netns, err := os.Open("/proc/" + strconv.Itoa(k.init.Pid) + "/ns/net")
	if err != nil {
		return nil, fault.Wrap(err, "open the sandbox's network")
	}
	defer netns.Close()
	return link.Open(netns, 0)
}

// beginGate starts the gate on its end of the link. ca is the authority that the inside must trust, if any.
func (k *keeper) beginGate(packets *os.File) (ca []byte, err error) {
	decoys := control.Decoys{Tokens: k.config.Tokens, Stops: k.config.OnTouch == plan.TouchStop}
	return k.gate.Begin(packets, k.config.Phases, decoys)
}

// watchGate reports a gate that exited before the box. No connection passes then: the gate's end of the link is gone.
func (k *keeper) watchGate() {
	select {
	case <-k.stop:
		return
	case <-k.over:
		return
	case <-k.gate.Gone():
	}
	select {
	case <-k.stop:
		return
	case <-k.over:
		return
	default:
	}
	const what = "the gate has exited: the network is unreachable until the sandbox restarts"
	fmt.Fprintln(os.Stderr, "coppice-keeper:", what)
	j, err := journal.Open(journal.Place{Dir: k.config.Journal, Key: k.config.JournalKey})
	if err == nil {
		ev := wire.NetEvent{Time: time.Now(), Kind: wire.NetDeny, Verdict: "deny", Reason: what}
		err = errors.Join(j.Append(ev), j.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coppice-keeper:", err)
	}
}

// watchTokens stops the box, if its policy says so, when the value of a honeytoken arrives at the gate.
func (k *keeper) watchTokens() {
	select {
	case <-k.stop:
	case <-k.over:
	case <-k.gate.Touched():
		if k.config.OnTouch == plan.TouchStop {
			k.halt("the value of a honeytoken was sent to the gate")
		}
	}
}

// setPolicy makes the gate enforce other phases.
func (k *keeper) setPolicy(phases []plan.Phase) error {
	if k.gate == nil {
		return noGate(k.config.Tier)
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart != nil {
		k.config.Phases = phases
		return nil
	}
	return k.gate.SetPolicy(phases)
}

// network returns the current state of the gate.
func (k *keeper) network() (wire.NetNow, error) {
	if k.gate == nil {
		return wire.NetNow{}, noGate(k.config.Tier)
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart != nil {
		return wire.NetNow{}, fault.New(fault.Conflict,
			"the sandbox was resumed from memory and is not yet released: its gate blocks all connections")
	}
	return k.gate.Now()
}

func noGate(tier string) error {
	return fault.New(fault.Unsupported, "a sandbox of tier %s has no gate", tier).
		WithHint("create one that has: coppice create --tier supervised")
}
