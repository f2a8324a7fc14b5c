//go:build linux

package worktree

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/bases"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitwork"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Create creates a sandbox on a repository, with the files below its work tree. It completes rec, holds the
// commits in the repository, imports the files of the commit unless an earlier sandbox has them, and creates the
// sandbox's own .git. notes describe what was done, and warnings possible mistakes, for users. After an error
// there is no sandbox, and the repository is unchanged.
func (t *Trees) Create(
	ctx context.Context, w *Site, rec *meta.Sandbox, below bases.Base, progress func(wire.Progress),
) (notes, warnings []string, err error) {
	tree, warnings, err := t.plan(ctx, w, rec, below)
	if err != nil {
		return nil, nil, err
	}
	held, err := t.c.Refs.Hold(ctx, w.Repo, rec)
	if err != nil {
		return nil, nil, err
	}
	for range 3 {
		var b bases.Base
		if b, err = t.Import(ctx, tree, progress); err != nil {
			break
		}
		notes = append(notes, b.Notes...)
		rec.Base = b.ID
		if err = t.Record(ctx, w, tree, rec, b, held); !errors.Is(err, errGone) {
			break
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, t.c.Refs.Unhold(context.WithoutCancel(ctx), rec, held))
	}
	t.c.Refs.Made(held)
	notes = append(notes, fmt.Sprintf("on branch %s at %s of %s", rec.Repo.Branch, short(tree.Base), w.Top))
	return notes, warnings, nil
}

// plan determines what the sandbox sees of a repository, and stores it in rec. warnings list the uncommitted
// files that cannot be part of the work tree.
func (t *Trees) plan(
	ctx context.Context, w *Site, rec *meta.Sandbox, below bases.Base,
) (tree *Tree, warnings []string, err error) {
	branch, err := w.beginsOn(rec.Name)
	if err != nil {
		return nil, nil, err
	}
	tree = &Tree{Repo: w.Repo, At: w.Top, Base: w.Base, Start: w.Base, Below: below.Top, Host: below.Host}
	tree.UID, tree.GID = t.owner(rec)
	if rec.Tier == workspace {
		tree.At = "/"
	}
	if w.dirty {
		var skipped []repo.Skipped
		if tree.Start, skipped, err = w.WorkTree(ctx); err != nil {
			return nil, nil, err
		}
		for i, s := range skipped {
			if i == limit.Listed {
				warnings = append(warnings, fmt.Sprintf("skipped: %d more", len(skipped)-i))
				break
			}
			warnings = append(warnings, fmt.Sprintf("skipped: %s: %s", s.Path, s.Why))
		}
	}
	rec.Repo = &meta.Repo{Top: w.Top, Common: w.Common, Dir: w.dir, Branch: branch.Short(), Base: string(tree.Base),
		Start: string(tree.Start), Objects: w.objects}
	if w.Base == w.Head.Commit && w.Head.Branch != "" {
		rec.Repo.From = w.Head.Branch.Short()
	}
	rec.From += ", repository " + w.Top + " at " + short(tree.Base)
	if rec.Tier == workspace {
		rec.From, rec.Root = "repository "+w.Top+" at "+short(tree.Base), w.Top
	}
	return tree, warnings, nil
}

// beginsOn returns the initial branch of a sandbox, by the sandbox's name.
func (w *Site) beginsOn(name string) (repo.Ref, error) {
	if w.branch != "" {
		return repo.ParseBranch(w.branch)
	}
	return gitwork.BranchOf(name)
}

// owner returns the IDs inside of the files that the daemon's user owns outside.
func (t *Trees) owner(rec *meta.Sandbox) (uid, gid uint32) {
	if rec.Tier == workspace || rec.User == me {
		return t.c.UID, t.c.GID
	}
	return 0, 0 // root of the sandbox, whichever user that is outside
}

// Record creates the layer of a sandbox's first snapshot, which is its own .git, and then the sandbox. b is the
// base that Import returned for the tree. held is the intent that holds the commits; it ends with the record of
// the sandbox. Record fails if the base was removed in the meantime; otherwise the new sandbox protects it from
// removal.
func (t *Trees) Record(
	ctx context.Context, w *Site, tree *Tree, rec *meta.Sandbox, b bases.Base, held int64,
) (err error) {
	t.c.Keep.Lock()
	defer t.c.Keep.Unlock()
	if there, err := t.c.DB.HasSnapshot(ctx, b.Top); err != nil || !there {
		return errors.Join(err, errGone)
	}
	first, err := t.c.Maker.First(ctx, rec, b.Top, "from "+rec.From)
	if err != nil {
		return err
	}
	first.Finalized = false
	rec.Head, rec.MountTop, rec.Gen = first.ID, first.ID, 1
	id, made, err := t.c.Stacks.NewLayer()
	if err != nil {
		return err
	}
	defer made()
	v, err := t.view(ctx, b.Top)
	if err != nil {
		return err
	}
	if err := recordable(rec.Repo.Top, rec.Ignored, v.Lookup); err != nil {
		return err
	}
	if err := t.c.Layers.Build(ctx, id,
		func(lb *layer.Builder) error { return t.writeGit(ctx, lb, w, tree, rec, v) }); err != nil {
		return fault.Wrap(err, "create the sandbox's repository")
	}
	on := timeline.Route{Top: first.ID, Below: b.Top, Layer: id}
	if err := t.c.Maker.Create(ctx, rec, first, on, held); err != nil {
		return errors.Join(err, t.c.Layers.Remove(context.WithoutCancel(ctx), id))
	}
	t.c.Stacks.MayBeDeep(first.ID)
	return nil
}

// writeGit writes a sandbox's own .git, on top of the tree in v.
func (t *Trees) writeGit(
	ctx context.Context, b *layer.Builder, w *Site, tree *Tree, rec *meta.Sandbox, v *layer.View,
) error {
	at := path.Join(tree.At, ".git")
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
	defer func() { _ = to.Close() }() // closing a directory never fails
	branch, err := repo.ParseBranch(rec.Repo.Branch)
	if err != nil {
		return err
	}
	objects := map[string]string{}
	for i, dir := range w.objects {
		objects[dir] = rootspec.SharedPath(i)
		if rec.Tier == workspace {
			objects[dir] = dir
		}
	}
	return w.Inside(ctx, repo.Inside{
		Branch: branch, Commit: tree.Base, Objects: objects, Moved: t.c.Plain(rec.Driver), To: to,
		Identity: true, // the policy, or another HOME, may hide the user's configuration from git inside
	})
}

// Directories returns the default working directories of commands in a sandbox: the first that exists is used; and
// the host directories with the repository's objects that are shown inside. Both are empty if the sandbox has no
// repository.
func Directories(rec *meta.Sandbox, spec rootspec.Spec) (dirs, shared []string) {
	r := rec.Repo
	switch {
	case r == nil:
		return nil, nil
	case rec.Tier == workspace:
		return []string{filepath.Join(spec.Bind, strings.TrimPrefix(r.Dir, r.Top))}, nil
	}
	return slices.Compact([]string{r.Dir, r.Top}), r.Objects
}
