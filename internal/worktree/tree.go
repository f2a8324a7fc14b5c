//go:build linux

package worktree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/bases"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The files of a commit are imported once, as a layer with the files at the path of the work tree and the index
// for git inside. That layer is a base, which all sandboxes at the commit share. Another commit is a layer on top
// of it with the differences. A base contains nothing of a single sandbox: a sandbox's own files are in the layer
// of its first snapshot (Trees.Record).

const (
	// KeepUnused is how long the base of a tree is kept after its last snapshot was deleted.
	KeepUnused = 14 * 24 * time.Hour
	// keys is the prefix of the keys of these bases.
	keys = "git "
	// maxDeltas is the maximum number of these bases on top of each other.
	maxDeltas = 24
	// noteUse is the minimum time between two updates of a base's last use.
	noteUse = time.Hour
)

// Tree is an imported work tree: the files of a commit, at a path inside sandboxes.
type Tree struct {
	*repo.Repo
	At       string              // the top of the work tree, inside
	Base     repo.OID            // the commit of HEAD
	Start    repo.OID            // the commit of the files: Base, or a commit on it with uncommitted changes
	Below    timeline.SnapshotID // the snapshot below the tree; "" is the host, or nothing
	Host     bool                // the parent directories of the tree are the host's
	UID, GID uint32              // owner of the files inside
}

// key is the key of the base of a tree: everything except the commit. A base with the same key and fingerprint is
// the base of this tree, and a tree can be stacked on the base of a clean one with the same key. Nothing is
// stacked on a base with uncommitted changes.
func (t *Tree) key(dirty bool) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "1 %q %q %q %t %d %d %t", t.Common, t.Top, t.At, t.Host, t.UID, t.GID, dirty)
	fmt.Fprintf(sum, " %q", t.Below)
	return keys + hex.EncodeToString(sum.Sum(nil)[:16])
}

// dirty reports whether the tree has uncommitted changes.
func (t *Tree) dirty() bool { return t.Start != t.Base }

// print is the fingerprint of the base.
func (t *Tree) print() string {
	if t.dirty() {
		return string(t.Start) + " on " + string(t.Base)
	}
	return string(t.Start)
}

// Import finds or imports the base of a tree: completely, or as the difference from the base of another commit. The
// notes of the base describe the import. The caller must hold no lock.
func (t *Trees) Import(ctx context.Context, tree *Tree, progress func(wire.Progress)) (bases.Base, error) {
	if b, known, err := t.known(ctx, tree); known || err != nil {
		return b, err
	}
	done := t.c.Bases.Importing()
	defer done()
	if b, known, err := t.known(ctx, tree); known || err != nil {
		return b, err
	}
	from, err := t.near(ctx, tree)
	if err != nil {
		return bases.Base{}, err
	}
	began := t.c.Now()
	b, out, err := t.importTree(ctx, tree, from, progress)
	if err != nil && from != nil && ctx.Err() == nil && !fault.Is(err, fault.NoSpace) {
		t.c.Log.Warn("could not import a commit as a difference to another; importing it as a whole",
			"commit", tree.Start, "base", from.ID, "err", err)
		from = nil
		b, out, err = t.importTree(ctx, tree, nil, progress)
	}
	if err != nil {
		return bases.Base{}, err
	}
	files := "files"
	if out.Files == 1 {
		files = "file"
	}
	what := fmt.Sprintf("imported %d %s of commit %s", out.Files, files, short(tree.Start))
	if from != nil {
		what = fmt.Sprintf("imported the %d %s in which commit %s differs from %s", out.Files, files, short(tree.Start),
			short(repo.OID(from.Print)))
	}
	b.Notes = append(b.Notes,
		fmt.Sprintf("%s in %s; the next sandbox at it shares them", what, t.c.Now().Sub(began).Round(time.Millisecond)))
	return b, nil
}

// short abbreviates a commit ID for messages.
func short(c repo.OID) string { return string(c[:min(len(c), 12)]) }

// known finds the base of a tree, if it exists, and updates its last use.
func (t *Trees) known(ctx context.Context, tree *Tree) (_ bases.Base, known bool, err error) {
	all, err := t.c.DB.Bases(ctx, tree.key(tree.dirty()))
	if err != nil {
		return bases.Base{}, false, err
	}
	for _, b := range all {
		if b.Print != tree.print() {
			continue
		}
		if now := t.c.Now(); now.Sub(b.Created) > noteUse {
			err = t.c.DB.UseBase(ctx, b.ID, now)
		}
		return bases.Base{Base: b}, true, err
	}
	return bases.Base{}, false, nil
}

// near finds the base that a tree is stacked on: the most recently used one of the same work tree. It returns nil
// if there is none, or if it has maxDeltas already.
func (t *Trees) near(ctx context.Context, tree *Tree) (*meta.Base, error) {
	all, err := t.c.DB.Bases(ctx, tree.key(false))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	b := &all[0]
	_, err = tree.Commit(ctx, b.Print)
	switch {
	case fault.Is(err, fault.NotFound): // the repository no longer has the commit
		return nil, nil
	case err != nil:
		return nil, err
	}
	line, err := t.c.DB.Lineage(ctx, b.Top)
	if err != nil {
		return nil, err
	}
	n := 0
	for at := b.Top; at != tree.Below && at != ""; at = line.Parents[at] {
		n++
	}
	if n >= maxDeltas {
		return nil, nil
	}
	return b, nil
}

// importTree creates the base of a tree; if from is not nil, with only the differences from that base. The caller
// holds Bases.Importing.
func (t *Trees) importTree(
	ctx context.Context, tree *Tree, from *meta.Base, progress func(wire.Progress),
) (_ bases.Base, out repo.CheckedOut, err error) {
	w := &writer{Tree: tree}
	b := meta.Base{
		Key: tree.key(tree.dirty()), Label: tree.Top + " at " + short(tree.Start), Print: tree.print(), Parent: tree.Below,
	}
	w.progress = func(done, total int64) {
		progress(wire.Progress{Phase: "checkout", Unit: "files", Done: done, Total: total})
	}
	if tree.Below != "" {
		if w.lower, err = t.view(ctx, tree.Below); err != nil {
			return bases.Base{}, out, err
		}
	}
	if from != nil {
		b.Parent, w.from = from.Top, repo.OID(from.Print)
		if w.index, err = t.indexOf(ctx, tree, from.Top); err != nil {
			return bases.Base{}, out, err
		}
	}
	id, made, err := t.c.Stacks.NewLayer()
	if err != nil {
		return bases.Base{}, out, err
	}
	defer made()
	if err := t.c.Layers.Build(ctx, id,
		func(lb *layer.Builder) error { out, err = w.write(ctx, lb); return err }); err != nil {
		return bases.Base{}, out, fault.Wrap(err, "import commit %s of %s", short(tree.Start), tree.Top)
	}
	got, err := t.c.Bases.Add(ctx, b, id, layer.Report{Entries: int64(out.Files), Bytes: out.Bytes})
	return got, out, err
}

// view returns the layers of a snapshot, without the host below them.
func (t *Trees) view(ctx context.Context, id timeline.SnapshotID) (*layer.View, error) {
	dirs, err := t.c.Stacks.Dirs(ctx, id)
	if err != nil {
		return nil, err
	}
	return t.c.Layers.View(rootspec.Stack{Layers: dirs}), nil
}

// Forget deletes the bases of trees without snapshots that were not used for a new sandbox for KeepUnused. Their
// layers become garbage.
func (t *Trees) Forget(ctx context.Context) error {
	return t.c.DB.ForgetBases(ctx, keys, t.c.Now().Add(-KeepUnused))
}

// indexOf reads the git index in the base of a tree, whose snapshot is top.
func (t *Trees) indexOf(ctx context.Context, tree *Tree, top timeline.SnapshotID) ([]byte, error) {
	v, err := t.view(ctx, top)
	if err != nil {
		return nil, err
	}
	f, err := v.Open(path.Join(tree.At, ".git/index"))
	if err != nil {
		return nil, fault.Wrap(err, "read the index of a base")
	}
	defer f.Close()
	return readIndex(f)
}
