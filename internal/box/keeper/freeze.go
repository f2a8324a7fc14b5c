//go:build linux && (amd64 || arm64)

package keeper

import (
	"errors"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box/initlink"
	"github.com/coppice-dev/coppice/internal/box/procs"
	"github.com/coppice-dev/coppice/internal/box/protocol"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// freeze freezes the box, answers with its state, and thaws the box when the caller asks or disconnects.
func (k *keeper) freeze(conn *net.UnixConn) error {
	select {
	case k.freezing <- struct{}{}:
	case <-k.stopping:
		return fault.New(fault.Unavailable, "the sandbox is being stopped")
	case <-k.stop:
		return fault.New(fault.Unavailable, "the sandbox is being stopped")
	}
	defer func() { <-k.freezing }()
	select {
	case <-k.stopping: // a freeze would be thawed at once
		return fault.New(fault.Unavailable, "the sandbox is being stopped")
	default:
	}
	r, err := k.standStill()
	if err != nil {
		return err
	}
	err = reply(conn, r)
	if err == nil {
		// Closed on the call to thaw, when the caller disconnects, or when the box ends: from then on stop may freeze
		// the box.
		over := make(chan struct{})
		k.calls.Go(func() {
			select {
			case <-k.stopping:
				_ = conn.SetReadDeadline(time.Unix(1, 0))
			case <-k.stop:
				_ = conn.SetReadDeadline(time.Unix(1, 0))
			case <-over:
			}
		})
		err = k.whileFrozen(conn)
		close(over)
	}
	thawed := k.goOn()
	if thawed != nil {
		select {
		case <-k.stopping:
			return fault.New(fault.Unavailable, "the sandbox is being stopped").Because(thawed)
		default:
			return thawed
		}
	}
	if err == nil {
		_ = wire.WriteJSON(conn, protocol.FrameReply, nil)
	}
	return nil
}

// standStill freezes the box unless it is paused. The token is held.
func (k *keeper) standStill() (r protocol.FrozenReply, err error) {
	if p := k.isPaused(); p != nil {
		return *p, nil
	}
	var f initlink.Frozen
	if err := k.ask(initlink.MsgFreeze, &f); err != nil {
		return r, err
	}
	if f.Err != nil {
		return r, (*protocol.Failure)(f.Err).Fault()
	}
	r = protocol.FrozenReply{Procs: f.Procs, Written: f.Written, Programs: f.Programs, Since: k.started}
	r.Loose = f.Procs > 0 && !k.freezesGroup() && k.config.Tier != plan.TierGvisor
	if k.freezesGroup() {
		if err := k.freezeGroup(&r); err != nil {
			return r, errors.Join(err, k.ask(initlink.MsgThaw, nil))
		}
	}
	return r, nil
}

// goOn is the inverse of standStill.
func (k *keeper) goOn() error {
	if k.isPaused() != nil {
		return nil
	}
	if k.freezesGroup() {
		if err := k.group.Thaw(); err != nil {
			return err
		}
		k.iced.Store(false)
	}
	return k.ask(initlink.MsgThaw, nil)
}

// freezesGroup reports whether the control group freezes the processes. A sandbox's own kernel freezes them itself.
func (k *keeper) freezesGroup() bool { return k.group != nil && k.config.Tier != plan.TierGvisor }

// whileFrozen answers calls about a frozen box until the caller thaws it.
func (k *keeper) whileFrozen(conn *net.UnixConn) error {
	for {
		t, p, err := wire.ReadFrame(conn, nil)
		if err != nil {
			return err
		}
		switch t {
		case protocol.FrameRoot:
			err = k.giveRoot(conn)
		case protocol.FrameSave:
			err = k.save(conn, p)
		case protocol.FrameHold:
			err = k.tellHeld(conn)
		default:
			return nil
		}
		if err != nil {
			fail(conn, err)
		}
	}
}

// tellHeld answers whether a process has run although the box is frozen.
func (k *keeper) tellHeld(conn *net.UnixConn) error {
	var h initlink.Held
	if err := k.ask(initlink.MsgHold, &h); err != nil {
		return err
	}
	if h.Err != nil {
		return (*protocol.Failure)(h.Err).Fault()
	}
	return reply(conn, protocol.HeldReply{Ran: h.Ran, FrozenReply: protocol.FrozenReply{
		Procs: h.Procs, Written: h.Written, Since: k.started, Loose: true}})
}

// giveRoot answers with the live root.
func (k *keeper) giveRoot(conn *net.UnixConn) error {
	r := protocol.RootReply{Owners: k.owners, Rooted: k.hold != nil, Frozen: true}
	if k.freezesGroup() {
		pids, err := k.group.PIDs()
		if err != nil {
			return err
		}
		r.Mapped = procs.MappedBy(pids)
	} else if err := k.ask(initlink.MsgMap, &r.Mapped); err != nil {
		return err
	}
	if err := reply(conn, r); err != nil || !r.Rooted {
		return err
	}
	_, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(k.hold.Fd())), nil)
	return err
}

// freezeGroup freezes the control group, including init, which has completed what it began and starts nothing. If init
// is the only process, it need not freeze the group.
func (k *keeper) freezeGroup(r *protocol.FrozenReply) error {
	pids, err := k.group.PIDs()
	if err != nil {
		return err
	}
	if pids = k.withoutInit(pids); len(pids) == 0 {
		return nil
	}
	k.iced.Store(true)
	if err := k.group.Freeze(); err != nil { // Freeze has thawed the group again
		k.iced.Store(false)
		return err
	}
	if pids, err = k.group.PIDs(); err != nil {
		err = errors.Join(err, k.group.Thaw())
		k.iced.Store(false)
		return err
	}
	pids = k.withoutInit(pids)
	r.Procs, r.Written = len(pids), procs.WrittenBy(pids, rootspec.Reserved, false)
	return nil
}

// withoutInit returns pids without init and, in tier container, without the conductor, which is its parent.
func (k *keeper) withoutInit(pids []int) []int {
	own := []int{k.init.Pid}
	if k.config.Conducted() {
		own = append(own, children(k.init.Pid)...)
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(own, pid) })
}
