//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// createOn makes a sandbox that works on a repository: it holds the commits, has the tree
// imported if it is not, and makes the sandbox's own .git, which is the layer of its first snapshot.
func (e *Engine) createOn(
	ctx context.Context, w *worksite, rec *meta.Sandbox, below base, progress func(wire.Progress),
) (notes, warnings []string, err error) {
	t, warnings, err := e.treeFor(ctx, w, rec, below)
	if err != nil {
		return nil, nil, err
	}
	held, err := e.refs.Hold(ctx, w.Repo, rec)
	if err != nil {
		return nil, nil, err
	}
	for range 3 {
		var b base
		if b, err = e.treeOf(ctx, t, progress); err != nil {
			break
		}
		notes = append(notes, b.Notes...)
		rec.Base = b.ID
		if err = e.recordOn(ctx, w, t, rec, b, held); !errors.Is(err, errNoTree) {
			break
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, e.refs.Unhold(context.WithoutCancel(ctx), rec, held))
	}
	e.refs.Made(held)
	return append(notes, fmt.Sprintf("on branch %s at %s of %s", rec.Repo.Branch, short(t.base), w.Top)), warnings, nil
}

// treeFor says what the sandbox is to see of a repository, and in its record what it has
// of it.
func (e *Engine) treeFor(
	ctx context.Context, w *worksite, rec *meta.Sandbox, below base,
) (t *workTree, warnings []string, err error) {
	branch, err := w.beginsOn(rec.Name)
	if err != nil {
		return nil, nil, err
	}
	t = &workTree{Repo: w.Repo, top: w.Top, base: w.base, start: w.base, below: below.Top, host: below.Host}
	t.uid, t.gid = e.ownerInside(rec)
	if rec.Tier == tierWorkspace {
		t.top = "/"
	}
	if w.dirty {
		var skipped []repo.Skipped
		if t.start, skipped, err = w.WorkTree(ctx); err != nil {
			return nil, nil, err
		}
		for i, s := range skipped {
			if i == limit.Listed {
				warnings = append(warnings, fmt.Sprintf("left out: %d more", len(skipped)-i))
				break
			}
			warnings = append(warnings, fmt.Sprintf("left out: %s: %s", s.Path, s.Why))
		}
	}
	rec.Repo = &meta.Repo{Top: w.Top, Common: w.Common, Dir: w.dir, Branch: branch.Short(), Base: string(t.base),
		Start: string(t.start), Objects: w.objects}
	if w.base == w.Head.Commit && w.Head.Branch != "" {
		rec.Repo.From = w.Head.Branch.Short()
	}
	rec.From += ", repository " + w.Top + " at " + short(t.base)
	if rec.Tier == tierWorkspace {
		rec.From, rec.Root = "repository "+w.Top+" at "+short(t.base), w.Top
	}
	return t, warnings, nil
}

// beginsOn is the branch that a sandbox of that name begins on.
func (w *worksite) beginsOn(name string) (repo.Ref, error) {
	if w.branch != "" {
		return repo.ParseBranch(w.branch)
	}
	return gitwork.BranchOf(name)
}

// ownerInside says who owns, inside, what the daemon's files are.
func (e *Engine) ownerInside(rec *meta.Sandbox) (uid, gid uint32) {
	if rec.Tier == tierWorkspace || rec.User == userMe {
		return e.UID, e.GID
	}
	return 0, 0 // root of the sandbox, whoever that is outside
}

// recordOn makes the layer of the first snapshot, and then the sandbox. It is errNoTree
// where the base has gone meanwhile; from when it was looked at it stays.
func (e *Engine) recordOn(
	ctx context.Context, w *worksite, t *workTree, rec *meta.Sandbox, b base, held int64,
) (err error) {
	e.shape.RLock()
	defer e.shape.RUnlock()
	if there, err := e.DB.HasSnapshot(ctx, b.Top); err != nil || !there {
		return errors.Join(err, errNoTree)
	}
	first, err := e.first(ctx, rec, b.Top, timeline.CauseImport, "from "+rec.From)
	if err != nil {
		return err
	}
	first.Sealed = false
	rec.Head, rec.MountTop, rec.Gen = first.ID, first.ID, 1
	id, made, err := e.newLayer()
	if err != nil {
		return err
	}
	defer made()
	v, err := e.layersView(ctx, b.Top)
	if err != nil {
		return err
	}
	if err := e.Layers.Build(ctx, id,
		func(lb *layer.Builder) error { return e.writeGit(ctx, lb, w, t, rec, v) }); err != nil {
		return fault.Wrap(err, "make the sandbox's repository")
	}
	err = e.Book.Do(ctx, e.Book.Drafts(ctx, rec, e.createRecord(rec, "")), func(ctx context.Context) error {
		return e.DB.CreateSandboxOn(ctx, *rec, first, timeline.Route{Top: first.ID, Below: b.Top, Layer: id}, held)
	})
	if err != nil {
		return errors.Join(err, e.Layers.Remove(context.WithoutCancel(ctx), id))
	}
	e.Upkeep.MayBeDeep(first.ID)
	return nil
}

// writeGit writes a sandbox's own .git, on top of the tree that v shows.
func (e *Engine) writeGit(
	ctx context.Context, b *layer.Builder, w *worksite, t *workTree, rec *meta.Sandbox, v *layer.View,
) error {
	at := path.Join(t.top, ".git")
	if err := leadTo(b, at, func(dir string) (layer.DirMeta, error) { return lookIn(v, dir) }); err != nil {
		return err
	}
	if err := b.Dir(rel(at), layer.DirMeta{Mode: 0o755, Mtime: rec.Created}); err != nil {
		return err
	}
	to, err := b.Root().OpenRoot(rel(at))
	if err != nil {
		return fault.Wrap(err, "open the repository's directory")
	}
	defer func() { _ = to.Close() }() // a directory
	branch, err := repo.ParseBranch(rec.Repo.Branch)
	if err != nil {
		return err
	}
	objects := map[string]string{}
	for i, dir := range w.objects {
		objects[dir] = rootspec.SharedPath(i)
		if rec.Tier == tierWorkspace {
			objects[dir] = dir
		}
	}
	drv := e.Drivers[rec.Driver]
	return w.Inside(ctx, repo.Inside{
		Branch: branch, Commit: t.base, Objects: objects, Moved: drv == nil || drv.Plain(), To: to,
		Identity: true, // the user's own files need not be seen, by the policy or by what HOME is inside
	})
}

// beginIn gives the directories in which the commands of a sandbox begin that do not say,
// the first that is there, and those of the host that are shown inside.
func (e *Engine) beginIn(rec *meta.Sandbox, spec rootspec.Spec) (dirs, shared []string) {
	r := rec.Repo
	switch {
	case r == nil:
		return nil, nil
	case rec.Tier == tierWorkspace:
		return []string{filepath.Join(spec.Bind, strings.TrimPrefix(r.Dir, r.Top))}, nil
	}
	return slices.Compact([]string{r.Dir, r.Top}), r.Objects
}
