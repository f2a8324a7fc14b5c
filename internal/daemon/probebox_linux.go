package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/coppice-dev/coppice/internal/box"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/plan"
	"github.com/coppice-dev/coppice/internal/policy"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// probeRun is the name of the run directory of tryBox.
const probeRun = "run"

// tryBox starts and stops a sandbox with an empty root, below the home. c says its tier.
func (h hostFacts) tryBox(ctx context.Context, c plan.Config) (err error) {
	dir, err := os.MkdirTemp(h.home, probePattern)
	if err != nil {
		return fault.Wrap(err, "create a directory for the test")
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	run, root, journal := filepath.Join(dir, probeRun), filepath.Join(dir, "root"), filepath.Join(dir, "journal")
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
	c.ID, c.Name, c.RunDir, c.Journal, c.User, c.Caller = "probe", "probe", run, journal, plan.UserRoot, h.caller
	c.Spec, c.Phases = rootspec.Spec{Bind: root}, []plan.Phase{{Policy: string(text), Digest: policy.DigestOf(text)}}
	b, _, err := box.Start(ctx, h.programs, c)
	if err != nil {
		return err
	}
	defer func() { <-b.Gone() }() // after that, the root is unused
	return b.Stop(ctx, 0)
}
