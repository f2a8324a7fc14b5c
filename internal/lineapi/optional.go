package lineapi

import (
	"context"
	"syscall"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Marker is an Engine that can set the message of snapshots.
type Marker interface {
	Mark(ctx context.Context, name string, req wire.MarkRequest) (wire.CommitResult, error)
}

// Tournamenter is an Engine that can run several commands and keep the best result.
type Tournamenter interface {
	Tournament(ctx context.Context, name string, req wire.TournamentRequest,
		progress func(wire.Progress)) (wire.TournamentResult, error)
}

// Trier is an Engine that can run a command in a temporary fork.
type Trier interface {
	Trial(ctx context.Context, name string, req wire.TrialRequest) (wire.Trial, error)
	// TrialInside is Trial at the request of a process of the sandbox.
	TrialInside(ctx context.Context, name string, req wire.TrialRequest, by Peer) (wire.Trial, error)
}

// Peer is a client.
type Peer struct {
	UID  *uint32 // its user, as this process sees it; nil: unknown
	User bool    // it runs as the sandbox's user
}

// Lacking returns the error for an operation that the engine does not support.
func Lacking(op string) error {
	return fault.New(fault.Unsupported, "this daemon does not support %s", op).
		WithHint("it may be older than its client; see: coppice system version")
}

func (c *conn) mark(q wire.MarkRequest) (any, error) {
	m, ok := c.opt.Engine.(Marker)
	if !ok {
		return nil, Lacking("mark")
	}
	if err := c.text("label", q.Label); err != nil {
		return nil, err
	}
	return m.Mark(c.ctx, c.opt.Sandbox, q)
}

// tournament runs a tournament. It may take long and uses all processors, so it ends when its client disconnects.
func (c *conn) tournament(q wire.TournamentRequest) (any, error) {
	t, ok := c.opt.Engine.(Tournamenter)
	switch {
	case !ok:
		return nil, Lacking("tournament")
	case len(q.Candidates) == 0:
		return nil, missingField("tournament", "candidates", "a list of objects with \"name\" and \"cmd\"")
	case len(q.Policy) > 0: // a client of this socket may use one sandbox, under its policy
		return nil, fault.New(fault.Unsupported, "cannot set a policy for a tournament here").
			WithHint("omit policy, or use: coppice tournament")
	}
	ctx, stop := c.whileThere()
	defer stop()
	res, err := t.Tournament(ctx, c.opt.Sandbox, q, func(wire.Progress) {})
	res.Branches = notNil(res.Branches)
	return res, err
}

// trial runs a command in a fork. It ends with its client.
func (c *conn) trial(q wire.TrialRequest) (any, error) {
	t, ok := c.opt.Engine.(Trier)
	switch {
	case !ok:
		return nil, Lacking("trial")
	case q.Cmd == "":
		return nil, missingField("trial", "cmd", "a shell command")
	}
	if err := c.text("command", q.Cmd); err != nil {
		return nil, err
	}
	ctx, stop := c.whileThere()
	defer stop()
	if c.opt.Guard == nil {
		return t.Trial(ctx, c.opt.Sandbox, q)
	}
	res, err := t.TrialInside(ctx, c.opt.Sandbox, q, c.peer())
	switch fault.KindOf(err) {
	case fault.NoSpace, fault.ReadOnly, fault.Corrupt, fault.Version: // their texts name paths of the host
		err = &fault.Error{Kind: fault.Internal, Message: "try a command", Err: err}
	}
	return res, err
}

// peer identifies the client.
func (c *conn) peer() Peer {
	switch c.peers {
	case PeersUser:
		return Peer{User: true}
	case PeersHere:
		if sc, ok := c.net.(syscall.Conn); ok {
			return Peer{UID: peerUID(sc)}
		}
	}
	return Peer{}
}
