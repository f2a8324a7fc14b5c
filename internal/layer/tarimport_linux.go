package layer

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/archive"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// TarOptions bounds ImportTar. Zero fields mean the defaults.
type TarOptions struct {
	MaxBytes   int64 // content of all files; default 256 GiB
	MaxEntries int64 // default 20,000,000
	// Progress is called after each entry, at most once for each MiB read.
	Progress func(Progress)
}

const (
	defaultMaxBytes   = 256 << 30
	defaultMaxEntries = 20_000_000
	maxReports        = 10_000
	// maxWindow is what an archive's compression may take of memory.
	maxWindow = 512 << 20
)

// ImportTar makes layer id of an archive: tar, or tar compressed with gzip, zstd
// or xz, told by its first bytes. Names are always taken as relative to the
// layer's root. What would reach outside of it, and devices, are left out and
// listed in the report; an archive that is a bomb or is cut short is refused
// whole. After a failure nothing is left behind.
func (s *Store) ImportTar(ctx context.Context, id timeline.LayerID, r io.Reader, opts TarOptions) (rep Report, err error) {
	if !validID(id) {
		return rep, fault.New(fault.Invalid, "layer id %q is malformed", id)
	}
	opts = opts.or()
	b, err := s.begin(ctx, id)
	if err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	defer b.undo.Run(&err)
	plain, closeFn, err := archive.Open(ctx, r, archive.Limits{Bytes: opts.MaxBytes, Window: maxWindow})
	if err != nil {
		return rep, fault.Wrap(err, "import archive")
	}
	defer closeFn()
	t := &untar{ctx: ctx, opts: opts, root: b.fs, parent: -1}
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

// or gives the defaults for what is not said.
func (o TarOptions) or() TarOptions {
	o.MaxBytes, o.MaxEntries = cmp.Or(o.MaxBytes, defaultMaxBytes), cmp.Or(o.MaxEntries, defaultMaxEntries)
	return o
}

// untar writes archive entries into a tree that it owns.
type untar struct {
	putter
	ctx  context.Context
	opts TarOptions
	rep  Report
	root int

	parentPath string // the directory that parent is open at
	parent     int    // -1: none
	dirs       []tarDir
	told       int64
	layered    *layered // the archive is a layer; nil: it is none
}

// tarDir is a directory whose metadata is set when everything is in place.
type tarDir struct {
	path string
	st   unix.Stat_t
	a    attrs
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
				return fault.New(fault.Invalid, "the archive is empty or no tar archive")
			}
			return nil
		}
		if err != nil {
			return archive.Damaged(err)
		}
		any = true
		t.rep.Entries++
		if t.rep.Entries > t.opts.MaxEntries {
			return fault.New(fault.Invalid, "the archive holds more than %d entries", t.opts.MaxEntries)
		}
		if err := t.entry(h, tr); err != nil {
			return err
		}
		if t.opts.Progress != nil && t.rep.Bytes-t.told >= 1<<20 {
			t.told = t.rep.Bytes
			t.opts.Progress(Progress{Entries: t.rep.Entries, Bytes: t.rep.Bytes})
		}
	}
}

// note puts an entry that was left out or changed into the report.
func (t *untar) note(name, format string, args ...any) {
	if len(t.rep.Changed) == maxReports {
		t.rep.Changed = append(t.rep.Changed, "and more")
	}
	if len(t.rep.Changed) > maxReports {
		return
	}
	t.rep.Changed = append(t.rep.Changed, fmt.Sprintf("%q: ", name)+fmt.Sprintf(format, args...))
}

func (t *untar) entry(h *tar.Header, r io.Reader) error {
	if t.layered != nil {
		if done, err := t.mark(h); done || err != nil {
			return err
		}
	}
	parts, changed, ok := archive.Name(h.Name)
	if !ok {
		t.note(h.Name, "left out: its name leads outside or is too long")
		return nil
	}
	if changed {
		t.note(h.Name, "taken as relative")
	}
	if len(parts) == 0 {
		if h.Typeflag == tar.TypeDir {
			t.dirs = append(t.dirs, t.dirMetaFrom("", h))
		}
		return nil
	}
	dirPath, name := strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]
	if ok, err := t.enter(dirPath); err != nil || !ok {
		if err == nil {
			t.note(h.Name, "left out: it lies below something that is no directory")
		}
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.dir(dirPath, name, h)
	case tar.TypeReg, tar.TypeRegA, tar.TypeGNUSparse, tar.TypeCont: //nolint:staticcheck // old archives
		return t.file(name, h, r)
	case tar.TypeSymlink:
		return t.symlink(name, h)
	case tar.TypeLink:
		return t.hardlink(dirPath, name, h)
	case tar.TypeFifo:
		return t.fifo(name, h)
	case tar.TypeChar, tar.TypeBlock:
		t.note(h.Name, "left out: device nodes are not imported")
	default:
		t.note(h.Name, "left out: entries of type %q are not known", h.Typeflag)
	}
	return nil
}

func (t *untar) leave() {
	closeAll(t.parent)
	t.parent = -1
}

// enter opens the directory at p, through no link, and makes what is missing.
func (t *untar) enter(p string) (ok bool, err error) {
	if t.parent >= 0 && t.parentPath == p {
		return true, nil
	}
	t.leave()
	cur, err := openDirAt(t.root, ".")
	if err != nil {
		return false, err
	}
	at := ""
	for c := range strings.SplitSeq(p, "/") {
		if c == "" {
			continue
		}
		at = strings.TrimPrefix(at+"/"+c, "/")
		next, err := openDirAt(cur, c)
		if errors.Is(err, unix.ENOENT) {
			if err = t.s.fs.Mkdir(cur, c, 0o755); err == nil {
				next, err = openDirAt(cur, c)
				t.dirs = append(t.dirs, plainDir(at))
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
	}
	t.parent, t.parentPath = cur, p
	return true, nil
}

// clear removes what is at name, so that a later entry of the same name wins. A
// directory only yields to a directory.
func (t *untar) clear(name string, h *tar.Header) (ok bool, err error) {
	err = t.s.fs.Unlink(t.parent, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.EISDIR):
		t.note(h.Name, "left out: a directory of that name came before it")
		return false, nil
	case err == nil:
		t.note(h.Name, "replaces an earlier entry of the same name")
	}
	return err == nil, err
}

func (t *untar) dir(dirPath, name string, h *tar.Header) error {
	err := t.s.fs.Mkdir(t.parent, name, 0o755)
	if errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err = lstatAt(t.parent, name, &st); err == nil && !isDir(&st) {
			t.note(h.Name, "replaces an earlier entry of the same name")
			if err = t.s.fs.Unlink(t.parent, name); err == nil {
				err = t.s.fs.Mkdir(t.parent, name, 0o755)
			}
		}
	}
	if err != nil {
		return fault.Wrap(err, "make directory %q", h.Name)
	}
	p := name
	if dirPath != "" {
		p = dirPath + "/" + name
	}
	t.dirs = append(t.dirs, t.dirMetaFrom(p, h))
	return nil
}

// dirMetaFrom keeps what a header says about a directory.
func (t *untar) dirMetaFrom(p string, h *tar.Header) tarDir {
	d := tarDir{path: p, a: t.attrs(h)}
	headerStat(h, &d.st)
	return d
}

func headerStat(h *tar.Header, st *unix.Stat_t) {
	st.Mode = uint32(h.Mode) & 0o7777
	st.Uid, st.Gid = uint32(h.Uid), uint32(h.Gid)
	st.Mtim = unix.NsecToTimespec(h.ModTime.UnixNano())
}

// attrs takes those attributes of a header that mean something here.
func (t *untar) attrs(h *tar.Header) (a attrs) {
	for k, v := range h.PAXRecords {
		key, ok := strings.CutPrefix(k, "SCHILY.xattr.")
		if !ok {
			continue
		}
		if key == xattrSkeleton || !strings.HasPrefix(key, "user.") && key != "security.capability" && !strings.HasPrefix(key, "system.posix_acl_") {
			t.note(h.Name, "attribute %q left out", key)
			continue
		}
		a.add(key, []byte(v), true)
	}
	sort.Slice(a.list, func(i, j int) bool { return a.list[i].Key < a.list[j].Key })
	return a
}

func (t *untar) file(name string, h *tar.Header, r io.Reader) error {
	if h.Size < 0 || h.Size > t.opts.MaxBytes-t.rep.Bytes {
		return fault.New(fault.Invalid, "the archive holds more than %d bytes", t.opts.MaxBytes)
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

// content writes a file; blocks of zeros become holes, so that a sparse file of
// any size costs what is in it.
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

// special sets owner and time of what is not opened.
func (t *untar) special(name string, h *tar.Header) error {
	var st unix.Stat_t
	headerStat(h, &st)
	if err := t.owner(t.parent, name, &st); err != nil {
		return fault.Wrap(err, "write %q", h.Name)
	}
	return fault.Wrap(t.s.fs.Utimes(t.parent, name, mtimeNs(&st)), "write %q", h.Name)
}

// hardlink links to an earlier entry of the same archive.
func (t *untar) hardlink(dirPath, name string, h *tar.Header) error {
	target, _, ok := archive.Name(h.Linkname)
	if !ok || len(target) == 0 {
		t.note(h.Name, "left out: it links to %q, which leads outside", h.Linkname)
		return nil
	}
	from, err := openBeneath(t.root, strings.Join(append([]string{"."}, target[:len(target)-1]...), "/"), unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		defer unix.Close(from)
		var st unix.Stat_t
		if err = lstatAt(from, target[len(target)-1], &st); err == nil && isDir(&st) {
			err = unix.EISDIR
		}
	}
	if err != nil {
		t.note(h.Name, "left out: it links to %q, which is no earlier file", h.Linkname)
		return nil
	}
	var a, b unix.Stat_t
	if lstatAt(from, target[len(target)-1], &a) == nil && lstatAt(t.parent, name, &b) == nil && a.Ino == b.Ino {
		return nil // itself
	}
	if ok, err := t.clear(name, h); err != nil || !ok {
		return err
	}
	return fault.Wrap(t.s.fs.Link(from, target[len(target)-1], t.parent, name), "write %q", h.Name)
}

// plainDir is what a directory gets that the archive does not speak of.
func plainDir(p string) tarDir {
	d := tarDir{path: p}
	d.st.Mode = 0o755
	return d
}

// finishDirs sets the directories' metadata, the innermost first. Of several
// entries for one directory the last counts.
func (t *untar) finishDirs() error {
	t.leave()
	t.dirs = append([]tarDir{plainDir("")}, t.dirs...)
	last := map[string]int{}
	for i := range t.dirs {
		last[t.dirs[i].path] = i
	}
	order := make([]int, 0, len(last))
	for _, i := range last {
		order = append(order, i)
	}
	sort.Slice(order, func(i, j int) bool {
		a, b := t.dirs[order[i]].path, t.dirs[order[j]].path
		if n, m := strings.Count(a, "/"), strings.Count(b, "/"); n != m || a == "" || b == "" {
			return b == "" && a != "" || a != "" && n > m
		}
		return a < b
	})
	for _, i := range order {
		d := &t.dirs[i]
		fd, err := openBeneath(t.root, "./"+d.path, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // replaced by a later entry
		}
		if err != nil {
			return fault.Wrap(err, "open %q", d.path)
		}
		if t.layered != nil {
			err = t.layeredDir(d, fd)
		} else {
			err = t.dirMetaOf(&d.st, &d.a, fd, false)
		}
		unix.Close(fd)
		if err != nil {
			return fault.Wrap(err, "set metadata of %q", d.path)
		}
	}
	return nil
}
