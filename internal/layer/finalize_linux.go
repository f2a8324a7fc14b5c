package layer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer/format"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// manifestName is the file beside fs that marks a layer as finalized.
const manifestName = "manifest"

// Finalized is the result of Finalize.
type Finalized struct {
	// Digest is that of the manifest: "sha256:" and hex digits; empty: it has none, see Finalize.
	Digest string
	// DiffID is that of the layer as an OCI tar stream, uncompressed; empty: it has none,
	// see limit.ManifestHoles and format.NoHeader.
	DiffID  string
	Size    int64 // content bytes, each file once
	Entries int
}

// Finalize finalizes a layer: it hashes it, writes its manifest and flushes both to the medium. When it returns,
// the layer survives a power loss, and Verify can detect changes. Finalizing twice is harmless.
//
// A layer whose manifest would be larger than limit.ManifestEntries and limit.ManifestBytes allow, or that no
// manifest can describe, gets none: it is flushed, so that it survives a power loss, but cannot be verified
// or exported.
func (s *Store) Finalize(ctx context.Context, id timeline.LayerID) (Finalized, error) {
	out, err := s.finalize(ctx, id)
	return out, fault.Wrap(err, "finalize layer %s", id)
}

func (s *Store) finalize(ctx context.Context, id timeline.LayerID) (out Finalized, err error) {
	if !s.Has(id) {
		return out, fault.New(fault.NotFound, "layer %s not found", id)
	}
	dir, err := dirfd.OpenDir(s.top, string(id))
	if err != nil {
		return out, err
	}
	defer unix.Close(dir)
	budget := int64(limit.ManifestHoles)
	entries, err := s.describe(ctx, id, s.cleanNoise, func(_ string, st *unix.Stat_t) form {
		holes := st.Size - st.Blocks*512
		if holes < format.SparseBlock {
			return whole // a small file may be stored in its inode, without blocks
		}
		if holes > budget {
			return blocks
		}
		budget -= holes
		return whole
	})
	if indescribable(err) {
		return Finalized{}, errors.Join(s.fs.SyncFS(dir), s.fs.Sync(s.top))
	}
	if err != nil {
		return out, err
	}
	if !slices.ContainsFunc(entries, isSparse) {
		out.DiffID, err = s.diffID(ctx, id, entries)
		if _, ok := errors.AsType[*format.NoHeader](err); err != nil && !ok {
			return out, err
		}
	}
	out.Entries = len(entries)
	for i := range entries {
		out.Size += entries[i].Size
	}
	// Sync the tree first: a manifest must not describe content that could still be lost.
	if err := s.fs.SyncFS(dir); err != nil {
		return out, err
	}
	out.Digest, err = s.writeManifest(ctx, dir, entries)
	return out, err
}

// indescribable reports whether an error of describe is caused by the layer's content, so
// that a retry cannot help: the layer is too large, or an entry has more attribute names than
// listxattr(2) can list.
func indescribable(err error) bool {
	return fault.Is(err, fault.TooLarge) || fault.Is(err, fault.Unsupported) || errors.Is(err, unix.E2BIG)
}

// writeManifest puts the manifest in its place, and returns its digest.
func (s *Store) writeManifest(ctx context.Context, dir int, entries []format.Entry) (digest string, err error) {
	err = vfs.Replace(s.fs, dir, manifestName, func(w *vfs.Writer) error {
		digest, err = encodeTo(ctx, w, entries)
		return err
	})
	if err != nil {
		return "", err
	}
	return digest, s.fs.Sync(s.top)
}

// encodeTo writes a manifest in pieces and not from memory: escaped, hostile names and attributes take three times
// their length.
func encodeTo(ctx context.Context, w io.Writer, entries []format.Entry) (digest string, err error) {
	sum := sha256.New()
	b := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	if err := errors.Join(format.Encode(ctx, b, entries), b.Flush()); err != nil {
		return "", err
	}
	return format.Digest(sum.Sum(nil)), nil
}

// Finalized reports whether the layer has a manifest.
func (s *Store) Finalized(id timeline.LayerID) bool {
	var st unix.Stat_t
	return validID(id) && unix.Lstat(filepath.Join(s.dir, string(id), manifestName), &st) == nil
}

// Manifest returns the manifest of a finalized layer: its entries and its digest.
func (s *Store) Manifest(ctx context.Context, id timeline.LayerID) ([]format.Entry, string, error) {
	if !s.Has(id) {
		return nil, "", fault.New(fault.NotFound, "layer %s not found", id)
	}
	data, err := os.ReadFile(filepath.Join(s.dir, string(id), manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", fault.New(fault.NotFound, "layer %s is not finalized", id)
	}
	if err != nil {
		return nil, "", fault.Wrap(err, "read manifest of layer %s", id)
	}
	entries, err := format.Parse(ctx, data)
	if err != nil {
		return nil, "", fault.Wrap(err, "read manifest of layer %s", id)
	}
	sum := sha256.Sum256(data)
	return entries, format.Digest(sum[:]), nil
}

// cleanNoise removes overlayfs's own attributes, which an adopted upper has.
func (s *Store) cleanNoise(fd int) error {
	keys, err := xattrSource{fd: fd}.keys()
	if err != nil {
		return err
	}
	for _, key := range keys {
		if !strings.HasPrefix(key, xattrOverlay) || strings.HasPrefix(key, xattrEscaped) {
			continue
		}
		if key == xattrSkeleton || key == xattrOpaque && isOpaque(fd) {
			continue
		}
		if err := s.fs.RemoveXattr(fd, key); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	return nil
}

// form is how the content of a file is hashed.
type form int

const (
	whole   form = iota // all bytes, holes as zeros
	blocks              // see format.SparseHash: holes cost nothing
	nothing             // not at all
)

// describe walks a layer's tree and hashes its files on all processors. clean is
// called for entries with attributes that a layer does not keep; it may be nil.
// how chooses how each file is hashed, in the order of the entries.
func (s *Store) describe(
	ctx context.Context, id timeline.LayerID, clean func(fd int) error, how func(path string, st *unix.Stat_t) form,
) ([]format.Entry, error) {
	d := describer{ctx: ctx, clean: clean, how: how, links: map[devIno]string{}, jobs: make(chan hashJob, 64)}
	d.entries = make([]*format.Entry, 0, 64)
	for range runtime.GOMAXPROCS(0) {
		d.wg.Go(d.hash)
	}
	err := d.tree(rawView(s.Dir(id), false))
	close(d.jobs)
	d.wg.Wait()
	if err = errors.Join(err, d.err); err != nil {
		return nil, err
	}
	out := make([]format.Entry, len(d.entries))
	for i, e := range d.entries {
		out[i] = *e
	}
	return out, nil
}

type describer struct {
	ctx     context.Context
	clean   func(fd int) error
	how     func(path string, st *unix.Stat_t) form
	entries []*format.Entry
	text    int64 // bytes of the entries' paths, targets and attributes
	links   map[devIno]string
	jobs    chan hashJob
	wg      sync.WaitGroup
	mu      sync.Mutex
	err     error // guarded by mu
}

type hashJob struct {
	fd   int
	e    *format.Entry
	form form
}

func (d *describer) tree(v *View) error {
	m, err := v.root()
	if err != nil {
		return err
	}
	defer m.close()
	f, err := m.self()
	if err != nil {
		return err
	}
	if err := d.entry(f); err != nil {
		return err
	}
	return m.walk(d.ctx, 0, func(_ *mdir, f *found) error { return d.entry(f) })
}

// entry adds one entry, and queues its content for hashing.
func (d *describer) entry(f *found) error {
	e, err := d.add(f)
	if err == nil {
		err = d.admit(e)
	}
	if err != nil {
		return fault.Wrap(err, "read %q", f)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// admit counts an entry against the bounds on a manifest. A hard link counts with the path of the first name too.
func (d *describer) admit(e *format.Entry) error {
	d.text += int64(len(e.Path) + len(e.Link))
	for _, x := range e.Xattrs {
		d.text += int64(len(x.Key) + len(x.Value))
	}
	n := int64(len(d.entries))
	if n <= limit.ManifestEntries && d.text <= limit.ManifestBytes+n*limit.ManifestEntry {
		return nil
	}
	return fault.New(fault.TooLarge,
		"%d entries with %d bytes of paths, targets and attributes exceed the limit of a manifest", n, d.text).
		WithHint("remove deeply nested paths or large attributes: coppice exec NAME -- rm -rf DIRECTORY")
}

func (d *describer) add(f *found) (*format.Entry, error) {
	st := &f.st
	e := &format.Entry{Path: strings.TrimPrefix(f.path(), "/"), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		Mtime: mtimeNs(st)}
	d.entries = append(d.entries, e)
	if isWhiteout(st) {
		*e = format.Entry{Path: e.Path, Type: format.Whiteout}
		return e, nil
	}
	if st.Nlink > 1 && !dirfd.IsDir(st) {
		key := devIno{st.Dev, st.Ino}
		if first, ok := d.links[key]; ok {
			*e = format.Entry{Path: e.Path, Type: format.Hardlink, Link: first}
			return e, nil
		}
		d.links[key] = e.Path
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return e, d.dir(f, e)
	case unix.S_IFREG:
		return e, d.file(f, e)
	}
	return e, d.special(f, e)
}

// special describes an entry that is neither a directory nor a regular file.
func (d *describer) special(f *found, e *format.Entry) (err error) {
	switch f.st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		e.Type = format.Symlink
		if e.Link, err = dirfd.Readlink(f.dirfd(), f.name); err != nil {
			return err
		}
	case unix.S_IFIFO:
		e.Type = format.FIFO
	case unix.S_IFSOCK:
		e.Type = format.Socket
	case unix.S_IFCHR, unix.S_IFBLK:
		e.Type, e.Major, e.Minor = format.Char, unix.Major(f.st.Rdev), unix.Minor(f.st.Rdev)
		if f.st.Mode&unix.S_IFMT == unix.S_IFBLK {
			e.Type = format.Block
		}
	}
	a, err := f.attrs()
	e.Xattrs = a.format()
	return errors.Join(err, a.whole())
}

func (d *describer) dir(f *found, e *format.Entry) error {
	fd, err := dirfd.OpenDir(f.dirfd(), f.name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	a, err := readAttrs(xattrSource{fd: fd}, false)
	if err := errors.Join(err, a.whole()); err != nil {
		return err
	}
	e.Type, e.Xattrs = format.Dir, a.format()
	if a.opaque {
		e.Type = format.Opaque
	}
	if a.noise && d.clean != nil {
		return d.clean(fd)
	}
	return nil
}

func (d *describer) file(f *found, e *format.Entry) error {
	fd, st, err := openFileAt(f.dirfd(), f.name)
	if err != nil {
		return err
	}
	a, err := readAttrs(xattrSource{fd: fd}, false)
	err = errors.Join(err, a.whole())
	if err == nil && a.noise && d.clean != nil {
		err = d.clean(fd)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	e.Type, e.Size, e.Xattrs = format.File, st.Size, a.format()
	how := d.how(e.Path, &st)
	e.Sparse = how == blocks
	d.jobs <- hashJob{fd, e, how}
	return nil
}

// hash hashes files of d.jobs until it is closed.
func (d *describer) hash() {
	for j := range d.jobs {
		err := d.ctx.Err()
		if err == nil {
			j.e.Sum, err = j.form.sum(d.ctx, j.fd, j.e.Size)
		}
		unix.Close(j.fd)
		if err != nil {
			d.mu.Lock()
			if d.err == nil {
				d.err = fault.Wrap(err, "read %q", "/"+j.e.Path)
			}
			d.mu.Unlock()
		}
	}
}

// sum hashes the content of an open file.
func (f form) sum(ctx context.Context, fd int, size int64) (sum [sha256.Size]byte, err error) {
	switch f {
	case whole:
		h := sha256.New()
		err = readData(ctx, fd, 0, size, func(p []byte, _ int64) { h.Write(p) })
		h.Sum(sum[:0])
	case blocks:
		h, done := format.NewSparseHash(), int64(0)
		err = eachData(fd, size, func(from, to int64) error {
			// Two ranges may share a block, where the file system has smaller ones.
			from = max(done, from&^(format.SparseBlock-1))
			done = max(from, min(size, (to+format.SparseBlock-1)&^(format.SparseBlock-1)))
			return readData(ctx, fd, from, done, h.Write)
		})
		sum = h.Sum()
	}
	return sum, err
}

// eachData calls fn for each range of a file that is not a hole, in order.
func eachData(fd int, size int64, fn func(from, to int64) error) error {
	for off := int64(0); off < size; {
		from, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		if err != nil {
			return err
		}
		to, err := unix.Seek(fd, from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if to = min(to, size); from >= to {
			return nil
		}
		if err := fn(from, to); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// readData passes a range of a file to fn, in pieces, until ctx is canceled.
func readData(ctx context.Context, fd int, from, to int64, fn func(p []byte, off int64)) error {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := preadFull(fd, (*bp)[:min(to-from, copyBufSize)], from)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		fn((*bp)[:n], from)
		from += int64(n)
	}
	return nil
}

func (a *attrs) format() []format.Xattr {
	var out []format.Xattr
	for _, x := range a.list {
		out = append(out, format.Xattr{Key: x.Key, Value: string(x.Value)})
	}
	return out
}
