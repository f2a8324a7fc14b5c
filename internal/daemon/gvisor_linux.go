package daemon

import (
	"context"
	"debug/elf"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/program"
)

// tryGVisor starts and stops a sandbox of tier gvisor with an empty root, below the home.
func (h hostFacts) tryGVisor(ctx context.Context) error {
	sentry, err := h.programs.File(program.Sentry)
	if err != nil {
		return err
	}
	if err := isStatic(program.Path(sentry)); err != nil {
		return err
	}
	return h.tryBox(ctx, plan.Config{Tier: plan.TierGvisor})
}

// isStatic refuses a dynamically linked binary: the root in which the gVisor kernel starts is empty.
func isStatic(binary string) error {
	f, err := elf.Open(binary)
	if err != nil {
		return fault.Wrap(err, "read the binary of Coppice")
	}
	defer func() { _ = f.Close() }()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fault.New(fault.Unsupported, "this binary is dynamically linked").
			WithHint("build it statically: CGO_ENABLED=0 go build ./cmd/coppice, or make build")
	}
	return nil
}
