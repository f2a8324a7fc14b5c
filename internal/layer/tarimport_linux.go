package layer

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/archive"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TarOptions bounds ImportTar. Zero fields mean the defaults.
type TarOptions struct {
	MaxBytes   int64 // content of all files; default limit.ArchiveBytes
	MaxEntries int64 // default limit.ArchiveEntries
	// Progress is called after each entry, at most once for each MiB read.
	Progress func(Progress)
}

// dirCost is the memory that one directory of an archive takes besides its name and
// attributes: its record, and its entry in the parent's map.
const dirCost = 256

// ImportTar makes layer id from an archive: tar, or tar compressed with gzip, zstd or xz, which it recognizes by the
// first bytes. Names are always relative to the layer's root. Names that would leave it, and devices, are left out
// and listed in the report. A truncated archive is refused as a whole; so is one beyond a bound of package limit,
// with TooLarge. After a failure nothing is left behind.
func (s *Store) ImportTar(
	ctx context.Context, id timeline.LayerID, r io.Reader, opts TarOptions,
) (rep Report, err error) {
	if !validID(id) {
		return rep, fault.New(fault.Invalid, "invalid layer id %q", id)
	}
	opts = opts.or()
	b, err := s.begin(ctx, id)
	if err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	defer b.undo.Run(&err)
	plain, closeFn, err := archive.Open(ctx, r, archive.Limits{Bytes: opts.MaxBytes, Window: limit.ArchiveWindow})
	if err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	defer closeFn()
	t := &untar{putter: putter{ctx: ctx}, opts: opts, root: b.fs, parent: -1, top: newDir()}
	t.s, t.lenient, t.remember, t.linkDir = s, true, true, -1
	defer t.leave()
	if err := t.all(tar.NewReader(plain)); err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	if err := t.finishDirs(); err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	if err := b.finish(ctx); err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	return t.rep, nil
}

// or returns o with defaults for zero fields.
func (o TarOptions) or() TarOptions {
	o.MaxBytes, o.MaxEntries = cmp.Or(o.MaxBytes, limit.ArchiveBytes), cmp.Or(o.MaxEntries, limit.ArchiveEntries)
	return o
}

// untar writes archive entries into a tree that it owns.
type untar struct {
	putter
	opts TarOptions
	rep  Report
	root int

	parentPath string // path of the directory parent
	parent     int    // open descriptor; -1: none
	at         *tarDir
	top        *tarDir
	kept       int64 // memory of the directories below top, in bytes
	reported   int64
	layered    *layered // set if the archive is a layer
}

// tarDir is a directory whose metadata is set after all entries are written. The tree of them has each name once, so
// a deep directory costs its name and not its path.
type tarDir struct {
	below    map[string]*tarDir
	mode     uint32
	uid, gid uint32
	mtime    unix.Timespec
	a        attrs
	opaque   bool // in the layer, it hides the directory below it
}

// newDir returns a directory that the archive does not mention.
func newDir() *tarDir { return &tarDir{mode: 0o755} }

func (d *tarDir) stat() *unix.Stat_t {
	return &unix.Stat_t{Mode: d.mode, Uid: d.uid, Gid: d.gid, Mtim: d.mtime}
}

func (t *untar) all(tr *tar.Reader) error {
	any := false
	for {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			if !any {
				return fault.New(fault.Invalid, "not a tar archive, or empty")
			}
			return nil
		}
		if err != nil {
			return archive.Damaged(err)
		}
		any = true
		t.rep.Entries++
		if t.rep.Entries > t.opts.MaxEntries {
			return fault.New(fault.TooLarge, "the archive holds more than %d entries", t.opts.MaxEntries).WithHint(useDirectory)
		}
		if err := t.entry(h, tr); err != nil {
			return err
		}
		if t.opts.Progress != nil && t.rep.Bytes-t.reported >= 1<<20 {
			t.reported = t.rep.Bytes
			t.opts.Progress(Progress{Entries: t.rep.Entries, Bytes: t.rep.Bytes})
		}
	}
}

// note adds an entry that was left out or changed to the report.
func (t *untar) note(name, format string, args ...any) {
	if len(t.rep.Changed) == limit.ArchiveReports {
		t.rep.Changed = append(t.rep.Changed, "and more")
	}
	if len(t.rep.Changed) > limit.ArchiveReports {
		return
	}
	t.rep.Changed = append(t.rep.Changed, fmt.Sprintf("%.300q: ", name)+fmt.Sprintf(format, args...))
}

func (t *untar) entry(h *tar.Header, r io.Reader) error {
	if t.layered != nil {
		if done, err := t.mark(h); done || err != nil {
			return err
		}
	}
	if err := archive.Fits(h.Name); err != nil {
		return err
	}
	parts, changed, ok := archive.Name(h.Name)
	if !ok {
		t.note(h.Name, "left out: its name leads outside the archive or is too long")
		return nil
	}
	if changed {
		t.note(h.Name, "taken as relative")
	}
	if len(parts) == 0 {
		if h.Typeflag == tar.TypeDir {
			return t.describe(t.top, h)
		}
		return nil
	}
	dirPath, name := strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]
	if ok, err := t.enter(dirPath); err != nil || !ok {
		if err == nil {
			t.note(h.Name, "left out: its parent is not a directory")
		}
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.dir(name, h)
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse, tar.TypeCont: //nolint:staticcheck // old archives
		return t.file(name, h, r)
	case tar.TypeSymlink:
		return t.symlink(name, h)
	case tar.TypeLink:
		return t.hardlink(name, h)
	case tar.TypeFifo:
		return t.fifo(name, h)
	case tar.TypeChar, tar.TypeBlock:
		t.note(h.Name, "left out: device nodes are not imported")
	default:
		t.note(h.Name, "left out: unknown entry type %q", h.Typeflag)
	}
	return nil
}

func (t *untar) leave() {
	closeAll(t.parent)
	t.parent = -1
}

// enter opens the directory at p without following links, and makes missing directories. ok is false if a part of p
// is not a directory.
func (t *untar) enter(p string) (ok bool, err error) {
	if t.parent >= 0 && t.parentPath == p {
		return true, nil
	}
	t.leave()
	cur, err := dirfd.OpenDir(t.root, ".")
	if err != nil {
		return false, err
	}
	at := t.top
	for c := range strings.SplitSeq(p, "/") {
		if c == "" {
			continue
		}
		next, err := dirfd.OpenDir(cur, c)
		if errors.Is(err, unix.ENOENT) {
			if err = t.s.fs.Mkdir(cur, c, 0o755); err == nil {
				next, err = dirfd.OpenDir(cur, c)
			}
		}
		unix.Close(cur)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		cur = next
		if at, err = t.child(at, c); err != nil {
			unix.Close(cur)
			return false, err
		}
	}
	t.parent, t.parentPath, t.at = cur, p, at
	return true, nil
}

// child returns the record of an existing directory.
func (t *untar) child(d *tarDir, name string) (*tarDir, error) {
	if c := d.below[name]; c != nil {
		return c, nil
	}
	if err := t.keep(int64(len(name)) + dirCost); err != nil {
		return nil, err
	}
	if d.below == nil {
		d.below = map[string]*tarDir{}
	}
	// The name may share memory with a far longer string.
	c := newDir()
	d.below[strings.Clone(name)] = c
	return c, nil
}

// useDirectory is the hint when an archive exceeds a bound that does not apply to directories.
const useDirectory = "unpack it, then start from the directory: coppice create --from DIR"

// keep accounts for memory that is held to the end of the archive.
func (t *untar) keep(n int64) error {
	if t.kept += n; t.kept > limit.ArchiveKept {
		return fault.New(fault.TooLarge, "the names and attributes of the archive's directories take more than %d bytes",
			limit.ArchiveKept).
			WithHint(useDirectory)
	}
	return nil
}

// clear removes the entry at name, so that a later entry of the same name wins. It does not remove a directory.
func (t *untar) clear(name string, h *tar.Header) (ok bool, err error) {
	err = t.s.fs.Unlink(t.parent, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EISDIR):
		t.note(h.Name, "left out: an earlier entry of the same name is a directory")
		return false, nil
	case err == nil:
		t.note(h.Name, "replaces an earlier entry of the same name")
	}
	return err == nil, err
}

func (t *untar) dir(name string, h *tar.Header) error {
	err := t.s.fs.Mkdir(t.parent, name, 0o755)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if st, err = dirfd.Lstat(t.parent, name); err == nil && !dirfd.IsDir(&st) {
			t.note(h.Name, "replaces an earlier entry of the same name")
			if err = t.s.fs.Unlink(t.parent, name); err == nil {
				err = t.s.fs.Mkdir(t.parent, name, 0o755)
			}
		}
	}
	if err != nil {
		return fault.Wrap(err, "create directory %q", h.Name)
	}
	d, err := t.child(t.at, name)
	if err != nil {
		return err
	}
	return t.describe(d, h)
}

// describe stores the metadata of a directory's header. The last header counts.
func (t *untar) describe(d *tarDir, h *tar.Header) error {
	var st unix.Stat_t
	headerStat(h, &st)
	t.kept -= d.a.cost()
	d.mode, d.uid, d.gid, d.mtime, d.a = st.Mode, st.Uid, st.Gid, st.Mtim, t.attrs(h)
	return t.keep(d.a.cost())
}

// cost returns the memory that attributes use, in bytes.
func (a *attrs) cost() (n int64) {
	for _, x := range a.list {
		n += int64(len(x.Key) + len(x.Value) + 64)
	}
	return n
}

func headerStat(h *tar.Header, st *unix.Stat_t) {
	st.Mode = uint32(h.Mode) & 0o7777
	st.Uid, st.Gid = uint32(h.Uid), uint32(h.Gid)
	st.Mtim = unix.NsecToTimespec(h.ModTime.UnixNano())
}

// attrs returns the attributes of a header that can be imported, and notes the others.
func (t *untar) attrs(h *tar.Header) (a attrs) {
	for k, v := range h.PAXRecords {
		key, ok := strings.CutPrefix(k, "SCHILY.xattr.")
		if !ok {
			continue
		}
		if key == xattrSkeleton1 || !strings.HasPrefix(key, "user.") && key != "security.capability" &&
			!strings.HasPrefix(key, "system.posix_acl_") {
			t.note(h.Name, "attribute %.300q left out", key)
			continue
		}
		a.add(key, []byte(v), true)
	}
	sort.Slice(a.list, func(i, j int) bool { return a.list[i].Key < a.list[j].Key })
	return a
}

func (t *untar) file(name string, h *tar.Header, r io.Reader) error {
	if h.Size < 0 || h.Size > t.opts.MaxBytes-t.rep.Bytes {
		return fault.New(fault.TooLarge, "the archive holds more than %d bytes", t.opts.MaxBytes).WithHint(useDirectory)
	}
	if ok, err := t.clear(name, h); err != nil || !ok {
		return err
	}
	fd, err := t.s.fs.Create(t.parent, name, 0o600)
	if err != nil {
		return fault.Wrap(err, "write %q", h.Name)
	}
	defer unix.Close(fd)
	if err := t.content(fd, h.Size, r); err != nil {
		return fault.Wrap(archive.Damaged(err), "write %q", h.Name)
	}
	t.rep.Bytes += h.Size
	var st unix.Stat_t
	headerStat(h, &st)
	a := t.attrs(h)
	return fault.Wrap(t.dirMetaOf(&st, &a, fd, false), "write %q", h.Name)
}

// content writes a file. Blocks of zeros become holes, so a sparse file of any size only costs its data.
func (t *untar) content(fd int, size int64, r io.Reader) error {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	hole := false
	for off := int64(0); off < size; {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(r, (*bp)[:min(size-off, copyBufSize)])
		if err != nil {
			return err
		}
		b := (*bp)[:n]
		if hole = n >= 4096 && allZero(b); !hole {
			if err := t.s.fs.WriteAt(fd, b, off); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	if hole {
		return t.s.fs.Truncate(fd, size)
	}
	return nil
}

func allZero(b []byte) bool {
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

func (t *untar) symlink(name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > 4095 || strings.IndexByte(h.Linkname, 0) >= 0 {
		t.note(h.Name, "left out: its target is empty or too long")
		return nil
	}
	if ok, err := t.clear(name, h); err != nil || !ok {
		return err
	}
	if err := t.s.fs.Symlink(h.Linkname, t.parent, name); err != nil {
		return fault.Wrap(err, "write %q", h.Name)
	}
	return t.special(name, h)
}

func (t *untar) fifo(name string, h *tar.Header) error {
	if ok, err := t.clear(name, h); err != nil || !ok {
		return err
	}
	if err := t.s.fs.Mknod(t.parent, name, unix.S_IFIFO|0o600, 0); err != nil {
		return fault.Wrap(err, "write %q", h.Name)
	}
	if err := t.s.fs.ChmodAt(t.parent, name, uint32(h.Mode)); err != nil {
		return fault.Wrap(err, "write %q", h.Name)
	}
	return t.special(name, h)
}

// special sets the owner and time of an entry that is not opened.
func (t *untar) special(name string, h *tar.Header) error {
	var st unix.Stat_t
	headerStat(h, &st)
	if err := t.owner(t.parent, name, &st); err != nil {
		return fault.Wrap(err, "write %q", h.Name)
	}
	return fault.Wrap(t.s.fs.Utimes(t.parent, name, mtimeNs(&st)), "write %q", h.Name)
}

// hardlink links to an earlier entry of the same archive.
func (t *untar) hardlink(name string, h *tar.Header) error {
	target, _, ok := archive.Name(h.Linkname)
	if !ok || len(target) == 0 {
		t.note(h.Name, "left out: it links to %.300q, outside the archive", h.Linkname)
		return nil
	}
	from, err := dirfd.OpenLong(t.root, cmp.Or(strings.Join(target[:len(target)-1], "/"), "."),
		unix.O_PATH|unix.O_DIRECTORY, dirfd.Beneath)
	if err == nil {
		defer unix.Close(from)
		var st unix.Stat_t
		if st, err = dirfd.Lstat(from, target[len(target)-1]); err == nil && dirfd.IsDir(&st) {
			err = unix.EISDIR
		}
	}
	if err != nil {
		t.note(h.Name, "left out: it links to %.300q, which is not an earlier file", h.Linkname)
		return nil
	}
	a, aerr := dirfd.Lstat(from, target[len(target)-1])
	if b, err := dirfd.Lstat(t.parent, name); aerr == nil && err == nil && a.Ino == b.Ino {
		return nil // itself
	}
	if ok, err := t.clear(name, h); err != nil || !ok {
		return err
	}
	return fault.Wrap(t.s.fs.Link(from, target[len(target)-1], t.parent, name), "write %q", h.Name)
}

// finishDirs sets the metadata of directories, inner ones first, since the mode of a directory may deny access to it.
// It goes from one to the next by descriptors, so the work grows with their number and not with their depth. Nothing
// else may change the tree meanwhile.
func (t *untar) finishDirs() error {
	t.leave()
	cur, err := dirfd.OpenDir(t.root, ".")
	if err != nil {
		return err
	}
	defer func() { closeAll(cur) }()
	return t.finishDir(t.top, "", &cur)
}

// finishDir finishes the directory that *cur is open at, and those below it. Afterwards *cur is open at the directory
// above.
func (t *untar) finishDir(d *tarDir, p string, cur *int) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	for _, name := range slices.Sorted(maps.Keys(d.below)) {
		at := path.Join(p, name)
		next, err := dirfd.OpenDir(*cur, name)
		if err != nil {
			return fault.Wrap(err, "open %.300q", at)
		}
		closeAll(*cur)
		*cur = next
		if err := t.finishDir(d.below[name], at, cur); err != nil {
			return err
		}
	}
	up := *cur
	var err error
	if d != t.top {
		if up, err = dirfd.OpenDir(*cur, ".."); err != nil {
			return fault.Wrap(err, "open the parent of %.300q", p)
		}
		defer func(done int) { closeAll(done) }(*cur)
	}
	if t.layered != nil {
		err = t.layeredDir(d, p, *cur)
	} else {
		err = t.dirMetaOf(d.stat(), &d.a, *cur, false)
	}
	*cur = up
	return fault.Wrap(err, "set metadata of %.300q", p)
}
