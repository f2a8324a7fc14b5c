//go:build linux

package engine

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
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// worksite is a repository of the host that a sandbox is to work on.
type worksite struct {
	*repo.Repo
	dir     string // that was named, in the work tree
	base    repo.OID
	branch  string   // that it begins on, by its short name; "" is the sandbox's own
	dirty   bool     // with what is not committed
	objects []string // directories of the host
}

// workOn finds the repository that a request is about. Where the sandbox need not have
// one, the warning says why it has none, and the request is made one for none.
func (e *Engine) workOn(ctx context.Context, req *wire.CreateRequest) (w *worksite, warning string, err error) {
	if req.Repo == nil {
		return nil, "", nil
	}
	w, err = e.findWork(ctx, req)
	if err == nil || !req.Repo.Maybe || ctx.Err() != nil {
		return w, "", err
	}
	req.Repo = nil
	return nil, withoutRepo(err), nil
}

// withoutRepo is the warning that a sandbox works on no repository, because of err.
func withoutRepo(err error) string {
	text := "the sandbox works on no repository: " + err.Error()
	if hint := fault.HintOf(err); hint != "" {
		text += " (" + hint + ")"
	}
	return text + "; --no-repo does without a word"
}

func (e *Engine) findWork(ctx context.Context, req *wire.CreateRequest) (*worksite, error) {
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
		return nil, fault.New(fault.Invalid, "the repository's directory %q is no absolute path", req.Repo.Dir)
	}
	r, err := e.Repos.Open(ctx, req.Repo.Dir)
	if err != nil {
		return nil, err
	}
	w := &worksite{Repo: r, dir: req.Repo.Dir, base: r.Head.Commit, branch: req.Repo.Branch, dirty: req.Repo.Dirty}
	if at := req.Repo.At; at != "" {
		if w.base, err = r.Commit(ctx, at); err != nil {
			return nil, err
		}
	}
	if w.dirty && w.base != r.Head.Commit {
		return nil, fault.New(fault.Invalid, "what is not committed belongs to HEAD, and not to %s", req.Repo.At).
			WithHint("leave --at or --dirty out")
	}
	if err := canLie(r.Top, e.Home); err != nil {
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

// objectsOf lists the directories that have a repository's objects, without links.
func objectsOf(ctx context.Context, r *repo.Repo) ([]string, error) {
	dirs, err := r.ObjectDirs(ctx)
	if err != nil {
		return nil, err
	}
	if len(dirs) > rootspec.MaxShared {
		return nil, fault.New(fault.Unsupported, "the objects of %s lie in %d places, and %d can be shown", r.Top, len(dirs),
			rootspec.MaxShared).
			WithHint("have it borrow less: git repack -a -d in the repositories that borrow")
	}
	for i, d := range dirs {
		if dirs[i], err = filepath.EvalSymlinks(d); err != nil {
			return nil, fault.Wrap(err, "find the objects of %s", r.Top)
		}
	}
	return dirs, nil
}

// canLie refuses a place at which a sandbox cannot have a work tree as the host has it.
func canLie(top, home string) error {
	switch {
	case top == "/" || !utf8.ValidString(top):
		return fault.New(fault.Unsupported, "a repository at %q cannot be shown in a sandbox", top)
	case rootspec.Within(home, top), rootspec.Within(top, home):
		return fault.New(fault.Unsupported, "the repository %s holds Coppice's own files, %s", top, home).
			WithHint("set COPPICE_HOME to a directory outside of it")
	}
	for _, r := range rootspec.Reserved {
		if rootspec.Within(top, r) {
			return fault.New(fault.Unsupported, "the repository %s lies in %s, which every sandbox has for itself", top, r).
				WithHint("move it elsewhere, or clone it: git clone %s ~/%s", top, path.Base(top))
		}
	}
	return nil
}

// shows refuses a repository that the policy hides: its objects would tell what lies
// in it. What is hidden in its work tree is.
func shows(top string, objects, hidden []string) error {
	for _, h := range hidden {
		h = strings.TrimSuffix(h, "/*")
		for _, p := range append([]string{top}, objects...) {
			if rootspec.Within(p, h) {
				return fault.New(fault.Denied, "the policy hides %s, and the repository %s with it", h, top).
					WithHint("see why: coppice policy explain")
			}
		}
	}
	return nil
}

// goesWith refuses what a repository cannot be laid on in tier workspace.
func goesWith(from wire.Source) error {
	if fromHost(from) {
		return nil
	}
	return fault.New(fault.Invalid, "tier workspace versions one directory: a repository, or what --from names").
		WithHint("leave --from or --repo out")
}

func fromHost(from wire.Source) bool { return from.Kind == "" || from.Kind == wire.SourceHost }

// errNoTree: a base went while a sandbox was being made on it.
var errNoTree = errors.New("the tree of the commit was removed meanwhile")
