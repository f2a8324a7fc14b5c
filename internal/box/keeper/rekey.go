//go:build linux && (amd64 || arm64)

package keeper

import (
	"os"
	"slices"

	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
)

// quarantine isolates a box that was resumed from a memory image: its gate has not started.
type quarantine struct {
	guest   plan.Guest // the configuration that init would have received
	packets *os.File   // the gate's end of the link
	java    javaStores // Java stores of the resumed root
}

func (q *quarantine) close() {
	if q != nil {
		q.packets.Close()
	}
}

// rekey gives a resumed box its own identity.
func (k *keeper) rekey(r protocol.Rekey) ([]initlink.RekeyStep, error) {
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart == nil {
		return nil, fault.New(fault.Conflict, "the sandbox was not resumed from memory, or is already released")
	}
	if len(r.Seed) < 32 {
		return nil, fault.New(fault.Invalid, "invalid seed of %d bytes: must be at least 32", len(r.Seed)).
			WithHint("generate 32 random bytes")
	}
	if r.Hostname == "" {
		r.Hostname = k.apart.guest.Hostname
	}
	return k.rekeyInside(initlink.Rekey{Hostname: r.Hostname, Env: k.apart.guest.Env, Seed: r.Seed})
}

// rekeyInside makes init re-key the sandbox.
func (k *keeper) rekeyInside(r initlink.Rekey) ([]initlink.RekeyStep, error) {
	var done initlink.Rekeyed
	if err := k.askWith(initlink.MsgRekey, r, &done); err != nil {
		return nil, err
	}
	if done.Err != nil {
		return done.Steps, (*protocol.Failure)(done.Err).Fault()
	}
	if !done.Held && len(r.Seed) > 0 {
		return done.Steps,
			fault.New(fault.Version,
				"cannot re-key the sandbox: the init in the memory image is of an older coppice, which the sandbox can block").
				WithHint("rewind its files only: coppice rewind --files-only; or fork without memory: coppice fork " +
					"--files-only")
	}
	return done.Steps, nil
}

// release opens the gate of a resumed box. It does nothing if the gate is open.
func (k *keeper) release() error {
	k.rekeying.Lock()
	defer k.rekeying.Unlock()
	if k.apart == nil {
		return nil
	}
	g, enforced := k.apart.guest, k.enforced
	p, err := k.gate.process()
	if err != nil {
		return err
	}
	ca, err := k.beginGate(p, k.apart.packets)
	if err != nil {
		// The gate may have started, in an unknown state: the box must not run with it.
		k.gate.close()
		return err
	}
	enforced.Items = slices.Clone(enforced.Items)
	java := func() (javaStores, error) { return k.apart.java, nil }
	if err = trust(&g, &enforced, ca, java); err == nil {
		err = k.retrust(g, &enforced)
	}
	if err != nil {
		k.gate.close()
		return err
	}
	k.mu.Lock()
	k.enforced = enforced.Bounded()
	k.mu.Unlock()
	k.apart.close()
	k.apart = nil
	return nil
}

// retrust makes the init of a resumed box replace the authority of the previous gate by that of its own. An init from
// an older build does so only in bundles.
func (k *keeper) retrust(g plan.Guest, e *plan.Enforced) error {
	r := initlink.Rekey{Env: g.Env, CA: g.CA, Java: g.Java}
	_, err := k.rekeyInside(r)
	if len(r.Java) == 0 || !fault.Is(err, fault.Version) {
		return err
	}
	e.Items = slices.DeleteFunc(e.Items, func(i plan.Item) bool { return i.Name == "java" })
	e.Items = append(e.Items, untrusted("by any store, since the memory image is of an older coppice"))
	r.Java = nil
	_, err = k.rekeyInside(r)
	return err
}
