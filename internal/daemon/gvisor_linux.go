package daemon

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/program"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// tryGVisor starts and stops a sandbox of tier gvisor with an empty root, below the home.
func (h hostFacts) tryGVisor(ctx context.Context) (err error) {
	sentry, err := h.programs.File(program.Sentry)
	if err != nil {
		return err
	}
	if err := isStatic(program.Path(sentry)); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(h.home, ".coppice-probe-")
	if err != nil {
		return fault.Wrap(err, "create a directory for the test")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	run, root, journal := filepath.Join(dir, "run"), filepath.Join(dir, "root"), filepath.Join(dir, "journal")
	for _, d := range []string{run, journal, root} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return fault.Wrap(err, "create a directory for the test")
		}
	}
	for _, d := range []string{"dev", "proc", "run", "sys", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			return fault.Wrap(err, "create a root for the test")
		}
	}
	p, err := policy.Merge()
	if err != nil {
		return fault.Wrap(err, "create a policy for the test")
	}
	text, err := p.Canonical()
	if err != nil {
		return fault.Wrap(err, "create a policy for the test")
	}
	b, _, err := box.Start(ctx, h.programs, plan.Config{
		ID: "probe", Name: "probe", RunDir: run, Journal: journal, Tier: plan.TierGvisor, User: plan.UserRoot,
		Caller: h.caller,
		Spec:   rootspec.Spec{Bind: root}, Phases: []plan.Phase{{Policy: string(text), Digest: policy.DigestOf(text)}},
	})
	if err != nil {
		return err
	}
	defer func() { <-b.Gone() }() // after that, the root is unused
	return b.Stop(ctx, 0)
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
