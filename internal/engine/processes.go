//go:build linux

package engine

import (
	"context"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/sandbox"
)

// Processes lists the processes of a sandbox. One that is stopped has none, and stays
// so.
func (e *Engine) Processes(ctx context.Context, name string) (wire.ProcessesResult, error) {
	none := wire.ProcessesResult{Processes: []wire.Process{}}
	b, rec, err := e.liveNow(ctx, name, "listing its processes")
	if err != nil || b == nil {
		return none, err
	}
	res, err := b.Processes(ctx)
	if fault.Is(err, fault.Unavailable) {
		return none, nil // it has just ended
	}
	return res, sandbox.Named(err, rec.Name)
}

// SignalProcess sends a signal to one process of a sandbox.
func (e *Engine) SignalProcess(ctx context.Context, name string, pid int, sig wire.ProcessSignal) error {
	if sig.Name == "" {
		sig.Name = "TERM"
	}
	b, rec, err := e.liveNow(ctx, name, "signalling a process")
	if err != nil {
		return err
	}
	if b != nil {
		if err = b.SignalProcess(ctx, pid, sig); !fault.Is(err, fault.Unavailable) {
			return sandbox.Named(err, rec.Name)
		}
	}
	return fault.New(fault.NotFound, "sandbox %s has no process %d: it is stopped", rec.Name, pid)
}

// liveNow finds a sandbox and its box, nil when it has none.
func (e *Engine) liveNow(ctx context.Context, name, what string) (Box, meta.Sandbox, error) {
	s, rec, err := e.acquire(ctx, name, what)
	if err != nil {
		return nil, rec, err
	}
	defer s.unlock(e)
	return e.liveBox(s), rec, nil
}
