//go:build linux

package gitwork

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Collected is an export of the changes of a sandbox. All commits are in the repository, and referenced.
type Collected struct {
	Rec      meta.Sandbox
	Repo     *repo.Repo
	Start    repo.OID            // the commit that the sandbox started from
	Tip      repo.OID            // its HEAD
	Work     repo.OID            // a commit on Tip with the uncommitted changes; Tip if there are none
	Commits  int                 // number of commits that Tip has and the base does not
	Snapshot timeline.SnapshotID // the snapshot whose files Work has
	Skipped  []repo.Skipped      // files of the snapshot that are not in Work
}

// maxCollect is the maximum number of attempts to export a sandbox that commits at the same time.
const maxCollect = 3

// Collect exports the changes of a sandbox: its commits, as a bundle that its own git writes inside and that is
// checked here, and the files of a snapshot of the live state, as a commit on top. It starts a stopped sandbox. If
// nothing has changed since the last export, it returns that.
//
// The only claim of the sandbox that is used is its HEAD, and only if the commit was exported or is in the history
// that the sandbox started with. Its git directory is never read here.
func (g *Git) Collect(ctx context.Context, name string) (*Collected, error) {
	rec, err := g.config.Work.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := g.config.Work.Repository(ctx, &rec)
	if err != nil {
		return nil, err
	}
	s := g.of(rec.ID)
	done, err := s.takes(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if c, err := g.sameAgain(ctx, s, rec.ID, r); c != nil || err != nil {
		return c, err
	}
	for range maxCollect {
		c := &Collected{Rec: rec, Repo: r, Start: repo.OID(rec.Repo.Start)}
		stood, err := g.takeOut(ctx, c)
		if err != nil {
			return nil, fault.Wrap(err, "collect the changes of sandbox %s", rec.Name)
		}
		if !stood {
			continue
		}
		if err := g.stillThere(ctx, c); err != nil {
			return nil, err
		}
		s.last = c
		return c.clone(), nil
	}
	return nil, fault.New(fault.Conflict, "sandbox %s is committing", rec.Name).
		WithHint("wait until the commit is done, then try again")
}

// collectAs is Collect for a caller that has reviewed the commit work of an earlier export, and requires that
// export; with work "" it is Collect. Conflict: another export has replaced it.
func (g *Git) collectAs(ctx context.Context, name, work string) (*Collected, error) {
	if work == "" {
		return g.Collect(ctx, name)
	}
	rec, err := g.config.Work.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	s := g.of(rec.ID)
	done, err := s.takes(ctx)
	if err != nil {
		return nil, err
	}
	last := s.last
	done()
	var c *Collected
	if last == nil || string(last.Work) != work { // perhaps exported by an earlier daemon
		c, err = g.Collect(ctx, name)
	} else {
		c = last.clone()
		c.Repo, err = g.config.Work.Repository(ctx, &c.Rec)
	}
	if err == nil && string(c.Work) != work {
		err = fault.New(fault.Conflict, "sandbox %s has changed since the diff", rec.Name).
			WithHint("review it again: coppice diff %s", rec.Name)
	}
	return c, err
}

// clone returns a deep copy.
func (c *Collected) clone() *Collected {
	d := *c
	d.Skipped = slices.Clone(c.Skipped)
	return &d
}

// sameAgain returns the last export, if its snapshot is still current and the references hold it; else nil.
func (g *Git) sameAgain(
	ctx context.Context, s *taking, id timeline.SandboxID, r *repo.Repo,
) (*Collected, error) {
	last := s.last
	if last == nil {
		return nil, nil
	}
	rec, present, err := g.config.Layers.Present(ctx, string(id))
	if err != nil || present != last.Snapshot {
		return nil, err
	}
	refs, err := r.Refs(ctx, gitrefs.Box(id))
	if err != nil || refs[gitrefs.Box(id, TipRef)] != last.Tip || refs[gitrefs.Box(id, WorkRef)] != last.Work {
		return nil, err
	}
	c := last.clone()
	c.Rec, c.Repo = rec, r
	return c, nil
}

// takeOut fills in c, and reports whether the sandbox's HEAD stayed the same meanwhile.
func (g *Git) takeOut(ctx context.Context, c *Collected) (stood bool, err error) {
	refs, err := c.Repo.Refs(ctx, gitrefs.Box(c.Rec.ID))
	if err != nil {
		return false, err
	}
	oldTip, oldWork := refs[gitrefs.Box(c.Rec.ID, TipRef)], refs[gitrefs.Box(c.Rec.ID, WorkRef)]
	if c.Tip, err = g.takeTip(ctx, c, oldTip); err != nil {
		return false, err
	}
	if c.Snapshot, err = g.config.Work.Head(ctx, string(c.Rec.ID)); err != nil {
		return false, err
	}
	now, err := g.askHead(ctx, &c.Rec)
	if err != nil || now != c.Tip {
		return false, err
	}
	if c.Commits, err = c.Repo.Count(ctx, repo.OID(c.Rec.Repo.Base), c.Tip); err != nil {
		return false, err
	}
	return true, g.takeWork(ctx, c, oldWork)
}

// stillThere returns an error if the sandbox was removed meanwhile. A later removal deletes the references, which
// are set by now.
func (g *Git) stillThere(ctx context.Context, c *Collected) error {
	_, err := g.config.Work.Sandbox(ctx, string(c.Rec.ID))
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	if derr := c.Repo.DropRefs(context.WithoutCancel(ctx), gitrefs.Box(c.Rec.ID)); derr != nil {
		g.config.Log.Warn("could not remove the references of a removed sandbox from its "+
			"repository", "repository", c.Repo.Top,
			"below", gitrefs.Box(c.Rec.ID), "err", derr)
	}
	return err
}
