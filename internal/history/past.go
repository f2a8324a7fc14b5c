//go:build linux

package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/boxfs"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// Past is the files of a snapshot, read from its layers without starting the sandbox. Links are resolved within the
// snapshot.
type Past struct {
	v    *layer.View
	id   timeline.SnapshotID
	mask int // index in v of the layer that hides paths; its regular files are the paths of decoys, and are not shown
}

// hides reports whether e exists only as the path of a decoy.
func (p *Past) hides(e *layer.Entry) bool {
	return e.Layer == p.mask && e.Mode&unix.S_IFMT == unix.S_IFREG
}

// lookup is View.Lookup without the paths of decoys.
func (p *Past) lookup(name string) (layer.Entry, error) {
	e, err := p.v.Lookup(name)
	if err == nil && p.hides(&e) {
		return layer.Entry{}, fault.Wrap(fs.ErrNotExist, "read %q", name)
	}
	return e, err
}

// OpenPast opens the files of a snapshot.
func (h *Histories) OpenPast(ctx context.Context, name, ref string) (*Past, error) {
	rec, t, err := h.Find(ctx, name)
	if err != nil {
		return nil, err
	}
	id, err := t.Resolve(ref, h.config.Now())
	if err != nil {
		return nil, err
	}
	var parts []rootspec.Part
	root, err := h.config.Sandboxes.Root(ctx, &rec)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if root != nil {
		parts = root.Parts
	}
	st, _, err := h.config.Masks.Stack(ctx, &rec, id)
	if err != nil {
		return nil, err
	}
	mask := -1
	if st.Mask != "" {
		mask = slices.Index(st.Layers, st.Mask)
	}
	return &Past{h.config.Layers.View(st, rootspec.Places(parts)...), id, mask}, nil
}

// Close releases the files. It never fails.
func (p *Past) Close() error { return nil }

// maxPastLinks is how many links are followed at most in a path.
const maxPastLinks = 40

// MaxPastSteps is how many names Past looks up at most to find a file.
const MaxPastSteps = 4096

// find looks up a path. It follows links in it; the last component only if follow is set.
func (p *Past) find(name string, follow bool) (layer.Entry, error) {
	left := strings.Split(name, "/")
	at, links, steps := "/", 0, 0
	for i := 0; i < len(left); i++ {
		if steps++; steps > MaxPastSteps {
			return layer.Entry{},
				fault.New(fault.TooLarge, "read %.100q: the path has more than %d names", name, MaxPastSteps).
					WithHint("use a path with fewer directories and links")
		}
		switch left[i] {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, left[i])
		e, err := p.lookup(next)
		if err != nil {
			return e, err
		}
		if e.Mode&unix.S_IFMT != unix.S_IFLNK || !follow && i == len(left)-1 {
			at = next
			continue
		}
		if links++; links > maxPastLinks {
			return e, fault.New(fault.Invalid, "read %q: too many symbolic links", name).WithHint("the links form a loop")
		}
		if path.IsAbs(e.Link) {
			at = "/"
		}
		left = append(strings.Split(e.Link, "/"), left[i+1:]...)
		i = -1
	}
	return p.lookup(at)
}

func (p *Past) info(name string, e *layer.Entry) wire.FileInfo {
	i := wire.FileInfo{Mode: e.Mode & 0o7777, Mtime: time.Unix(0, e.Mtime).UTC(), UID: e.UID, GID: e.GID, Target: e.Link}
	switch e.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		i.Type, i.Size = wire.FileRegular, e.Size
		i.ETag = fmt.Sprintf(`"%s-%x-%x"`, p.id, e.Layer, e.Ino)
	case unix.S_IFDIR:
		i.Type = wire.FileDir
	case unix.S_IFLNK:
		i.Type = wire.FileLink
	case unix.S_IFIFO:
		i.Type = wire.FileFIFO
	case unix.S_IFSOCK:
		i.Type = wire.FileSocket
	case unix.S_IFCHR:
		i.Type = wire.FileChar
	default:
		i.Type = wire.FileBlock
	}
	i.SetName(name)
	return i
}

// Stat describes a file.
func (p *Past) Stat(name string, follow bool) (wire.FileInfo, error) {
	e, err := p.find(name, follow)
	if err != nil {
		return wire.FileInfo{}, err
	}
	return p.info(name, &e), nil
}

// Open opens a regular file for reading.
func (p *Past) Open(name string) (wire.FileInfo, io.ReadSeekCloser, error) {
	e, err := p.find(name, true)
	if err != nil {
		return wire.FileInfo{}, nil, err
	}
	f, err := p.v.Open(e.Path)
	if err != nil {
		return wire.FileInfo{}, nil, err
	}
	return p.info(name, &e), f, nil
}

// List lists a directory like boxfs.Root.List.
func (p *Past) List(ctx context.Context, name string, depth int) (wire.FileList, error) {
	list := boxfs.NewListing(boxfs.DefaultLimits.List)
	e, err := p.find(name, true)
	if err != nil {
		return list.FileList, err
	}
	if depth == 0 {
		depth = 1
	}
	err = p.walk(ctx, e.Path, func(at string, e *layer.Entry, x layer.Visit) error {
		if err := list.Add(p.info(path.Join(strings.Trim(name, "/"), at), e)); err != nil {
			return err
		}
		if e.IsDir() && x.Level() == depth {
			return fs.SkipDir
		}
		return nil
	})
	return list.FileList, fault.Wrap(err, "list %q", name)
}

// walk calls fn for each entry below a directory, parents first, with its relative name.
func (p *Past) walk(ctx context.Context, dir string, fn func(at string, e *layer.Entry, x layer.Visit) error) error {
	err := p.v.Below(ctx, dir, func(x layer.Visit) error {
		e := x.Entry()
		if p.hides(&e) {
			return nil
		}
		return fn(strings.TrimPrefix(strings.TrimPrefix(e.Path, dir), "/"), &e, x)
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// TarTo writes an archive of a directory or file like boxfs.Root.TarTo.
func (p *Past) TarTo(ctx context.Context, name string, w io.Writer) error {
	e, err := p.find(name, true)
	if err != nil {
		return err
	}
	pk := boxfs.NewPacker(w)
	if err := p.pack(ctx, pk, packedAs(name, &e), &e, byPath{p.v, e.Path}); err != nil {
		return fault.Wrap(err, "pack %q", name)
	}
	if e.IsDir() {
		err := p.walk(ctx, e.Path, func(at string, e *layer.Entry, x layer.Visit) error { return p.pack(ctx, pk, at, e, x) })
		if err != nil {
			return fault.Wrap(err, "pack %q", name)
		}
	}
	return pk.Close()
}

// packedAs returns the name of the top entry of an archive; that of a directory is ".".
func packedAs(name string, e *layer.Entry) string {
	if e.IsDir() {
		return "."
	}
	return path.Base(name)
}

// contents reads the content of an entry.
type contents interface {
	Xattrs() (map[string][]byte, error)
	Open() (*os.File, error)
}

// byPath reads the content of the entry at a path of a view.
type byPath struct {
	v    *layer.View
	path string
}

func (b byPath) Xattrs() (map[string][]byte, error) { return b.v.Xattrs(b.path) }
func (b byPath) Open() (*os.File, error)            { return b.v.Open(b.path) }

func (p *Past) pack(ctx context.Context, pk *boxfs.Packer, at string, e *layer.Entry, from contents) error {
	it := boxfs.Item{
		Name: at, Mode: e.Mode, UID: e.UID, GID: e.GID, Size: e.Size, Mtime: time.Unix(0, e.Mtime), Target: e.Link,
		Same: boxfs.FileID{Dev: uint64(e.Layer), Ino: e.Ino}, Links: e.Nlink,
	}
	if k := e.Mode & unix.S_IFMT; k == unix.S_IFREG || k == unix.S_IFDIR {
		var err error
		if it.Xattrs, err = from.Xattrs(); err != nil {
			return err
		}
	}
	return pk.Add(ctx, it, func() (io.ReadCloser, error) { return from.Open() })
}
