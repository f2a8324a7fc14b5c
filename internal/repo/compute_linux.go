package repo

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// maxRebase is the maximum number of commits of a rebase.
const maxRebase = 2000

// result is the new state of a branch and its work tree.
type result struct {
	tree   OID
	commit OID // "" with Patch
}

// either returns the commit, or the tree if there is no commit.
func (r result) either() OID {
	if r.commit == "" {
		return r.tree
	}
	return r.commit
}

// compute computes the result, as objects of the desk.
func (r *Repo) compute(ctx context.Context, d *desk, a Apply, t target) (res result, err error) {
	tip := a.Tip
	if len(a.Paths) > 0 {
		if tip, err = d.some(ctx, a); err != nil {
			return res, err
		}
	}
	committer, err := r.committer(ctx, a)
	if err != nil {
		return res, err
	}
	by := signature(committer, r.opt.Now().Unix())
	switch a.Way {
	case Rebase:
		return d.rebase(ctx, a, t, by)
	case Merge:
		res.tree, err = d.merge(ctx, t.old, tip)
	default:
		res.tree, err = d.merge3(ctx, a.Base, t.old, tip)
	}
	if err != nil || a.Way == Patch {
		return res, err
	}
	parents := []OID{t.old}
	if a.Way == Merge {
		parents = append(parents, tip)
	}
	if a.Author == (Person{}) {
		a.Author = committer
	}
	text, err := message(a.Message, a.Trailers)
	if err != nil {
		return res, err
	}
	res.commit, err = d.hold(ctx, "commit",
		commitObject(res.tree, parents, signature(a.Author, r.opt.Now().Unix()), by, text))
	return res, err
}

// committer returns the committer, by default the user of git's configuration.
func (r *Repo) committer(ctx context.Context, a Apply) (Person, error) {
	if a.Committer != (Person{}) || a.Way == Patch {
		return a.Committer, nil
	}
	out, err := r.user(ctx, call{args: []string{"-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT"}})
	p, ok := author(strings.TrimSpace(string(out)))
	if err != nil || !ok || p.bad() != "" {
		return p, fault.New(fault.Invalid, "git has no identity for the committer").Because(err).
			WithHint("set it: git config --global user.name NAME, and user.email ADDRESS")
	}
	return p, nil
}

// merge merges two commits, with the merge base that git finds.
func (d *desk) merge(ctx context.Context, ours, theirs OID) (OID, error) {
	out, err := d.run(ctx,
		call{args: []string{"merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", string(ours),
			string(theirs)}})
	if c := code(err); c != 0 && c != 1 {
		return "", fault.Wrap(hostile(err, "git cannot merge the commits"), "merge")
	}
	tree, paths, perr := parseMerge(string(out))
	switch {
	case perr != nil:
		return "", perr
	case len(paths) > 0 || err != nil:
		return "", fault.New(fault.Conflict, "both sides changed the same files").Because(&Conflicts{paths}).
			WithHint("nothing was changed; merge in the sandbox, or resolve the conflicts with git: git merge %s",
				theirs[:12])
	}
	return tree, nil
}

// merge3 merges the changes from base to theirs into ours. Git derives merge bases from history, so it is given three
// synthetic commits with these trees.
func (d *desk) merge3(ctx context.Context, base, ours, theirs OID) (OID, error) {
	var trees, ids [3]OID
	for i, of := range []OID{base, ours, theirs} {
		tree, err := d.tree(ctx, of)
		if err != nil {
			return "", err
		}
		trees[i] = tree
	}
	switch {
	case trees[0] == trees[1]:
		return trees[2], nil
	case trees[0] == trees[2] || trees[1] == trees[2]:
		return trees[1], nil
	}
	nobody := signature(Person{"coppice", "coppice@localhost"}, 0)
	for i, tree := range trees {
		var parents []OID
		if i > 0 {
			parents = ids[:1]
		}
		id, err := d.hold(ctx, "commit", commitObject(tree, parents, nobody, nobody, fmt.Sprintf("side %d\n", i)))
		if err != nil {
			return "", err
		}
		ids[i] = id
	}
	return d.merge(ctx, ids[1], ids[2])
}

// rebase recreates each commit, in order.
func (d *desk) rebase(ctx context.Context, a Apply, t target, by string) (res result, err error) {
	out, err := d.run(ctx,
		call{args: []string{"rev-list", "--reverse", "--topo-order", "--parents", string(a.Tip), "--not", string(a.Base)}})
	if err != nil {
		return res, fault.Wrap(err, "list the commits")
	}
	lines := slices.Collect(strings.Lines(string(out)))
	if len(lines) > maxRebase {
		return res, fault.New(fault.Unsupported, "cannot apply %d commits: more than the limit of %d", len(lines), maxRebase).
			WithHint("use --squash or --merge")
	}
	at, before := t.old, a.Base
	for _, l := range lines {
		f := strings.Fields(l)
		if len(f) != 2 || OID(f[1]) != before {
			return res, fault.New(fault.Unsupported, "cannot apply commits one by one: their history is not linear").
				WithHint("use --squash or --merge")
		}
		before = OID(f[0])
		if at, err = d.pick(ctx, before, OID(f[1]), at, by); err != nil {
			return res, err
		}
	}
	res.commit = at
	res.tree, err = d.tree(ctx, at)
	return res, err
}

// pick applies one commit onto another. It returns onto if the commit becomes empty.
func (d *desk) pick(ctx context.Context, commit, parent, onto OID, by string) (OID, error) {
	tree, err := d.merge3(ctx, parent, onto, commit)
	if err != nil {
		return "", err
	}
	was, err := d.tree(ctx, onto)
	if err != nil || was == tree {
		return onto, err
	}
	raw, err := d.run(ctx, call{args: []string{"cat-file", "commit", string(commit)}})
	if err != nil {
		return "", fault.Wrap(err, "read the commit %s", commit)
	}
	content, err := rewrite(raw, tree, onto, by)
	if err != nil {
		return "", err
	}
	return d.hold(ctx, "commit", content)
}

// some creates the base's tree with some paths of the tip. NotFound: neither has the path, and no changed path is
// below it.
func (d *desk) some(ctx context.Context, a Apply) (OID, error) {
	changes, err := d.changes(ctx, DiffOptions{From: a.Base, To: a.Tip, Paths: a.Paths})
	if err != nil {
		return "", err
	}
	for _, p := range a.Paths {
		if !slices.ContainsFunc(changes, func(c Change) bool { return c.Path == p || strings.HasPrefix(c.Path, p+"/") }) {
			return "", fault.New(fault.NotFound, "nothing changed in %q", clip(p)).
				WithHint("list the changed paths: coppice diff --name-only")
		}
	}
	return d.with(ctx, a.Base, changes)
}

// with creates the tree of a commit or tree with the new side of changes.
func (d *desk) with(ctx context.Context, base OID, changes []Change) (OID, error) {
	index := "GIT_INDEX_FILE=" + d.dir + "/some"
	if _, err := d.run(ctx, call{args: []string{"read-tree", string(base)}, env: []string{index}}); err != nil {
		return "", fault.Wrap(err, "read the base")
	}
	if _, err := d.run(ctx,
		call{args: []string{"update-index", "-z", "--index-info"}, env: []string{index},
			stdin: bytes.NewReader(indexInfo(changes, d.format))}); err != nil {
		return "", fault.Wrap(err, "select the paths")
	}
	return d.oid(ctx, call{args: []string{"write-tree"}, env: []string{index}})
}

// indexInfo returns the input of update-index for the new side of changes: deletions first.
func indexInfo(changes []Change, f Format) []byte {
	var gone, there bytes.Buffer
	for _, c := range changes {
		if c.Mode == 0 {
			fmt.Fprintf(&gone, "0 %s\t%s\x00", OID("").orNull(f), c.Path)
		} else {
			fmt.Fprintf(&there, "%s %s\t%s\x00", c.Mode, c.ID, c.Path)
		}
	}
	return append(gone.Bytes(), there.Bytes()...)
}
