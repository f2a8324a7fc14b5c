package layer

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/archive"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// LayerOptions describes how an imported layer is placed on the existing layers.
type LayerOptions struct {
	TarOptions
	// DiffID is the expected digest of the uncompressed archive.
	DiffID string
	// Below returns the entry below the layer at an absolute path, or NotFound. The layer changes only the content of
	// a directory that exists already: the archive does not say which directories only lead to changes. nil: nothing
	// exists.
	Below func(path string) (Entry, error)
	// From and To are absolute paths: an entry of the archive at or below From is placed at To. "": nothing is moved.
	From, To string
}

// ImportLayer makes layer id from a layer that WriteTar wrote, on this host or another one, with its whiteouts and
// opaque directories; it may be compressed. It returns Invalid if the digest is not opts.DiffID. Otherwise it is as
// ImportTar.
func (s *Store) ImportLayer(
	ctx context.Context, id timeline.LayerID, r io.Reader, opts LayerOptions,
) (rep Report, err error) {
	if !validID(id) {
		return rep, fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	opts.TarOptions = opts.or()
	b, err := s.begin(ctx, id)
	if err != nil {
		return rep, fault.Wrap(err, "import a layer")
	}
	defer b.undo.Run(&err)
	plain, closeFn, err := archive.Open(ctx, r, archive.Limits{Bytes: opts.MaxBytes, Window: limit.ArchiveWindow})
	if err != nil {
		return rep, fault.Wrap(err, "import a layer")
	}
	defer closeFn()
	sum := sha256.New()
	plain = io.TeeReader(plain, sum)
	t := &untar{putter: putter{ctx: ctx}, opts: opts.TarOptions, root: b.fs, parent: -1, top: newDir(),
		layered: &layered{opts}}
	t.s, t.lenient, t.remember, t.linkDir = s, true, true, -1
	defer t.leave()
	if err := t.all(tar.NewReader(plain)); err != nil {
		return rep, fault.Wrap(err, "import a layer")
	}
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return rep, fault.Wrap(archive.Damaged(err), "import a layer")
	}
	if got := format.Digest(sum.Sum(nil)); got != opts.DiffID {
		return rep, fault.New(fault.Invalid, "the layer has digest %s, expected %.80s", got, opts.DiffID)
	}
	if err := t.finishDirs(); err != nil {
		return rep, fault.Wrap(err, "import a layer")
	}
	return t.rep, fault.Wrap(b.finish(ctx), "import a layer")
}

// layered is the additional state of an import of a layer.
type layered struct{ LayerOptions }

// Marks of layers in archives.
const (
	whiteoutMark = ".wh."
	opaqueMark   = ".wh..wh..opq"
)

// mark renames an entry to its place on this host. done reports that nothing is left to do: the entry was a mark,
// which is now applied, or a directory above From.
func (t *untar) mark(h *tar.Header) (done bool, err error) {
	name, leads := t.layered.moved(h.Name)
	if leads && h.Typeflag == tar.TypeDir {
		return true, nil
	}
	h.Name = name
	if h.Typeflag == tar.TypeLink {
		h.Linkname, _ = t.layered.moved(h.Linkname)
	}
	dir, base := path.Split(strings.TrimSuffix(name, "/"))
	if h.Typeflag != tar.TypeReg || !strings.HasPrefix(base, whiteoutMark) {
		return false, nil
	}
	if err := archive.Fits(name); err != nil {
		return true, err
	}
	parts, _, ok := archive.Name(dir)
	gone := strings.TrimPrefix(base, whiteoutMark)
	if !ok || base != opaqueMark && (gone == "" || gone == "." || gone == "..") {
		t.note(h.Name, "left out: invalid whiteout")
		return true, nil
	}
	at := strings.Join(parts, "/")
	if ok, err := t.enter(at); err != nil || !ok {
		return true, err
	}
	if base == opaqueMark {
		t.at.opaque = true
		return true, nil
	}
	if ok, err := t.clear(gone, h); err != nil || !ok {
		return true, err
	}
	return true, fault.Wrap(t.whiteout(t.parent, gone), "write a whiteout for %q", gone)
}

// moved returns the new name of an entry. leads reports that it is a directory above From, which this host has
// already.
func (l *layered) moved(name string) (_ string, leads bool) {
	from, to := strings.Trim(l.From, "/"), strings.Trim(l.To, "/")
	if from == to || from == "" || to == "" {
		return name, false
	}
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	switch {
	case clean == from || strings.HasPrefix(clean, from+"/"):
		return to + strings.TrimPrefix(clean, from), false
	case strings.HasPrefix(from, clean+"/") || clean == "":
		return name, true
	}
	return name, false
}

// layeredDir sets the metadata of a directory to that of the directory below, unless the layer hides that one.
func (t *untar) layeredDir(d *tarDir, p string, fd int) error {
	if !d.opaque && t.layered.Below != nil {
		e, err := t.layered.Below("/" + p)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if err == nil && e.IsDir() {
			st := unix.Stat_t{Mode: e.Mode & 0o7777, Uid: e.UID, Gid: e.GID, Mtim: unix.NsecToTimespec(e.Mtime)}
			if err := t.s.fs.SetXattr(fd, xattrSkeleton, []byte("y")); err != nil {
				return err
			}
			return t.dirMetaOf(&st, &attrs{}, fd, false)
		}
	}
	return t.dirMetaOf(d.stat(), &d.a, fd, d.opaque)
}
