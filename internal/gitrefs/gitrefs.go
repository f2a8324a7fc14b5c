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
	// Open finds the repository that contains a host directory; fault.NotFound if there is none.
	Open func(ctx context.Context, dir string) (*repo.Repo, error)
	Now  func() time.Time
	Rand io.Reader
	Log  *slog.Logger
}

// Refs holds commits in the repositories of users. All methods are safe for concurrent use.
type Refs struct {
	config Config

	refs   sync.Mutex // held while references are made or dropped; git runs meanwhile
	naming sync.Mutex // held while the name of the home is made up; after refs

	mu   sync.Mutex     // a leaf
	busy map[int64]bool // guarded by mu: intents that this process sees to
}

// New returns Refs.
func New(c Config) *Refs { return &Refs{config: c, busy: map[int64]bool{}} }

// intentRepo is the kind of the intent that is stored before a reference is made in the user's
// repository for a sandbox, or the sandbox is removed that has some. So none is left by a daemon that
// is killed before the sandbox has its record, or after it has lost it; nor where the repository
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

// settingHome names the setting by which a home's references are known in repositories.
const settingHome = "home_id"

// homeID returns it. The first call makes it up.
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

// Hold has the commits of a sandbox that is being made stay in its repository. The intent that it
// returns ends with the sandbox's record, after which the caller calls Made, or with Unhold.
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

// begin stores an intent that this process sees to. refs is held, so that no Sweep takes it for one that an
// earlier process has left.
func (r *Refs) begin(ctx context.Context, h holding) (intent int64, err error) {
	if intent, err = r.config.Store.BeginIntent(ctx, intentRepo, h); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[intent] = true
	return intent, nil
}

// HoldCommit keeps a commit in a repository until LetGo.
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

// letGo is LetGo where all are what sandboxes hold in the repository. refs is held.
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

// leave drops the references that a sandbox without a record had, but for those that
// others have too. A repository that has long been gone has none. refs is held.
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

// holders are the other sandboxes of the same repository, those that are being made too.
func (r *Refs) holders(ctx context.Context, h holding) (out []holding, err error) {
	ints, err := r.config.Store.Intents(ctx) // before the records: one that is made meanwhile is in either
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

// Leaving is called before a sandbox is removed. The caller calls removed with nil when its record is
// gone, or with why it is not.
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

// Sweep deletes the references of removed and half-made sandboxes in the user's repositories. It skips repositories
// that cannot be opened now, until the next Sweep.
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

// sees reports whether this process sees to an intent.
func (r *Refs) sees(intent int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy[intent]
}
