//go:build linux

package gitwork

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/gitrefs"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/message"
	"github.com/coppice-dev/coppice/internal/meta"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/undo"
)

// takeWork makes a commit of the uncommitted changes in the snapshot of c. It compares only paths that can differ:
// those that changed on disk since the start of the sandbox, and those that its commits changed.
func (g *Git) takeWork(ctx context.Context, c *Collected, old repo.OID) (err error) {
	var cleanup undo.Stack
	defer cleanup.Run(&err)
	dir, err := os.MkdirTemp(g.config.Scratch(), "work-")
	if err != nil {
		return fault.Wrap(err, "create a directory for uncommitted changes")
	}
	cleanup.Push(func() error { return fault.Wrap(os.RemoveAll(dir), "remove the directory of uncommitted changes") })
	tree, err := os.OpenRoot(dir)
	if err != nil {
		return fault.Wrap(err, "create a directory for uncommitted changes")
	}
	cleanup.Push(tree.Close)
	committed, err := c.Repo.Diff(ctx, repo.DiffOptions{From: c.Start, To: c.Tip})
	if err != nil {
		return err
	}
	paths, err := LayOut(ctx, g.config.Layers, &c.Rec, c.Snapshot, committed, tree)
	if err != nil {
		return err
	}
	to := gitrefs.Box(c.Rec.ID, WorkRef)
	if c.Work = c.Tip; len(paths) == 0 {
		return c.Repo.SetRef(ctx, to, c.Work, old, "coppice: all is committed in "+c.Rec.Name)
	}
	got, err := c.Repo.Snapshot(ctx, repo.Snapshot{Base: c.Tip, Tree: tree, Paths: paths, Author: Person(ctx, c.Repo),
		Message: "Uncommitted changes of sandbox " + c.Rec.Name, To: to, Old: old})
	c.Work, c.Skipped = got.Commit, got.Skipped
	return err
}

// LayOut copies into tree the files of a snapshot of a sandbox that can differ from a commit, and returns their
// paths: those that changed on disk since the start of the sandbox, and those that its commits changed.
func LayOut(
	ctx context.Context, layers Layers, rec *meta.Sandbox, at timeline.SnapshotID, committed []repo.Change, tree *os.Root,
) (_ []string, err error) {
	top := rec.Repo.Top
	if rec.Tier == workspace {
		top = "/" // the sandbox consists of only the work tree
	}
	into, err := tree.Open(".")
	if err != nil {
		return nil, fault.Wrap(err, "copy uncommitted changes")
	}
	defer into.Close()
	o := &outlay{top: top, tree: into, seen: map[string]bool{}, laid: map[string]bool{}, left: repo.DefaultLimits.Total}
	for _, ch := range committed {
		o.add(ch.Path)
	}
	err = layers.Changed(ctx, rec, at, top, o.changed, func(files *layer.View) error { return o.copy(ctx, files) })
	if err != nil {
		return nil, err
	}
	return o.paths, nil
}

// outlay copies files of a snapshot to a directory of the daemon. Symbolic links are copied, never followed.
type outlay struct {
	at   *layer.Cursor
	top  string // path of the work tree in the files of the snapshot
	tree *os.File

	paths []string
	seen  map[string]bool // paths
	laid  map[string]bool // copied files, and directories whose rules were copied
	held  int             // total length of the paths in bytes
	left  int64           // bytes that may still be copied
}

// add adds a path, unless it is in a git directory.
func (o *outlay) add(p string) {
	if !o.seen[p] && !strings.Contains("/"+p+"/", "/.git/") {
		o.seen[p] = true
		o.paths, o.held = append(o.paths, p), o.held+len(p)
	}
}

// changed adds a path that changed on disk.
func (o *outlay) changed(ch *layer.Change) error {
	p := strings.TrimPrefix(strings.TrimPrefix(ch.Path, o.top), "/")
	if p != "" && (ch.Type != "dir" || ch.Kind == layer.Removed || ch.Was != "dir" && ch.Was != "") {
		o.add(p)
	}
	if len(o.paths) > repo.DefaultLimits.Changes || o.held > limit.TreePaths {
		return fault.New(fault.TooLarge, "too many changed paths: the limit is %d paths and %d bytes of paths",
			repo.DefaultLimits.Changes, limit.TreePaths).
			WithHint("have git ignore generated files, for example: echo build/ >>.gitignore")
	}
	return nil
}

// copy copies the added paths.
func (o *outlay) copy(ctx context.Context, files *layer.View) error {
	o.at = files.Cursor()
	defer o.at.Close()
	slices.Sort(o.paths) // so that paths in one directory are adjacent
	for _, p := range o.paths {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if repo.CheckPath(p) != nil {
			continue // the snapshot reports it as skipped
		}
		if err := o.put(ctx, p); err != nil {
			return fault.Wrap(err, "copy uncommitted changes")
		}
	}
	return nil
}

// put copies one path, and from its parent directories the files that determine which files are ignored and that a
// directory is a repository.
func (o *outlay) put(ctx context.Context, p string) error {
	if err := o.above(ctx, path.Dir(p)); err != nil {
		return err
	}
	entry, err := o.at.Lookup(ctx, path.Join(o.top, p))
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	switch entry.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return o.file(ctx, p, &entry)
	case unix.S_IFLNK:
		if err := dirfd.MkdirAll(o.tree, path.Dir(p), 0o700); err != nil {
			return err
		}
		return dirfd.At(o.tree, p, func(dir int, name string) error { return unix.Symlinkat(entry.Link, dir, name) })
	case unix.S_IFDIR:
		return dirfd.MkdirAll(o.tree, p, 0o700)
	}
	return nil
}

// above copies the ignore rules of parent directories, and marks nested repositories.
func (o *outlay) above(ctx context.Context, dir string) error {
	for ; !o.laid[dir]; dir = path.Dir(dir) {
		o.laid[dir] = true
		rules := path.Join(dir, ".gitignore")
		entry, err := o.at.Lookup(ctx, path.Join(o.top, rules))
		if err == nil && entry.Mode&unix.S_IFMT == unix.S_IFREG && entry.Size <= limit.RuleFile {
			err = o.file(ctx, rules, &entry)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if dir == "." {
			return nil
		}
		_, err = o.at.Lookup(ctx, path.Join(o.top, dir, ".git"))
		if err == nil {
			err = dirfd.MkdirAll(o.tree, path.Join(dir, ".git"), 0o700)
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	return nil
}

// file copies a regular file. Only the executable bit of its mode is kept.
func (o *outlay) file(ctx context.Context, p string, entry *layer.Entry) (err error) {
	if o.laid[p] {
		return nil
	}
	o.laid[p] = true
	limits := repo.DefaultLimits
	if o.left -= entry.Size; entry.Size > limits.Object || o.left < 0 {
		return fault.New(fault.TooLarge, "file %q is too large: %d bytes; the limit is %d for a file and %d in total",
			message.Clean(p), entry.Size, limits.Object, limits.Total).
			WithHint("have git ignore it: echo /%s >>.gitignore", message.Clean(p))
	}
	if err := dirfd.MkdirAll(o.tree, path.Dir(p), 0o700); err != nil {
		return err
	}
	from, err := o.at.Open(ctx, entry.Path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := dirfd.OpenFile(o.tree, p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600|os.FileMode(entry.Mode&0o100))
	if err != nil {
		return err
	}
	return errors.Join(copyAll(ctx, to, from), to.Close())
}

// copyAll copies a file in pieces.
func copyAll(ctx context.Context, to, from *os.File) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := io.CopyN(to, from, 16<<20)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
