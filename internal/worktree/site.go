//go:build linux

package worktree

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Site is a repository of the host for a sandbox, with the initial working directory of the sandbox.
type Site struct {
	*repo.Repo
	Base    repo.OID // the commit that the sandbox starts from
	dir     string   // the requested directory if it is in the work tree, else the top
	branch  string   // the short name of the initial branch; "": the sandbox's default branch
	dirty   bool     // the sandbox starts with the uncommitted changes
	objects []string // the host directories with the objects
}

// Find finds the repository that a request names; nil if it names none. If the repository is optional, an error
// becomes a warning, and Find removes the repository from the request.
func (t *Trees) Find(ctx context.Context, req *wire.CreateRequest) (w *Site, warning string, err error) {
	if req.Repo == nil {
		return nil, "", nil
	}
	w, err = t.find(ctx, req)
	if err == nil || !req.Repo.Maybe || ctx.Err() != nil {
		return w, "", err
	}
	req.Repo = nil
	return nil, Without(err), nil
}

// Without returns the warning that a sandbox has no repository because of err.
func Without(err error) string {
	text := "the sandbox has no repository: " + err.Error()
	if hint := fault.HintOf(err); hint != "" {
		text += " (" + hint + ")"
	}
	return text + "; use --no-repo to omit this message"
}

// find opens the repository that a request names, and checks that a sandbox can work on it.
func (t *Trees) find(ctx context.Context, req *wire.CreateRequest) (*Site, error) {
	switch {
	case req.Repo.Branch != "":
		if _, err := repo.ParseBranch(req.Repo.Branch); err != nil {
			return nil, err
		}
	case req.Name != "":
		if _, err := gitwork.BranchOf(req.Name); err != nil {
			return nil, err
		}
	}
	if !filepath.IsAbs(req.Repo.Dir) {
		return nil, fault.New(fault.Invalid, "invalid repository directory %q: must be an absolute path", req.Repo.Dir)
	}
	r, err := t.c.Open(ctx, req.Repo.Dir)
	if err != nil {
		return nil, err
	}
	w := &Site{Repo: r, dir: req.Repo.Dir, Base: r.Head.Commit, branch: req.Repo.Branch, dirty: req.Repo.Dirty}
	if at := req.Repo.At; at != "" {
		if w.Base, err = r.Commit(ctx, at); err != nil {
			return nil, err
		}
	}
	if w.dirty && w.Base != r.Head.Commit {
		return nil, fault.New(fault.Invalid, "cannot use --dirty with --at %s: uncommitted changes belong to "+
			"HEAD", req.Repo.At).
			WithHint("omit --at or --dirty")
	}
	if err := canLie(r.Top, t.c.Home); err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(w.dir); err == nil { // as Top is
		w.dir = real
	}
	if !rootspec.Within(w.dir, r.Top) {
		w.dir = r.Top
	}
	w.objects, err = objectsOf(ctx, r)
	return w, err
}

// objectsOf lists the directories with a repository's objects, with symbolic links resolved.
func objectsOf(ctx context.Context, r *repo.Repo) ([]string, error) {
	dirs, err := r.ObjectDirs(ctx)
	if err != nil {
		return nil, err
	}
	if len(dirs) > rootspec.MaxShared {
		return nil, fault.New(fault.Unsupported, "the objects of %s are in %d directories; the limit is %d", r.Top, len(dirs),
			rootspec.MaxShared).
			WithHint("copy the borrowed objects: git repack -a -d in the repositories that have alternates")
	}
	for i, d := range dirs {
		if dirs[i], err = filepath.EvalSymlinks(d); err != nil {
			return nil, fault.Wrap(err, "find the objects of %s", r.Top)
		}
	}
	return dirs, nil
}

// canLie refuses a work tree that no sandbox can have.
func canLie(top, home string) error {
	switch {
	case top == "/" || !utf8.ValidString(top):
		return fault.New(fault.Unsupported, "cannot use repository %q in a sandbox", top)
	case rootspec.Within(home, top), rootspec.Within(top, home):
		return fault.New(fault.Unsupported, "cannot use repository %s: it contains Coppice's own files, %s", top, home).
			WithHint("set COPPICE_HOME to a directory outside of it")
	}
	return nil
}

// Shown refuses a repository whose path is not the host's in a sandbox of the tier. In tier workspace the work tree is
// at another path anyway.
func (w *Site) Shown(tier string) error { return shown(w.Top, tier) }

// shown is Shown for a work tree at top.
func shown(top, tier string) error {
	if tier == workspace {
		return nil
	}
	for _, r := range rootspec.Reserved {
		if rootspec.Within(top, r) {
			return fault.New(fault.Unsupported, "cannot use repository %s: every sandbox has its own %s", top, r).
				WithHint("move or clone it: git clone %s ~/%s; or use --tier workspace, which confines nothing",
					top, path.Base(top))
		}
	}
	return nil
}

// Visible refuses a repository inside a path that a policy hides, since its objects would reveal the content.
// Paths in the work tree itself may be hidden.
func (w *Site) Visible(hidden []string) error { return visible(w.Top, w.objects, hidden) }

// visible is Visible for a work tree at top with its objects in the given directories.
func visible(top string, objects, hidden []string) error {
	for _, h := range hidden {
		h = strings.TrimSuffix(h, "/*")
		for _, p := range append([]string{top}, objects...) {
			if rootspec.Within(p, h) {
				return fault.New(fault.Denied, "the policy hides %s, which contains repository %s", h, top).
					WithHint("see why: coppice policy explain")
			}
		}
	}
	return nil
}

// Recordable refuses ignored paths of a sandbox that contain a part of its repository, if it has one. The caller
// prevents the removal of layers.
func (t *Trees) Recordable(ctx context.Context, rec *meta.Sandbox) error {
	if rec.Repo == nil || len(rec.Ignored) == 0 {
		return nil
	}
	v, err := t.view(ctx, timeline.SnapshotID(rec.Base))
	if err != nil {
		return err
	}
	return recordable(rec.Repo.Top, rec.Ignored, v.Lookup)
}

// recordable refuses ignored paths that contain a part of the repository at top, which would be missing inside, and
// whose changes could not be collected. look finds the entries of the root with the work tree.
func recordable(top string, ignored []string, look func(p string) (layer.Entry, error)) error {
	git := path.Join(top, ".git")
	for _, p := range ignored {
		refused := fault.New(fault.Conflict, "cannot ignore %s: it contains files of repository %s", p, top).
			WithHint("ignore only directories that git ignores, or use --no-repo")
		switch {
		case rootspec.Within(top, p), rootspec.Within(p, git):
			return refused
		case !rootspec.Within(p, top):
			continue
		}
		_, err := look(p)
		if err == nil {
			return refused
		}
		if !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// errGone means that a base was removed while a sandbox was created on it.
var errGone = errors.New("the imported tree of the commit was removed meanwhile")
