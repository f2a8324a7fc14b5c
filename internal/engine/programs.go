//go:build linux

package engine

import (
	"context"
	"errors"

	"github.com/coppice-dev/coppice/internal/audit"
	"github.com/coppice-dev/coppice/internal/command"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/policies"
	"github.com/coppice-dev/coppice/internal/policy"
)

// seesPrograms reports whether a box reports the programs that are started in it.
func seesPrograms(rec *meta.Sandbox) bool {
	return rec.Tier != tierWorkspace && policies.Gated(rec) || command.Supervises(rec)
}

// tracesPrograms is seesPrograms for a box that is being started. In tier gvisor, programs are traced only if they
// are recorded.
func tracesPrograms(rec *meta.Sandbox, kept policy.Evidence) bool {
	return seesPrograms(rec) && (rec.Tier != tierGVisor || kept.Programs.Value != policy.ProgramsNone)
}

// watchPrograms records the programs of a box while it lives, unless its policy excludes them. started
// is the record of its start, or nil for a box that an earlier daemon started.
func (e *Engine) watchPrograms(ctx context.Context, s *held, rec *meta.Sandbox, b Box, started *audit.Pending) {
	if kept, err := e.Policies.Evidence(ctx, rec); !seesPrograms(rec) || err == nil &&
		kept.Programs.Value == policy.ProgramsNone {
		return
	}
	p := e.programs.Of(s.ID, b, started != nil)
	s.programs = p
	e.bg.Go(func() error {
		p.Follow(e.bgCtx, started)
		return nil
	})
}

// awaitPrograms waits until the programs of the last box are recorded. The box has exited.
func (s *held) awaitPrograms(ctx context.Context) error {
	if s.programs == nil {
		return nil
	}
	s.ending.Written(errors.New("the program recorder writes them")) // otherwise each would wait for the other
	select {
	case <-s.programs.Done():
		s.programs = nil
		return nil
	case <-ctx.Done():
		return fault.New(fault.Cancelled, "the programs of sandbox %s are not fully recorded yet", s.ID).
			Because(context.Cause(ctx))
	}
}
