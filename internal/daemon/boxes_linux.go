package daemon

import (
	"context"
	"io"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/box/plan"
	"github.com/coppice-dev/coppice/internal/engine"
)

// boxes gives the engine the boxes of package box.
type boxes struct{ caller plan.Caller }

// liveBox is a box.Box whose Exec and Freeze give the engine's interfaces.
type liveBox struct{ *box.Box }

func (b boxes) Start(ctx context.Context, c engine.BoxConfig) (engine.Box, engine.Enforced, error) {
	started, e, err := box.Start(ctx, plan.Config{
		ID: string(c.ID), Name: c.Name, RunDir: c.RunDir, Spec: c.Spec, Tier: c.Tier, User: c.User, HostBase: c.Host,
		Net: c.Net, Env: c.Env, Limits: plan.Limits(c.Limits), Caller: b.caller,
	})
	if err != nil {
		return nil, engine.Enforced{}, err
	}
	items := make([]wire.Enforcement, len(e.Items))
	for i, it := range e.Items {
		items[i] = wire.Enforcement(it)
	}
	return liveBox{started}, engine.Enforced{Tier: e.Tier, Items: items}, nil
}

func (boxes) Attach(ctx context.Context, runDir string) (engine.Box, error) {
	b, err := box.Attach(ctx, runDir)
	if err != nil {
		return nil, err
	}
	return liveBox{b}, nil
}

func (b liveBox) Exec(ctx context.Context, req wire.ExecRequest) (io.ReadWriteCloser, error) {
	s, err := b.Box.Exec(ctx, req)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (b liveBox) Freeze(ctx context.Context) (engine.Frozen, error) {
	f, err := b.Box.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	return f, nil
}
