package lineapi

import (
	"context"

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
