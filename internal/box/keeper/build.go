//go:build linux && (amd64 || arm64)

package keeper

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/box/cgroup"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gate/link"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/undo"
)

// buildInTime is build with the deadline of a start. If the deadline passes, or ctx ends because the caller has gone,
// init is killed and nothing remains mounted.
func (k *keeper) buildInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.startPatience)
	defer cancel()
	err := k.build(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.New(fault.Timeout, "the sandbox was not ready within %s and was killed", k.startPatience).
			Because(err).WithHint("see its log: cat %s", filepath.Join(k.config.RunDir, protocol.LogName))
	case ctx.Err() != nil:
		return fault.New(fault.Cancelled, "the start of the sandbox was cancelled").Because(err)
	}
	return err
}

// build mounts the root and starts init.
func (k *keeper) build(ctx context.Context) (err error) {
	c := k.config
	if !c.Confined() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fault.Wrap(err, "become the reaper of orphaned processes")
		}
		facts, err := hostFacts()
		if err != nil {
			return err
		}
		facts.Passwd, _ = os.ReadFile("/etc/passwd")
		facts.Group, _ = os.ReadFile("/etc/group")
		return k.attempt(ctx, facts, "")
	}
	// Unmounts of the host propagate to this namespace; nothing propagates back.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fault.Wrap(err, "stop mount propagation to the host")
	}
	root := filepath.Join(c.RunDir, protocol.RootName)
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fault.Wrap(err, "create the mount point of the root")
	}
	facts, err := hostFacts()
	if err != nil {
		return err
	}
	if c.Gated() {
		facts.Resolv = link.Resolvers(c.Asks)
	}
	if k.group, err = cgroup.New(c); err != nil {
		return err
	}
	if k.group != nil {
		facts.Cgroup = k.group.Facts
	}
	if k.shares, err = cgroup.NewShares(c, facts.Cgroup); err != nil {
		return err
	}
	if facts.Cgroup = k.shares.Facts(facts.Cgroup); c.Limits.MilliCPUs > 0 && !facts.Cgroup.CPU {
		return plan.CPULack()
	}
	if c.Caller.Root && !c.NoIDMap {
		facts.Shift = plan.ShiftFor(c.ID)
	}
	return k.attempt(ctx, facts, root)
}

// building is one attempt to start init and to mount the root. Its phases are methods in the files about their
// subjects; attempt defines their order.
type building struct {
	k      *keeper
	config plan.Config // the keeper's configuration; mountRoot adds the mount points of the root
	facts  plan.Facts
	root   string // path at which the root is mounted; "" in tier workspace

	sources *rootspec.Sources    // sources of what the root shows in addition to its layers
	mounts  rootspec.Descriptors // opened to mount the root; some are detached mounts
	files   rootspec.Files       // files of the root as init mounts it
	fds     []int                // descriptors for init, in the order in which it expects them

	guest    plan.Guest // init's plan
	enforced plan.Enforced
	found    []plan.Finding // findings about the host from the start of init
	spare    func()         // after it, the end of the context does not kill init
	wire     *wiring        // nil unless Config.Gated

	closers undo.Stack        // closes what only the attempt needs, whether or not it fails
	undos   [undoSteps]func() // set by the phases that they undo; nil if there is nothing to undo
}

// The steps that undo a failed attempt, in the order in which they run. That is not the reverse order of the phases:
// gate and init may be started before the root is mounted, and must be gone before the keeper closes the mounts that
// they use.
const (
	undoDeadline = iota // before init is reaped and its pid is reused
	undoGate
	undoWire
	undoApart
	undoInit
	undoExpect // init has started no command
	undoDecoys
	undoHold
	undoProc
	undoRoot
	undoSteps // number of steps
)

// attempt starts init and mounts the root at root, except in tier workspace, and passes the root to init. If it fails,
// init is gone and nothing is mounted.
func (k *keeper) attempt(ctx context.Context, facts plan.Facts, root string) (err error) {
	b := &building{k: k, config: k.config, facts: facts, root: root}
	defer func() {
		if err != nil {
			b.undo()
		}
	}()
	defer b.closers.Run(&err)
	b.onReturn(b.mounts.Close)

	// Gate and init start while the root is mounted, except that init is started afterwards if its ids depend on files
	// in the root.
	phases := []func(context.Context) error{b.startGate, b.startInit, b.startWire, b.mountRoot, b.readRoot}
	if root != "" && !plan.MapsKnown(k.config) {
		phases = []func(context.Context) error{b.startGate, b.mountRoot, b.readRoot, b.startInit, b.startWire}
	}
	phases = append(phases, b.decide, b.openWire, b.sendSetUp, b.awaitReady)
	for _, phase := range phases {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return nil
}

// undo undoes the phases that have run.
func (b *building) undo() {
	for _, f := range b.undos {
		if f != nil {
			f()
		}
	}
}

// onReturn makes f run when the attempt ends, before the functions of earlier calls, and before the attempt is undone.
func (b *building) onReturn(f func()) {
	b.closers.Push(func() error {
		f()
		return nil
	})
}

// closeFD closes a descriptor when the attempt ends, see onReturn.
func (b *building) closeFD(fd int) { b.onReturn(func() { _ = unix.Close(fd) }) }
