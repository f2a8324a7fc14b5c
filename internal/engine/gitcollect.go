//go:build linux

package engine

import (
	"context"
	"slices"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// collected is what was taken out of a sandbox that works on a repository. All commits
// are the repository's by now, and held by references.
type collected struct {
	rec      meta.Sandbox
	repo     *repo.Repo
	start    repo.OID // what the sandbox began with
	tip      repo.OID // its HEAD
	work     repo.OID // a commit on tip of what is not committed; tip, where all is
	commits  int      // that tip has and the base does not
	snapshot timeline.SnapshotID
	skipped  []repo.Skipped
}

// maxCollect is how often a sandbox is looked at which commits meanwhile.
const maxCollect = 3

// collect takes what a sandbox did out of it: its commits, as a bundle that its own git
// writes inside and that is checked here, and the files of a snapshot of the present, as a
// commit on top. A sandbox that is stopped is started. The same state again costs a look.
//
// What the sandbox says of itself is its HEAD alone, and that is believed as far as the
// commit came out of it or is in the history of what it was given. Nothing of its git
// directory is read here.
func (e *Engine) collect(ctx context.Context, name string) (*collected, error) {
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := e.repoOf(ctx, &rec)
	if err != nil {
		return nil, err
	}
	s := e.entry(rec.ID)
	done, err := s.collects(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if c, err := e.sameAgain(ctx, s, r); c != nil || err != nil {
		return c, err
	}
	for range maxCollect {
		c := &collected{rec: rec, repo: r, start: repo.OID(rec.Repo.Start)}
		stood, err := e.takeOut(ctx, c)
		if err != nil {
			return nil, fault.Wrap(err, "take out what sandbox %s did", rec.Name)
		}
		if !stood {
			continue
		}
		if err := e.stillThere(ctx, c); err != nil {
			return nil, err
		}
		s.collected = c
		return c.clone(), nil
	}
	return nil, fault.New(fault.Conflict, "sandbox %s is committing right now", rec.Name).
		WithHint("wait until it has, then try again")
}

// collects takes the right to take out what was done. The caller calls done.
func (s *entry) collects(ctx context.Context) (done func(), err error) {
	select {
	case <-s.collecting:
		return func() { s.collecting <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// collectedAs is collect for who has looked at a commit that it gave, and wants that, and
// not the present; with "" it is collect. Conflict: another one was taken out since.
func (e *Engine) collectedAs(ctx context.Context, name, work string) (*collected, error) {
	if work == "" {
		return e.collect(ctx, name)
	}
	rec, err := e.DB.Sandbox(ctx, name)
	if err != nil {
		return nil, err
	}
	s := e.entry(rec.ID)
	done, err := s.collects(ctx)
	if err != nil {
		return nil, err
	}
	last := s.collected
	done()
	var c *collected
	if last == nil || string(last.work) != work { // perhaps by a daemon before this one
		c, err = e.collect(ctx, name)
	} else {
		c = last.clone()
		c.repo, err = e.repoOf(ctx, &c.rec)
	}
	if err == nil && string(c.work) != work {
		err = fault.New(fault.Conflict, "sandbox %s has changed since it was looked at", rec.Name).
			WithHint("look again: coppice diff %s", rec.Name)
	}
	return c, err
}

// clone gives a copy that is its holder's own.
func (c *collected) clone() *collected {
	d := *c
	d.skipped = slices.Clone(c.skipped)
	return &d
}

// sameAgain gives what was collected before, if the present is still the snapshot that it
// is of and the references hold it; else nil.
func (e *Engine) sameAgain(ctx context.Context, s *entry, r *repo.Repo) (*collected, error) {
	last := s.collected
	if last == nil {
		return nil, nil
	}
	own, rec, err := e.acquire(ctx, string(s.ID), "looking at what it changed")
	if err != nil {
		return nil, err
	}
	t, err := e.capture(ctx, own, &rec, note{cause: timeline.CauseAuto})
	own.unlock(e)
	if err != nil || t.id != last.snapshot {
		return nil, err
	}
	refs, err := r.Refs(ctx, gitrefs.Box(s.ID))
	if err != nil || refs[gitrefs.Box(s.ID, refTip)] != last.tip || refs[gitrefs.Box(s.ID, refWork)] != last.work {
		return nil, err
	}
	c := last.clone()
	c.rec, c.repo = rec, r
	return c, nil
}

// takeOut fills c in, and reports whether the sandbox's HEAD stood still meanwhile.
func (e *Engine) takeOut(ctx context.Context, c *collected) (stood bool, err error) {
	refs, err := c.repo.Refs(ctx, gitrefs.Box(c.rec.ID))
	if err != nil {
		return false, err
	}
	oldTip, oldWork := refs[gitrefs.Box(c.rec.ID, refTip)], refs[gitrefs.Box(c.rec.ID, refWork)]
	if c.tip, err = e.takeTip(ctx, c, oldTip); err != nil {
		return false, err
	}
	if c.snapshot, err = e.DB.Head(ctx, string(c.rec.ID)); err != nil {
		return false, err
	}
	now, err := e.askHead(ctx, &c.rec)
	if err != nil || now != c.tip {
		return false, err
	}
	if c.commits, err = c.repo.Count(ctx, repo.OID(c.rec.Repo.Base), c.tip); err != nil {
		return false, err
	}
	return true, e.takeWork(ctx, c, oldWork)
}

// stillThere: nobody has removed the sandbox meanwhile. Whoever does so later drops the
// references, which are set by now.
func (e *Engine) stillThere(ctx context.Context, c *collected) error {
	_, err := e.DB.Sandbox(ctx, string(c.rec.ID))
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	if derr := c.repo.DropRefs(context.WithoutCancel(ctx), gitrefs.Box(c.rec.ID)); derr != nil {
		e.Logger.Warn("references of a sandbox that was removed are left in its repository", "repository", c.repo.Top,
			"below", gitrefs.Box(c.rec.ID), "err", derr)
	}
	return err
}
