//go:build linux

package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// intentRepo is written before a reference is made in the user's repository for a sandbox,
// or the sandbox is removed that has some. So none is left by a daemon that is killed
// before the sandbox has its record, or after it has lost it; nor where the repository
// cannot be reached when a sandbox is removed: gc tries again.
const intentRepo = "repository"

// holding is what a sandbox has in a repository of the user's.
type holding struct {
	Sandbox timeline.SandboxID `json:"sandbox"`
	Top     string             `json:"top"`
	Common  string             `json:"common"`
	Commits []string           `json:"commits"` // that it began with
	Leaving bool               `json:"leaving,omitempty"`
	Since   time.Time          `json:"since"`
}

// maxAway is how long a repository is looked for that is not where it was.
const maxAway = 90 * 24 * time.Hour

func (e *Engine) holdingOf(rec *meta.Sandbox) holding {
	r := rec.Repo
	return holding{Since: e.Now().UTC(), Sandbox: rec.ID, Top: r.Top, Common: r.Common,
		Commits: slices.Compact([]string{r.Base, r.Start})}
}

// hold has the commits of a sandbox that is being made stay in its repository. What it
// gives ends with the sandbox's record, or is for unhold.
func (e *Engine) hold(ctx context.Context, r *repo.Repo, rec *meta.Sandbox) (intent int64, err error) {
	e.refs.Lock()
	defer e.refs.Unlock()
	h := e.holdingOf(rec)
	if intent, err = e.DB.BeginIntent(ctx, intentRepo, h); err != nil {
		return 0, err
	}
	e.mu.Lock()
	e.holds[intent] = true
	e.mu.Unlock()
	for _, c := range h.Commits {
		if err := e.holdCommit(ctx, r, repo.OID(c)); err != nil {
			e.heldFor(intent)
			return 0, errors.Join(err, e.leaveRepo(context.WithoutCancel(ctx), h),
				e.DB.EndIntent(context.WithoutCancel(ctx), intent))
		}
	}
	return intent, nil
}

func (e *Engine) holdCommit(ctx context.Context, r *repo.Repo, c repo.OID) error {
	ref, err := e.baseRef(ctx, string(c))
	if err != nil {
		return err
	}
	all, err := r.Refs(ctx, ref)
	if err == nil && len(all) == 0 {
		err = r.SetRef(ctx, ref, c, "", "coppice: a sandbox begins here")
	}
	return fault.Wrap(err, "hold commit %s", c)
}

// heldFor says that the making of a sandbox is over.
func (e *Engine) heldFor(intent int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.holds, intent)
}

// unhold takes back what hold did, for a sandbox that did not come about.
func (e *Engine) unhold(ctx context.Context, rec *meta.Sandbox, intent int64) error {
	defer e.heldFor(intent)
	e.refs.Lock()
	defer e.refs.Unlock()
	if err := e.leaveRepo(ctx, e.holdingOf(rec)); err != nil {
		return err // gc tries again
	}
	return e.DB.EndIntent(ctx, intent)
}

// leaveRepo drops the references that a sandbox without a record had, but for those that
// others have too. A repository that has long been gone has none. The caller holds refs.
func (e *Engine) leaveRepo(ctx context.Context, h holding) error {
	r, err := e.Repos.Open(ctx, h.Top)
	if fault.Is(err, fault.NotFound) && e.Now().Sub(h.Since) > maxAway || err == nil && r.Common != h.Common {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "open the repository %s", h.Top)
	}
	if err := r.DropRefs(ctx, gitwork.BoxRef(h.Sandbox)); err != nil {
		return err
	}
	others, err := e.holders(ctx, h)
	if err != nil {
		return err
	}
	for _, c := range h.Commits {
		if slices.ContainsFunc(others, func(o holding) bool { return slices.Contains(o.Commits, c) }) {
			continue
		}
		ref, err := e.baseRef(ctx, c)
		if err == nil {
			err = r.DropRefs(ctx, ref)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// holders are the other sandboxes of the same repository, those that are being made too.
func (e *Engine) holders(ctx context.Context, h holding) (out []holding, err error) {
	ints, err := e.DB.Intents(ctx) // before the records: one that is made meanwhile is in either
	if err != nil {
		return nil, err
	}
	recs, err := e.DB.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	for _, in := range ints {
		if in.Kind != intentRepo {
			continue
		}
		var o holding
		if err := in.Decode(&o); err != nil {
			return nil, err
		}
		if !o.Leaving {
			out = append(out, o)
		}
	}
	for i := range recs {
		if recs[i].Repo != nil {
			out = append(out, e.holdingOf(&recs[i]))
		}
	}
	return slices.DeleteFunc(out, func(o holding) bool { return o.Sandbox == h.Sandbox || o.Common != h.Common }), nil
}

// leaving is called before a sandbox is removed; what it gives is called when the record
// is gone, with nil, or is not, with why.
func (e *Engine) leaving(ctx context.Context, rec *meta.Sandbox) (func(error), error) {
	if rec.Repo == nil {
		return func(error) {}, nil
	}
	ctx = context.WithoutCancel(ctx)
	h := e.holdingOf(rec)
	h.Leaving = true
	intent, err := e.DB.BeginIntent(ctx, intentRepo, h)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.holds[intent] = true
	e.mu.Unlock()
	return func(failed error) {
		defer e.heldFor(intent)
		e.refs.Lock()
		defer e.refs.Unlock()
		if failed == nil {
			failed = e.leaveRepo(ctx, h)
			if failed != nil {
				e.Logger.Warn("references of a sandbox that was removed are left for gc", "repository", h.Top,
					"sandbox", h.Sandbox, "err", failed)
				return
			}
		}
		if err := e.DB.EndIntent(ctx, intent); err != nil {
			e.Logger.Warn("references are looked for again", "repository", h.Top, "err", err)
		}
	}, nil
}

// sweepRepos drops what removed and half-made sandboxes have left in repositories of the
// user's. What cannot be reached now stays for the next time.
func (e *Engine) sweepRepos(ctx context.Context) error {
	e.refs.Lock()
	defer e.refs.Unlock()
	ints, err := e.DB.Intents(ctx)
	if err != nil {
		return err
	}
	for _, in := range ints {
		if in.Kind != intentRepo {
			continue
		}
		e.mu.Lock()
		busy := e.holds[in.ID]
		e.mu.Unlock()
		if busy {
			continue
		}
		var h holding
		if err := in.Decode(&h); err != nil {
			return err
		}
		name, err := e.DB.Name(ctx, h.Sandbox)
		if err != nil {
			return err
		}
		if name == "" {
			if err := e.leaveRepo(ctx, h); err != nil {
				e.Logger.Warn("references are left in a repository", "repository", h.Top, "sandbox", h.Sandbox, "err", err)
				continue
			}
		}
		if err := e.DB.EndIntent(ctx, in.ID); err != nil {
			return err
		}
	}
	return nil
}
