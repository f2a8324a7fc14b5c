//go:build linux

package worktree

import (
	"context"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/repo"
	"github.com/coppice-dev/coppice/internal/rootfs"
)

// readIndex reads the git index of a base: a file of a layer, which does not change. TooLarge: it exceeds
// limit.IndexBytes.
func readIndex(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fault.Wrap(err, "read the index of a base")
	}
	if info.Size() > limit.IndexBytes {
		return nil, fault.New(fault.TooLarge, "the index of a base is too large: %d bytes; the limit is %d", info.Size(),
			int64(limit.IndexBytes)).
			WithHint("create the sandbox without the repository: coppice create --no-repo")
	}
	text, err := io.ReadAll(io.LimitReader(f, limit.IndexBytes))
	return text, fault.Wrap(err, "read the index of a base")
}

// writer writes the layer of a tree.
type writer struct {
	*Tree
	from     repo.OID    // the commit of the base below; "" if the whole tree is written
	index    []byte      // the git index of that base
	lower    *layer.View // the layers below the tree; nil if there are none, or the host
	progress func(done, total int64)
}

// write writes the files of the tree and the git index, and reports what it wrote.
func (w *writer) write(ctx context.Context, b *layer.Builder) (out repo.CheckedOut, err error) {
	at := rel(w.At)
	if err := leadTo(b, w.At, w.look); err != nil {
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
	defer func() { _ = to.Close() }() // closing a directory never fails
	out, err = w.Checkout(ctx, repo.Checkout{
		Commit: w.Start, From: w.from, To: to, Progress: w.progress,
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
	return out, w.Index(ctx, repo.Index{Written: out, Commit: w.Base, Before: w.index, UID: w.UID, GID: w.GID, To: git})
}

// look returns the metadata of a parent directory of the work tree.
func (w *writer) look(dir string) (layer.DirMeta, error) {
	if w.Host {
		l, err := rootfs.LookOf(dir)
		return layer.DirMeta{Mode: l.Mode, UID: l.UID, GID: l.GID, Mtime: l.Mtime, Skeleton: true}, err
	}
	return lookIn(w.lower, dir)
}

// topLook returns the metadata of the top of the work tree: as on the host, but writable by the owner.
func (w *writer) topLook() (layer.DirMeta, error) {
	l, err := rootfs.LookOf(w.Top)
	return layer.DirMeta{Mode: l.Mode | 0o700, Mtime: l.Mtime}, err
}

// lookIn returns the metadata of a directory in a view, or default metadata if it has no such directory.
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
		err = fault.New(fault.Conflict, "cannot place the repository: %s is not a directory in the base", dir)
	}
	return layer.DirMeta{Mode: at.Mode & 0o7777, UID: at.UID, GID: at.GID, Mtime: time.Unix(0, at.Mtime), Skeleton: true},
		err
}

// leadTo creates the parent directories of a path, with the metadata that look returns.
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

// rel converts a path inside to a path of a layer.
func rel(p string) string {
	if p == "/" {
		return "."
	}
	return strings.TrimPrefix(p, "/")
}
