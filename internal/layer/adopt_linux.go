package layer

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Adopt makes the directories of parts, overlay uppers that are no longer mounted, into layer id, by renaming them:
// the cost does not depend on their content. Afterwards the parts' directories are gone. The layer holds what changed
// against the snapshot that the live root was mounted on. After a failure all directories are back in their places,
// unless the error joins an error of undoing. After such an error, or a crash, call Unadopt.
//
// A part is moved only after the directories that lead to its new place are durable. A power loss then leaves the
// part in its old place or in the new one, in whatever order the file system writes renames.
func (s *Store) Adopt(ctx context.Context, id timeline.LayerID, parts []rootspec.Part) (err error) {
	if !validID(id) {
		return fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	b, err := s.begin(ctx, id)
	if err != nil {
		return fault.Wrap(err, "adopt layer %s", id)
	}
	e := &emitter{putter: putter{ctx: ctx}}
	e.s = s
	defer b.undo.Run(&err)
	// Before a part is moved: the next Open removes everything in tmp.
	if err := b.publish(ctx); err != nil {
		return fault.Wrap(err, "adopt layer %s", id)
	}
	defer b.keep() // from here on the layer may hold parts, which must not be removed
	if err := b.adoptAll(e, parts); err != nil {
		moved := slices.DeleteFunc(slices.Clone(parts), func(p rootspec.Part) bool {
			_, err := os.Lstat(p.Dir)
			return err == nil
		})
		return errors.Join(err, s.Unadopt(context.WithoutCancel(ctx), id, moved))
	}
	return nil
}

// adoptAll moves the directories of parts into the published layer.
func (b *building) adoptAll(e *emitter, parts []rootspec.Part) error {
	if err := b.s.fs.Sync(b.s.top); err != nil {
		return fault.Wrap(err, "adopt layer %s", b.id)
	}
	durable := map[string]bool{}
	for _, p := range sortedParts(parts) {
		if err := b.adopt(e, p, durable); err != nil {
			return fault.Wrap(err, "adopt %s as layer %s", p.Dir, b.id)
		}
	}
	return nil
}

// adopt moves one part's directory into the layer. durable holds the directories of the layer that are already
// durable in their places.
func (b *building) adopt(e *emitter, p rootspec.Part, durable map[string]bool) error {
	from, err := dirfd.OpenDir(unix.AT_FDCWD, filepath.Dir(p.Dir))
	if err != nil {
		return err
	}
	defer unix.Close(from)
	name := filepath.Base(p.Dir)
	clean := path.Clean(p.Path)
	if clean == "/" {
		closeAll(b.fs)
		b.fs = -1
		e.rootDone = true
		if err := b.s.fs.Rmdir(b.dir, "fs"); err != nil {
			return err
		}
		return b.s.fs.Rename(from, name, b.dir, "fs")
	}
	if b.fs < 0 {
		if b.fs, err = dirfd.OpenDir(b.dir, "fs"); err != nil {
			return err
		}
	}
	to, err := e.leadTo(b.fs, path.Dir(clean))
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := b.secure(path.Dir(clean), durable); err != nil {
		return err
	}
	last := path.Base(clean)
	// The place may exist as an empty directory: the mount point of the part.
	if err := b.s.fs.Rmdir(to, last); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return b.s.fs.Rename(from, name, to, last)
}

// secure makes the directory p of the layer, and those above it, durable in their places.
func (b *building) secure(p string, durable map[string]bool) error {
	if durable[p] {
		return nil
	}
	if p == "/" {
		durable[p] = true
		return b.s.fs.Sync(b.dir)
	}
	up := path.Dir(p)
	if err := b.secure(up, durable); err != nil {
		return err
	}
	dir, err := dirfd.OpenLong(b.fs, path.Join(".", up), dirfd.DirFlags, dirfd.Beneath)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	durable[p] = true
	return b.s.fs.Sync(dir)
}

// leadTo makes p and the directories above it as skeletons, and opens p.
func (e *emitter) leadTo(fs int, p string) (int, error) {
	dst, err := e.skeleton(fs, path.Join(p, "x"))
	if err != nil {
		return -1, err
	}
	up, err := dirfd.OpenDir(dst, "..")
	unix.Close(dst)
	if err != nil {
		return -1, err
	}
	if err := e.s.fs.Rmdir(up, "x"); err != nil {
		unix.Close(up)
		return -1, err
	}
	return up, nil
}

// Unadopt undoes Adopt, wherever a crash or an error interrupted it, and can be repeated: it moves the layer's
// directories back to their parts and removes the layer. It fails with os.ErrExist if a part has a new directory in
// the place of its old one, unless the directory in the layer is empty.
func (s *Store) Unadopt(ctx context.Context, id timeline.LayerID, parts []rootspec.Part) error {
	for _, p := range slices.Backward(sortedParts(parts)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.giveBack(id, path.Clean(p.Path), p.Dir); err != nil {
			return fault.Wrap(err, "return %s from layer %s", p.Dir, id)
		}
	}
	return s.Remove(ctx, id)
}

// giveBack moves the directory at of a layer back to dst, if Adopt moved it. The move is durable when giveBack
// returns, and so before the old parent of the directory is moved or removed.
func (s *Store) giveBack(id timeline.LayerID, at, dst string) error {
	from, src, err := s.placeOf(id, at)
	if from < 0 {
		return err
	}
	defer unix.Close(from)
	to, err := dirfd.OpenDir(unix.AT_FDCWD, filepath.Dir(dst))
	if errors.Is(err, os.ErrNotExist) {
		return nil // the sandbox was removed
	}
	if err != nil {
		return err
	}
	defer unix.Close(to)
	switch _, err := dirfd.Lstat(to, filepath.Base(dst)); {
	case err == nil: // not moved, or already back: the layer has an empty directory at most
		if err := s.fs.Rmdir(from, src); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return s.fs.Sync(to) // the process that moved it back may have died before it synced
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	err = s.fs.Rename(from, src, to, filepath.Base(dst))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.fs.Sync(to)
}

// placeOf opens the parent directory of the part at in a layer, if Adopt moved the part there; otherwise it returns
// -1. The sandbox wrote the path: if a component is a link or a file, Adopt did not move the part there.
func (s *Store) placeOf(id timeline.LayerID, at string) (dir int, name string, err error) {
	dir, err = dirfd.OpenDir(s.top, string(id))
	if err != nil || at == "/" {
		return dir, "fs", ignore(err, unix.ENOENT) // the layer does not exist yet, or no longer
	}
	defer unix.Close(dir)
	in, err := dirfd.OpenLong(dir, path.Join("fs", path.Dir(at)), dirfd.DirFlags, dirfd.Beneath)
	return in, path.Base(at), ignore(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP)
}

// ignore returns err, or nil if it is one of these.
func ignore(err error, these ...unix.Errno) error {
	if slices.ContainsFunc(these, func(e unix.Errno) bool { return errors.Is(err, e) }) {
		return nil
	}
	return err
}

// sortedParts puts outer parts before inner ones.
func sortedParts(parts []rootspec.Part) []rootspec.Part {
	out := slices.Clone(parts)
	slices.SortStableFunc(out, func(a, b rootspec.Part) int {
		return strings.Count(path.Clean(a.Path)+"/", "/") - strings.Count(path.Clean(b.Path)+"/", "/")
	})
	if i := slices.IndexFunc(out, func(p rootspec.Part) bool { return path.Clean(p.Path) == "/" }); i > 0 {
		root := out[i]
		out = slices.Insert(slices.Delete(out, i, i+1), 0, root)
	}
	return out
}
