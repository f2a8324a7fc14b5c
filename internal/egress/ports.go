//go:build linux

package egress

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/events"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
	"github.com/coppice-dev/coppice/internal/timeline"
)

const (
	// portPatience is how long after its start a supervised command may take until it listens on a port.
	portPatience = 10 * time.Second
	// portRetry is the pause between attempts to connect within portPatience.
	portRetry = 100 * time.Millisecond
	// portsEvery is the minimum pause between two polls of the ports, and portsFirst the pause before the first.
	portsEvery = time.Second
	portsFirst = 300 * time.Millisecond
	// MaxPortEvents is the maximum number of port events of one poll, so that a sandbox cannot displace the events of
	// others. One more event counts the rest.
	MaxPortEvents = 16
)

// Ports lists the TCP ports that processes of a sandbox listen on. It does not start the sandbox; a stopped one has
// none.
func (c *Control) Ports(ctx context.Context, name string) (wire.PortsResult, error) {
	none := wire.PortsResult{Ports: []wire.Port{}}
	b, rec, err := c.config.Sandboxes.Live(ctx, name, "listing its ports")
	if err != nil || b == nil {
		return none, err
	}
	res, err := b.Ports(ctx)
	if fault.Is(err, fault.Unavailable) {
		return none, nil // the keeper has just exited
	}
	return res, sandbox.Named(err, rec.Name)
}

// DialPort connects to a port that a process of the sandbox listens on. It starts a stopped sandbox if its supervised
// command restarts, and waits a while for that command to listen. NotFound means that no process listens there; its
// hint says how to start one.
func (c *Control) DialPort(ctx context.Context, name string, port int) (net.Conn, error) {
	if port < 1 || port > 0xffff {
		return nil, fault.New(fault.Invalid, "invalid port %d", port).WithHint("ports are 1 to 65535")
	}
	conn, err := c.dialPort(ctx, name, port)
	if fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
		// The idle keeper exited between the lookup and the call.
		conn, err = c.dialPort(ctx, name, port)
	}
	return conn, err
}

// dialPort connects once; the connection counts as use of the sandbox.
func (c *Control) dialPort(ctx context.Context, name string, port int) (net.Conn, error) {
	b, rec, err := c.listening(ctx, name, port)
	if err != nil {
		return nil, err
	}
	for {
		conn, err := b.DialPort(ctx, port)
		if err == nil {
			return usedConn{conn, c.config.Sandboxes.Use(rec.ID)}, nil
		}
		if !fault.Is(err, fault.NotFound) {
			return nil, sandbox.Named(err, rec.Name)
		}
		if !startsUp(&rec, c.config.Now()) {
			return nil, fault.New(fault.NotFound, "no process listens on port %d of sandbox %s", port, rec.Name).
				WithHint("list its ports: coppice net forward %s; start a server: coppice run --in %s --detach -- CMD",
					rec.Name, rec.Name)
		}
		select {
		case <-ctx.Done():
			return nil, fault.Wrap(context.Cause(ctx), "wait for port %d of sandbox %s", port, rec.Name)
		case <-b.Gone():
			return nil, fault.New(fault.Unavailable, "sandbox %s stopped before a process listened on its port "+
				"%d", rec.Name, port)
		case <-time.After(portRetry):
		}
	}
}

// usedConn is a connection into a sandbox that is in use until it is closed.
type usedConn struct {
	net.Conn
	done func()
}

func (c usedConn) Close() error {
	c.done()
	return c.Conn.Close()
}

// CloseWrite closes the sending half.
func (c usedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// listening returns the box of a sandbox in which a process may listen on a port. It starts the sandbox if it can.
func (c *Control) listening(ctx context.Context, name string, port int) (Box, meta.Sandbox, error) {
	s, rec, err := c.config.Sandboxes.Acquire(ctx, name, "connecting to a port")
	if err != nil {
		return nil, rec, err
	}
	defer s.Unlock()
	if b := s.Box(); b != nil {
		return b, rec, nil
	}
	if !revives(&rec) {
		how := fmt.Sprintf("coppice run --in %s --detach -- CMD", rec.Name)
		if rec.Run != nil {
			command := message.OfCommand(wire.ExecRequest{Cmd: rec.Run.Cmd})
			how = fmt.Sprintf("coppice run --in %s --detach -- %s", rec.Name, command)
		}
		return nil, rec, fault.New(fault.NotFound, "no process listens on port %d: sandbox %s is stopped", port, rec.Name).
			WithHint("start a server: %s", how)
	}
	b, why, err := s.StartAgain(ctx, &rec)
	if err != nil {
		return nil, rec, err
	}
	if why != nil {
		return nil, rec, fault.New(fault.NotFound, "no process listens on port "+
			"%d", port).Because(why).WithHint("%s", why.Hint)
	}
	return b, rec, nil
}

// revives reports whether a connection to a port starts the supervised command of a stopped sandbox again.
func revives(rec *meta.Sandbox) bool {
	return rec.Run != nil && rec.Run.Restart != wire.RestartNo && !rec.Run.Remove
}

// startsUp reports whether a supervised command has started so recently that it may not listen yet.
func startsUp(rec *meta.Sandbox, now time.Time) bool {
	return rec.Run != nil && rec.Run.Ended == nil && now.Sub(rec.Run.Started) < portPatience
}

// WatchPorts emits events about ports that open and close while a box lives, and returns at once. It does not poll
// while no process runs. For a box that an earlier daemon started, the first events are about the ports that are open.
func (c *Control) WatchPorts(id timeline.SandboxID, b Box) {
	c.config.Go(func(ctx context.Context) { c.followPorts(ctx, id, b) })
}

// followPorts is WatchPorts, until ctx or the box ends.
func (c *Control) followPorts(ctx context.Context, id timeline.SandboxID, b Box) {
	open := map[int]bool{}
	var clock uint64
	for wait := portsFirst; ; wait = portsEvery {
		select {
		case <-ctx.Done():
			return
		case <-b.Gone():
			c.emitPorts(ctx, id, open, nil)
			return
		case <-time.After(wait):
		}
		now, err := b.Ran(ctx, clock)
		var res wire.PortsResult
		if err == nil {
			clock = now
			res, err = b.Ports(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return // Coppice is stopping: nothing to report
		case fault.Is(err, fault.Unavailable):
			c.emitPorts(ctx, id, open, nil)
			return
		case fault.Is(err, fault.Version), fault.Is(err, fault.Unsupported):
			return // a caller of Ports gets the error
		case err != nil:
			c.config.Log.Warn("could not read the ports of a sandbox", "sandbox", id, "err", err)
			continue
		}
		open = c.emitPorts(ctx, id, open, res.Ports)
	}
}

// emitPorts emits events about the difference between the ports that were open before and those of list, and returns
// the latter.
func (c *Control) emitPorts(
	ctx context.Context, id timeline.SandboxID, before map[int]bool, list []wire.Port,
) map[int]bool {
	now := make(map[int]bool, len(list))
	for _, p := range list {
		now[p.Port] = true
	}
	changes := portChanges(before, now)
	if len(changes) == 0 {
		return now
	}
	rec, err := c.config.Records.Sandbox(ctx, string(id))
	if err != nil {
		return now // it was removed
	}
	for i, port := range changes {
		ev := events.About(&rec, wire.EventPort)
		if i == MaxPortEvents {
			ev.Detail = fmt.Sprintf("%d more were opened or closed", len(changes)-i)
			c.config.Feed.Emit(ev)
			break
		}
		ev.Port, ev.Detail = port, wire.PortClosed
		if at := slices.IndexFunc(list, func(p wire.Port) bool { return p.Port == port }); at >= 0 {
			ev.Detail, ev.Message = wire.PortOpened, list[at].Program
		}
		c.config.Feed.Emit(ev)
	}
	return now
}

// portChanges returns the ports that are in exactly one of the two sets, in order.
func portChanges(before, now map[int]bool) (changed []int) {
	for p := range before {
		if !now[p] {
			changed = append(changed, p)
		}
	}
	for p := range now {
		if !before[p] {
			changed = append(changed, p)
		}
	}
	slices.Sort(changed)
	return changed
}
