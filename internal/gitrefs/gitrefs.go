//go:build linux

package gitrefs

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Store is the database of Refs.
type Store interface {
	// Sandboxes lists the records of sandboxes; Name returns the name of one, "" if it has no record.
	Sandboxes(ctx context.Context) ([]meta.Sandbox, error)
	Name(ctx context.Context, id timeline.SandboxID) (string, error)
	// BeginIntent stores an intent, durably; Intents lists those that have not ended.
	BeginIntent(ctx context.Context, kind string, body any) (int64, error)
	EndIntent(ctx context.Context, id int64) error
	Intents(ctx context.Context) ([]meta.Intent, error)
	// Setting returns a setting, "" if it is not set; SetSetting sets it.
	Setting(ctx context.Context, key string) (string, error)
	SetSetting(ctx context.Context, key, value string) error
}

// Config configures New. All fields are required.
type Config struct {
	Store Store
	// Open finds the repository that contains a host directory; NotFound if there is none.
	Open func(ctx context.Context, dir string) (*repo.Repo, error)
	Now  func() time.Time
	Rand io.Reader
	Log  *slog.Logger
}

// Refs holds commits in the repositories of users. Its methods are safe for concurrent use.
type Refs struct {
	config Config

	refs   sync.Mutex // held while references are created or deleted; git runs meanwhile
	naming sync.Mutex // held while the ID of the home is generated; after refs

	mu   sync.Mutex     // a leaf
	busy map[int64]bool // guarded by mu: intents that this process completes
}

// New returns Refs.
func New(c Config) *Refs { return &Refs{config: c, busy: map[int64]bool{}} }

// intentRepo is the kind of the intent that is stored before a reference is created in a repository for a
// sandbox, and before a sandbox with such references is removed. So no reference is left if the daemon is killed
// before the record of the sandbox is stored, or after it was deleted. It also covers a repository that cannot be
// opened when a sandbox is removed: gc tries again.
const intentRepo = "repository"

// holding describes what a sandbox holds in a repository of the user.
type holding struct {
	Sandbox timeline.SandboxID `json:"sandbox"`
	Top     string             `json:"top"`
	Common  string             `json:"common"`
	Commits []string           `json:"commits"` // that it started from
	Leaving bool               `json:"leaving,omitempty"`
	Since   time.Time          `json:"since"`
}

// maxAway is the time after which a missing repository is given up.
const maxAway = 90 * 24 * time.Hour

func (r *Refs) holdingOf(rec *meta.Sandbox) holding {
	w := rec.Repo
	return holding{Since: r.config.Now().UTC(), Sandbox: rec.ID, Top: w.Top, Common: w.Common,
		Commits: slices.Compact([]string{w.Base, w.Start})}
}

// Box returns the reference of an export of a sandbox; without what, the prefix of all of them.
func Box(id timeline.SandboxID, what ...string) repo.Ref {
	return repo.Ref(path.Join(append([]string{"refs/coppice/box", string(id)}, what...)...))
}

// Base returns the reference that holds a commit for sandboxes of this home; those of other homes are separate.
func (r *Refs) Base(ctx context.Context, commit string) (repo.Ref, error) {
	id, err := r.homeID(ctx)
	return repo.Ref("refs/coppice/base/" + commit + "/" + id), err
}

// settingHome is the setting with the ID of a home in names of references.
const settingHome = "home_id"

// homeID returns the ID of the home. The first call generates it.
func (r *Refs) homeID(ctx context.Context) (string, error) {
	r.naming.Lock()
	defer r.naming.Unlock()
	id, err := r.config.Store.Setting(ctx, settingHome)
	if err != nil || id != "" {
		return id, err
	}
	made, err := timeline.NewSandboxID(r.config.Rand)
	if err != nil {
		return "", err
	}
	return string(made), r.config.Store.SetSetting(ctx, settingHome, string(made))
}

// Hold holds the commits of a sandbox in creation in its repository. The returned intent ends with the record of
// the sandbox, after which the caller must call Made, or with Unhold.
func (r *Refs) Hold(ctx context.Context, in *repo.Repo, rec *meta.Sandbox) (intent int64, err error) {
	r.refs.Lock()
	defer r.refs.Unlock()
	h := r.holdingOf(rec)
	if intent, err = r.begin(ctx, h); err != nil {
		return 0, err
	}
	for _, c := range h.Commits {
		if err := r.holdCommit(ctx, in, repo.OID(c)); err != nil {
			r.Made(intent)
			return 0, errors.Join(err, r.leave(context.WithoutCancel(ctx), h),
				r.config.Store.EndIntent(context.WithoutCancel(ctx), intent))
		}
	}
	return intent, nil
}

// beginAlone is begin for callers that do not hold refs.
func (r *Refs) beginAlone(ctx context.Context, h holding) (intent int64, err error) {
	r.refs.Lock()
	defer r.refs.Unlock()
	return r.begin(ctx, h)
}

// begin stores an intent that this process completes. refs is held, so that Sweep does not take it for the
// leftover of an earlier process.
func (r *Refs) begin(ctx context.Context, h holding) (intent int64, err error) {
	if intent, err = r.config.Store.BeginIntent(ctx, intentRepo, h); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[intent] = true
	return intent, nil
}

// HoldCommit holds a commit in a repository until LetGo.
func (r *Refs) HoldCommit(ctx context.Context, in *repo.Repo, c repo.OID) error {
	r.refs.Lock()
	defer r.refs.Unlock()
	return r.holdCommit(ctx, in, c)
}

// holdCommit is HoldCommit. refs is held.
func (r *Refs) holdCommit(ctx context.Context, in *repo.Repo, c repo.OID) error {
	ref, err := r.Base(ctx, string(c))
	if err != nil {
		return err
	}
	all, err := in.Refs(ctx, ref)
	if err == nil && len(all) == 0 {
		err = in.SetRef(ctx, ref, c, "", "coppice: a sandbox starts here")
	}
	return fault.Wrap(err, "hold commit %s", c)
}

// LetGo deletes the reference of a commit in a repository, unless a sandbox needs it.
func (r *Refs) LetGo(ctx context.Context, in *repo.Repo, commit string) error {
	r.refs.Lock()
	defer r.refs.Unlock()
	all, err := r.holders(ctx, holding{Common: in.Common})
	if err != nil {
		return err
	}
	return r.letGo(ctx, in, commit, all)
}

// letGo is LetGo with all holdings of sandboxes in the repository. refs is held.
func (r *Refs) letGo(ctx context.Context, in *repo.Repo, commit string, all []holding) error {
	if slices.ContainsFunc(all, func(o holding) bool { return slices.Contains(o.Commits, commit) }) {
		return nil
	}
	ref, err := r.Base(ctx, commit)
	if err != nil {
		return err
	}
	return in.DropRefs(ctx, ref)
}

// Made ends the creation of a sandbox: its record is stored, which has ended the intent.
func (r *Refs) Made(intent int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, intent)
}

// Unhold reverts Hold for a sandbox whose creation failed.
func (r *Refs) Unhold(ctx context.Context, rec *meta.Sandbox, intent int64) error {
	defer r.Made(intent)
	r.refs.Lock()
	defer r.refs.Unlock()
	if err := r.leave(ctx, r.holdingOf(rec)); err != nil {
		return err // gc tries again
	}
	return r.config.Store.EndIntent(ctx, intent)
}

// leave deletes the references of a sandbox without a record, except those that other sandboxes share. A
// repository that is missing for longer than maxAway has none. refs is held.
func (r *Refs) leave(ctx context.Context, h holding) error {
	in, err := r.config.Open(ctx, h.Top)
	if fault.Is(err, fault.NotFound) && r.config.Now().Sub(h.Since) > maxAway || err == nil && in.Common != h.Common {
		return nil
	}
	if err != nil {
		return fault.Wrap(err, "open the repository %s", h.Top)
	}
	if err := in.DropRefs(ctx, Box(h.Sandbox)); err != nil {
		return err
	}
	others, err := r.holders(ctx, h)
	if err != nil {
		return err
	}
	for _, c := range h.Commits {
		if err := r.letGo(ctx, in, c, others); err != nil {
			return err
		}
	}
	return nil
}

// holders returns the holdings of other sandboxes in the same repository, including sandboxes in creation.
func (r *Refs) holders(ctx context.Context, h holding) (out []holding, err error) {
	ints, err := r.config.Store.Intents(ctx) // before the records: a new sandbox is in one of both
	if err != nil {
		return nil, err
	}
	recs, err := r.config.Store.Sandboxes(ctx)
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
			out = append(out, r.holdingOf(&recs[i]))
		}
	}
	return slices.DeleteFunc(out, func(o holding) bool { return o.Sandbox == h.Sandbox || o.Common != h.Common }), nil
}

// Leaving is called before a sandbox is removed. The caller must call removed with nil once its record is
// deleted, or with the reason why it is not.
func (r *Refs) Leaving(ctx context.Context, rec *meta.Sandbox) (removed func(error), err error) {
	if rec.Repo == nil {
		return func(error) {}, nil
	}
	ctx = context.WithoutCancel(ctx)
	h := r.holdingOf(rec)
	h.Leaving = true
	intent, err := r.beginAlone(ctx, h)
	if err != nil {
		return nil, err
	}
	return func(failed error) {
		defer r.Made(intent)
		r.refs.Lock()
		defer r.refs.Unlock()
		if failed == nil {
			failed = r.leave(ctx, h)
			if failed != nil {
				r.config.Log.Warn("could not remove the references of a removed sandbox; gc will remove them", "repository", h.Top,
					"sandbox", h.Sandbox, "err", failed)
				return
			}
		}
		if err := r.config.Store.EndIntent(ctx, intent); err != nil {
			r.config.Log.Warn("could not list references; will try again", "repository", h.Top, "err", err)
		}
	}, nil
}

// Sweep deletes the references of removed and incomplete sandboxes in the users' repositories. Repositories that
// cannot be opened now are left for the next Sweep.
func (r *Refs) Sweep(ctx context.Context) error {
	r.refs.Lock()
	defer r.refs.Unlock()
	ints, err := r.config.Store.Intents(ctx)
	if err != nil {
		return err
	}
	for _, in := range ints {
		if in.Kind != intentRepo || r.sees(in.ID) {
			continue
		}
		var h holding
		if err := in.Decode(&h); err != nil {
			return err
		}
		name, err := r.config.Store.Name(ctx, h.Sandbox)
		if err != nil {
			return err
		}
		if name == "" {
			if err := r.leave(ctx, h); err != nil {
				r.config.Log.Warn("could not remove references from a "+
					"repository", "repository", h.Top, "sandbox", h.Sandbox, "err", err)
				continue
			}
		}
		if err := r.config.Store.EndIntent(ctx, in.ID); err != nil {
			return err
		}
	}
	return nil
}

// sees reports whether this process completes an intent.
func (r *Refs) sees(intent int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy[intent]
}
