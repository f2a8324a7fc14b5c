//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// Past are the files of a snapshot, read from its layers: nothing is started. Links
// are followed within it.
type Past struct {
	v    *layer.View
	id   timeline.SnapshotID
	mask int // which layer of v hides paths; its files are the places of decoys, and not there
}

// hides reports whether e is nothing but the place of a decoy.
func (p *Past) hides(e *layer.Entry) bool {
	return e.Layer == p.mask && e.Mode&unix.S_IFMT == unix.S_IFREG
}

// lookup is View.Lookup without the places of decoys.
func (p *Past) lookup(name string) (layer.Entry, error) {
	e, err := p.v.Lookup(name)
	if err == nil && p.hides(&e) {
		return layer.Entry{}, fault.Wrap(fs.ErrNotExist, "look at %q", name)
	}
	return e, err
}

// OpenPast opens the files of a snapshot.
func (e *Engine) OpenPast(ctx context.Context, name, ref string) (*Past, error) {
	rec, h, err := e.find(ctx, name)
	if err != nil {
		return nil, err
	}
	id, err := h.Resolve(ref, e.Now())
	if err != nil {
		return nil, err
	}
	var parts []rootspec.Part
	if e.presented(&rec) {
		drv, live, err := e.live(ctx, &rec)
		if err != nil {
			return nil, err
		}
		if parts, err = drv.Parts(live); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	st, _, err := e.stack(ctx, &rec, id)
	if err != nil {
		return nil, err
	}
	mask := -1
	if st.Mask != "" {
		mask = slices.Index(st.Layers, st.Mask)
	}
	return &Past{e.Layers.View(st, inside(parts)...), id, mask}, nil
}

// Close lets go of the files.
func (p *Past) Close() error { return nil }

// maxPastLinks is how many links are followed on the way to a file.
const maxPastLinks = 40

// find looks a path up; links on the way are followed, the last one only if asked.
func (p *Past) find(name string, follow bool) (layer.Entry, error) {
	left := strings.Split(name, "/")
	at, links := "/", 0
	for i := 0; i < len(left); i++ {
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
			return e, fault.New(fault.Invalid, "look at %q: too many links on the way", name).WithHint("they lead in circles")
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

// Stat tells of a file.
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

// List gives what is in a directory, as boxfs.Root.List.
func (p *Past) List(ctx context.Context, name string, depth int) (wire.FileList, error) {
	list := wire.FileList{Files: []wire.FileInfo{}}
	e, err := p.find(name, true)
	if err != nil {
		return list, err
	}
	if depth == 0 {
		depth = 1
	}
	err = p.walk(ctx, e.Path, "", depth, func(at string, e *layer.Entry) error {
		if len(list.Files) >= boxfs.DefaultLimits.List {
			return fault.New(fault.Invalid, "there are more than %d entries", boxfs.DefaultLimits.List).
				WithHint("look at a directory further down, or less deep; or get it as an archive (files/tar)")
		}
		list.Files = append(list.Files, p.info(path.Join(strings.Trim(name, "/"), at), e))
		return nil
	})
	return list, fault.Wrap(err, "list %q", name)
}

// walk calls fn for what is below a directory, parents first.
func (p *Past) walk(ctx context.Context, dir, at string, depth int, fn func(string, *layer.Entry) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	list, err := p.v.ReadDir(ctx, dir)
	if err != nil {
		return err
	}
	for i := range list {
		e := &list[i]
		if p.hides(e) {
			continue
		}
		name := path.Join(at, path.Base(e.Path))
		if err := fn(name, e); err != nil {
			return err
		}
		if e.IsDir() && depth != 1 {
			if err := p.walk(ctx, e.Path, name, depth-1, fn); err != nil {
				return err
			}
		}
	}
	return nil
}

// TarTo writes an archive of a directory or file, as boxfs.Root.TarTo.
func (p *Past) TarTo(ctx context.Context, name string, w io.Writer) error {
	e, err := p.find(name, true)
	if err != nil {
		return err
	}
	pk := boxfs.NewPacker(w)
	if !e.IsDir() {
		err = p.pack(ctx, pk, path.Base(name), &e)
	} else if err = p.pack(ctx, pk, ".", &e); err == nil {
		err = p.walk(ctx, e.Path, "", -1, func(at string, e *layer.Entry) error { return p.pack(ctx, pk, at, e) })
	}
	if err != nil {
		return fault.Wrap(err, "pack %q", name)
	}
	return pk.Close()
}

func (p *Past) pack(ctx context.Context, pk *boxfs.Packer, at string, e *layer.Entry) error {
	it := boxfs.Item{
		Name: at, Mode: e.Mode, UID: e.UID, GID: e.GID, Size: e.Size, Mtime: time.Unix(0, e.Mtime), Target: e.Link,
		Same: boxfs.FileID{Dev: uint64(e.Layer), Ino: e.Ino}, Links: e.Nlink,
	}
	if k := e.Mode & unix.S_IFMT; k == unix.S_IFREG || k == unix.S_IFDIR {
		var err error
		if it.Xattrs, err = p.v.Xattrs(e.Path); err != nil {
			return err
		}
	}
	return pk.Add(ctx, it, func() (io.ReadCloser, error) { return p.v.Open(e.Path) })
}
