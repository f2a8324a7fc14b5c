//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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

// startGate starts the gate, which waits for its end of the link, unless the first packet is to start it.
func (b *building) startGate(ctx context.Context) error {
	if !b.config.Gated() || b.config.GateWaits() {
		return nil
	}
	b.undos[undoGate] = b.k.gate.close
	_, err := b.k.startGate(ctx.Done())
	return err
}

// startGate starts the process of the gate, unless late is closed before.
func (k *keeper) startGate(late <-chan struct{}) (*control.Process, error) {
	c := k.config
	return k.gate.start(late, func() (*control.Process, error) {
		return control.Start(k.helpers.gate, c.ID, c.Journal, c.JournalKey, os.Stderr)
	})
}

// wiring is a link that is being made.
type wiring struct {
	done    chan struct{} // closed when the fields below are set
	packets *os.File      // the gate's end
	err     error
	// stream and messages are the listeners of a locked workspace, instead of packets.
	stream, messages *os.File
}

func (w *wiring) close() {
	for _, f := range []*os.File{w.packets, w.stream, w.messages} {
		f.Close() // returns ErrInvalid for nil, and ErrClosed if the gate has it
	}
}

// startWire starts to link the box with its gate, while the root is mounted: the kernel takes as long for the one as
// for the other.
func (b *building) startWire(context.Context) error {
	if !b.config.Gated() {
		return nil
	}
	w := &wiring{done: make(chan struct{})}
	b.wire = w
	b.undos[undoWire] = func() {
		<-w.done
		w.close()
		for i, f := range b.k.wire {
			f.Close()
			b.k.wire[i] = nil
		}
		b.k.netns.Close() // returns ErrInvalid for nil
		b.k.netns = nil
	}
	switch {
	case b.config.Tier == plan.TierGvisor:
		w.packets, w.err = b.k.openPair()
		close(w.done)
		return nil
	case b.config.Entered():
		w.stream, w.messages, w.err = listenEntrance(b.config.EntranceDir())
		close(w.done)
		return nil
	}
	netns, err := os.Open("/proc/" + strconv.Itoa(b.k.init.Pid) + "/ns/net")
	if err != nil {
		close(w.done)
		return fault.Wrap(err, "open the sandbox's network")
	}
	b.k.netns = netns
	go func() { // ends before the attempt, which waits for it
		defer close(w.done)
		w.packets, w.err = link.Open(netns, 0)
	}()
	return nil
}

// openWire passes the gate its end of the link, except that the gate of a box that is resumed from memory starts later,
// and makes the inside trust the gate.
func (b *building) openWire(ctx context.Context) error {
	k := b.k
	if !b.config.Gated() {
		return nil
	}
	<-b.wire.done
	packets, err := b.wire.packets, b.wire.err
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
	if b.config.GateWaits() {
		k.asleep = packets
		b.undos[undoApart] = k.forgetLink
		return nil
	}
	defer b.wire.close()
	p, err := k.gate.process()
	if err != nil {
		return err
	}
	if b.config.Entered() {
		_, err := p.BeginEntrance(b.wire.stream, b.wire.messages, k.config.Phases, control.Decoys{}, control.Secrets{})
		return err
	}
	ca, err := k.beginGate(p, packets)
	if err != nil {
		return err
	}
	return trust(&b.guest, &b.enforced, ca, stores)
}

// openPair creates the link between a box with a separate kernel and its gate, and returns the gate's end.
func (k *keeper) openPair() (*os.File, error) {
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

// beginGate makes the process of the gate serve its end of the link. ca is the authority that the inside must trust, if
// any. The inside of a running box never trusts the gate that waited for a packet. The caller holds k.rekeying, or is
// the only user of k.
func (k *keeper) beginGate(p *control.Process, packets *os.File) (ca []byte, err error) {
	decoys := control.Decoys{Tokens: k.config.Tokens, Stops: k.config.OnTouch == plan.TouchStop}
	secrets := k.firstSecrets()
	defer secrets.Line.Close() // returns ErrInvalid for nil
	ca, err = p.Begin(packets, k.config.Phases, decoys, secrets)
	k.trusted = err == nil && len(ca) > 0 && k.asleep == nil
	return ca, err
}

// watchGate starts a gate that waits, when it is needed, and reports one that exited before the box. No connection
// passes then: the gate's end of the link is gone.
func (k *keeper) watchGate() {
	if !k.awaitPacket() {
		return
	}
	p, err := k.gate.process()
	if err != nil { // the box is being ended
		return
	}
	k.own.Go(func() { k.watchTokens(p) })
	select {
	case <-k.stop:
		return
	case <-k.over:
		return
	case <-p.Gone():
	}
	select {
	case <-k.stop:
		return
	case <-k.over:
		return
	default:
	}
	k.reportGate("the gate has exited: the network is unreachable until the sandbox restarts")
}

// reportGate writes to the log and to the journal why nothing passes.
func (k *keeper) reportGate(what string) {
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
func (k *keeper) watchTokens(p *control.Process) {
	select {
	case <-k.stop:
	case <-k.over:
	case <-p.Touched():
		if k.config.OnTouch == plan.TouchStop {
			k.halt("the value of a honeytoken was sent to the gate")
		}
	}
}

// setPolicy makes the gate enforce other phases.
func (k *keeper) setPolicy(phases []plan.Phase) error {
	if !k.config.Gated() {
		return noGate(k.config.Tier)
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart != nil {
		k.config.Phases = phases
		return nil
	}
	if k.asleep != nil && slices.Equal(phases, k.config.Phases) {
		return nil
	}
	p, err := k.awake()
	if err != nil {
		return err
	}
	return p.SetPolicy(phases)
}

// network returns the current state of the gate.
func (k *keeper) network() (wire.NetNow, error) {
	if !k.config.Gated() {
		return wire.NetNow{}, noGate(k.config.Tier)
	}
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart != nil {
		return wire.NetNow{}, fault.New(fault.Conflict,
			"the sandbox was resumed from memory and is not yet released: its gate blocks all connections")
	}
	if k.asleep != nil && !readable(k.asleep) {
		return wire.NetNow{}, nil
	}
	p, err := k.awake()
	if err != nil {
		return wire.NetNow{}, err
	}
	return p.Now()
}

func noGate(tier string) error {
	return fault.New(fault.Unsupported, "a sandbox of tier %s has no gate", tier).
		WithHint("create one that has: coppice create --tier supervised")
}
