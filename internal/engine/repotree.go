//go:build linux

package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootfs"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// The files of a commit are imported once, as a layer at the place of the work tree, with
// the index that git inside is to find. That is a base, which all sandboxes share that begin
// at that commit; another commit is a layer on it of what differs. It holds nothing that is
// a sandbox's own: that is in the layer of its first snapshot (repogit.go).

const (
	// treeKey begins the keys of such bases.
	treeKey = "git "
	// maxDeltas is how many of them lie one on another.
	maxDeltas = 24
	// keepTree is how long one is kept that nothing stands on.
	keepTree = 14 * 24 * time.Hour
	// usedTree is how often at most it is noted that one is used.
	usedTree = time.Hour
)

// workTree is what is imported.
type workTree struct {
	*repo.Repo
	top      string              // of the work tree, inside
	base     repo.OID            // what HEAD is
	start    repo.OID            // what the files are
	below    timeline.SnapshotID // what it lies on; "" is the host, or nothing
	host     bool                // the directories above it are the host's
	uid, gid uint32              // who owns the files inside
}

// key names what is found again, and what can lie on what: everything but the commit. What
// is not committed lies on a commit, and nothing on it.
func (t *workTree) key(dirty bool) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "1 %q %q %q %t %d %d %t", t.Common, t.Top, t.top, t.host, t.uid, t.gid, dirty)
	fmt.Fprintf(sum, " %q", t.below)
	return treeKey + hex.EncodeToString(sum.Sum(nil)[:16])
}

func (t *workTree) dirty() bool { return t.start != t.base }

// print is the fingerprint of the base.
func (t *workTree) print() string {
	if t.dirty() {
		return string(t.start) + " on " + string(t.base)
	}
	return string(t.start)
}

// treeOf finds or makes the base of a tree.
func (e *Engine) treeOf(ctx context.Context, t *workTree, progress func(wire.Progress)) (base, error) {
	if b, known, err := e.knownTree(ctx, t); known || err != nil {
		return b, err
	}
	done := e.Bases.Importing()
	defer done()
	if b, known, err := e.knownTree(ctx, t); known || err != nil {
		return b, err
	}
	from, err := e.nearTree(ctx, t)
	if err != nil {
		return base{}, err
	}
	began := e.Now()
	b, out, err := e.importTree(ctx, t, from, progress)
	if err != nil && from != nil && ctx.Err() == nil && !fault.Is(err, fault.NoSpace) {
		e.Logger.Warn("the files of a commit are imported as a whole: they cannot be laid on those of another",
			"commit", t.start, "base", from.ID, "err", err)
		from = nil
		b, out, err = e.importTree(ctx, t, nil, progress)
	}
	if err != nil {
		return base{}, err
	}
	files := "files"
	if out.Files == 1 {
		files = "file"
	}
	what := fmt.Sprintf("imported %d %s of commit %s", out.Files, files, short(t.start))
	if from != nil {
		what = fmt.Sprintf("imported the %d %s in which commit %s differs from %s", out.Files, files, short(t.start),
			short(repo.OID(from.Print)))
	}
	b.Notes = append(b.Notes,
		fmt.Sprintf("%s in %s; the next sandbox at it shares them", what, e.Now().Sub(began).Round(time.Millisecond)))
	return b, nil
}

func short(c repo.OID) string { return string(c[:min(len(c), 12)]) }

// knownTree finds the base of a tree, if there is one.
func (e *Engine) knownTree(ctx context.Context, t *workTree) (_ base, known bool, err error) {
	all, err := e.DB.Bases(ctx, t.key(t.dirty()))
	if err != nil {
		return base{}, false, err
	}
	for _, b := range all {
		if b.Print != t.print() {
			continue
		}
		if now := e.Now(); now.Sub(b.Created) > usedTree {
			err = e.DB.UseBase(ctx, b.ID, now)
		}
		return base{Base: b}, true, err
	}
	return base{}, false, nil
}

// nearTree finds a base that a tree can be laid on: the one of the same work tree that was
// used last; nil is none.
func (e *Engine) nearTree(ctx context.Context, t *workTree) (*meta.Base, error) {
	all, err := e.DB.Bases(ctx, t.key(false))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	b := &all[0]
	_, err = t.Commit(ctx, b.Print)
	switch {
	case fault.Is(err, fault.NotFound): // the repository has it no more
		return nil, nil
	case err != nil:
		return nil, err
	}
	line, err := e.DB.Lineage(ctx, b.Top)
	if err != nil {
		return nil, err
	}
	n := 0
	for at := b.Top; at != t.below && at != ""; at = line.Parents[at] {
		n++
	}
	if n >= maxDeltas {
		return nil, nil
	}
	return b, nil
}

// importTree makes the base of a tree, of what differs from another one. The caller holds
// importing.
func (e *Engine) importTree(
	ctx context.Context, t *workTree, from *meta.Base, progress func(wire.Progress),
) (_ base, out repo.CheckedOut, err error) {
	w := &treeWriter{workTree: t}
	b := meta.Base{Key: t.key(t.dirty()), Label: t.Top + " at " + short(t.start), Print: t.print(), Parent: t.below}
	w.progress = func(done, total int64) {
		progress(wire.Progress{Phase: "checkout", Unit: "files", Done: done, Total: total})
	}
	if t.below != "" {
		if w.lower, err = e.layersView(ctx, t.below); err != nil {
			return base{}, out, err
		}
	}
	if from != nil {
		b.Parent, w.from = from.Top, repo.OID(from.Print)
		if w.index, err = e.indexOf(ctx, t, from.Top); err != nil {
			return base{}, out, err
		}
	}
	id, made, err := e.newLayer()
	if err != nil {
		return base{}, out, err
	}
	defer made()
	if err := e.Layers.Build(ctx, id,
		func(lb *layer.Builder) error { out, err = w.write(ctx, lb); return err }); err != nil {
		return base{}, out, fault.Wrap(err, "import commit %s of %s", short(t.start), t.Top)
	}
	got, err := e.Bases.Add(ctx, b, id, layer.Report{Entries: int64(out.Files), Bytes: out.Bytes})
	return got, out, err
}

// layersView shows the layers that make up a snapshot, without the host below them.
func (e *Engine) layersView(ctx context.Context, id timeline.SnapshotID) (*layer.View, error) {
	ids, err := e.stacks.Below(ctx, id)
	if err != nil {
		return nil, err
	}
	return e.Layers.View(rootspec.Stack{Layers: e.stacks.Dirs(ids)}), nil
}

// indexOf reads the index of a base.
func (e *Engine) indexOf(ctx context.Context, t *workTree, top timeline.SnapshotID) ([]byte, error) {
	v, err := e.layersView(ctx, top)
	if err != nil {
		return nil, err
	}
	f, err := v.Open(path.Join(t.top, ".git/index"))
	if err != nil {
		return nil, fault.Wrap(err, "read the index of a base")
	}
	defer f.Close()
	return readGitIndex(f)
}

// readGitIndex reads the index of a base: a file of a layer, which does not change.
func readGitIndex(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fault.Wrap(err, "read the index of a base")
	}
	if info.Size() > limit.IndexBytes {
		return nil, fault.New(fault.TooLarge, "the index of a base has %d bytes, and the limit is %d", info.Size(),
			int64(limit.IndexBytes)).
			WithHint("create the sandbox without the repository: coppice create --no-repo")
	}
	text, err := io.ReadAll(io.LimitReader(f, limit.IndexBytes))
	return text, fault.Wrap(err, "read the index of a base")
}

// treeWriter writes the layer of a tree.
type treeWriter struct {
	*workTree
	from     repo.OID
	index    []byte      // of from
	lower    *layer.View // what it lies on; nil is nothing, or the host
	progress func(done, total int64)
}

func (w *treeWriter) write(ctx context.Context, b *layer.Builder) (out repo.CheckedOut, err error) {
	at := rel(w.top)
	if err := leadTo(b, w.top, w.look); err != nil {
		return out, err
	}
	meta, err := w.topLook()
	if err != nil {
		return out, err
	}
	if err := b.Dir(at, meta); err != nil {
		return out, err
	}
	if w.from == "" {
		if err := b.Opaque(at); err != nil {
			return out, err
		}
	}
	to, err := b.Root().OpenRoot(at)
	if err != nil {
		return out, fault.Wrap(err, "open the work tree")
	}
	defer func() { _ = to.Close() }() // a directory
	out, err = w.Checkout(ctx, repo.Checkout{
		Commit: w.start, From: w.from, To: to, Progress: w.progress,
		Remove: func(p string) error { return b.Whiteout(path.Join(at, p)) },
		Hide:   func(p string) error { return b.Opaque(path.Join(at, p)) },
	})
	if err != nil {
		return out, err
	}
	if err := b.Dir(path.Join(at, ".git"), layer.DirMeta{Mode: 0o755, Mtime: out.Time}); err != nil {
		return out, err
	}
	git, err := to.OpenRoot(".git")
	if err != nil {
		return out, fault.Wrap(err, "open the repository's directory")
	}
	defer func() { _ = git.Close() }()
	return out, w.Index(ctx, repo.Index{Written: out, Commit: w.base, Before: w.index, UID: w.uid, GID: w.gid, To: git})
}

// look says what a directory above the work tree is like.
func (w *treeWriter) look(dir string) (layer.DirMeta, error) {
	if w.host {
		l, err := rootfs.LookOf(dir)
		return layer.DirMeta{Mode: l.Mode, UID: l.UID, GID: l.GID, Mtime: l.Mtime, Skeleton: true}, err
	}
	return lookIn(w.lower, dir)
}

// topLook says what the top of the work tree is like: as on the host, but of whoever owns
// what is in it.
func (w *treeWriter) topLook() (layer.DirMeta, error) {
	l, err := rootfs.LookOf(w.Top)
	return layer.DirMeta{Mode: l.Mode | 0o700, Mtime: l.Mtime}, err
}

// lookIn says what a directory of a view is like; a usual one where it has none.
func lookIn(v *layer.View, dir string) (layer.DirMeta, error) {
	usual := layer.DirMeta{Mode: 0o755, Mtime: time.Unix(0, 0)}
	if v == nil {
		return usual, nil
	}
	at, err := v.Lookup(dir)
	if fault.Is(err, fault.NotFound) {
		return usual, nil
	}
	if err == nil && !at.IsDir() {
		err = fault.New(fault.Conflict, "%s is no directory in what the repository is to lie on", dir)
	}
	return layer.DirMeta{Mode: at.Mode & 0o7777, UID: at.UID, GID: at.GID, Mtime: time.Unix(0, at.Mtime), Skeleton: true},
		err
}

// leadTo makes the directories above a path.
func leadTo(b *layer.Builder, p string, look func(dir string) (layer.DirMeta, error)) error {
	if p == "/" {
		return nil
	}
	at := "/"
	for _, name := range append([]string{""}, strings.Split(path.Dir(p), "/")...) {
		if name == "" && at != "/" {
			continue
		}
		at = path.Join(at, name)
		m, err := look(at)
		if err != nil {
			return err
		}
		if err := b.Dir(rel(at), m); err != nil {
			return err
		}
	}
	return nil
}

// rel is a path inside as one of a layer.
func rel(p string) string {
	if p == "/" {
		return "."
	}
	return strings.TrimPrefix(p, "/")
}
