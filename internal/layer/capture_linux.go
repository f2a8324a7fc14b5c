package layer

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/timeline"
	"github.com/coppice-dev/coppice/internal/undo"
)

// CaptureInput says what to capture.
type CaptureInput struct {
	// Parts are where the changes of the live root appear. No process may write
	// to them while Capture runs.
	Parts []rootspec.Part
	// Index is the state at the last capture; nil: everything in Parts is new,
	// their own directories too; new(Index): everything in them is new.
	Index *Index
	// Suspects are absolute paths inside that may have changed without a trace
	// in their stat: files that are or were mapped shared and writable.
	Suspects []string
	// Plain says that the parts are plain trees, not overlay uppers.
	Plain bool
	// Now is when the processes were frozen; zero: now.
	Now time.Time
	// MaxPaths is how many paths may be copied; 0 is any number. See
	// Captured.TooMany.
	MaxPaths int
	// Head gives the trees of the layers that make up the last snapshot, topmost
	// first. It is asked when an entry must be compared by its content and the
	// layer that it was copied to is gone, as after the deletion of a snapshot;
	// nil: such an entry is taken as changed.
	Head func() []string
	// KeepEmpty makes a layer even when nothing changed.
	KeepEmpty bool
}

// Captured is what a capture made.
type Captured struct {
	Stats timeline.Stats
	Index *Index // belongs to the new snapshot, also when Empty
	Empty bool   // nothing changed, and no layer was made
	// TooMany says that more than MaxPaths changed: nothing was made, Stats is
	// what would have been, and Adopt is the better way.
	TooMany bool
	Paths   []string // up to eight changed paths, for messages
}

// Capture writes what changed since in.Index as layer id. It returns when the
// layer is safe against the death of any process; Seal makes it safe against
// power loss. After a failure nothing is left behind and in.Index stays valid.
func (s *Store) Capture(ctx context.Context, id timeline.LayerID, in CaptureInput) (out Captured, err error) {
	if !validID(id) {
		return out, fault.New(fault.Invalid, "layer id %q is malformed", id)
	}
	w := s.newWalker(ctx, in)
	trees, next, err := w.walk(in.Parts, in.Index, in.Suspects)
	defer trees.close()
	if err != nil {
		return out, fault.Wrap(err, "capture")
	}
	out.Index = next
	if out.Empty = trees.empty(); out.Empty && !in.KeepEmpty {
		return out, nil
	}
	if in.MaxPaths > 0 {
		if out.Stats = trees.stats(); out.Stats.Paths > in.MaxPaths {
			out.TooMany = true
			return out, nil
		}
	}
	if out.Empty {
		trees.keepRoot()
	}
	if len(next.origins) >= 1<<16-2 {
		next.forget()
	}
	next.origins = append(next.origins[:len(next.origins):len(next.origins)], id)
	b, err := s.begin(ctx, id)
	if err != nil {
		return out, fault.Wrap(err, "capture")
	}
	defer b.undo.Run(&err)
	e := &emitter{ctx: ctx, origin: uint16(len(next.origins))}
	e.s, e.fromRaw, e.linkDir = s, in.Plain, b.links
	e.spare.Store(1)
	if err := trees.emit(e, b.fs); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	if err := b.finish(); err != nil {
		return out, fault.Wrap(err, "capture")
	}
	out.Stats = timeline.Stats{Paths: int(e.paths.Load()), Bytes: e.bytes.Load()}
	out.Paths = e.told
	return out, nil
}

// Scan takes the state of parts as an index: what the next Capture compares
// with. Used when a live root was just made. plain is as in CaptureInput.
func (s *Store) Scan(ctx context.Context, parts []rootspec.Part, plain bool) (*Index, error) {
	w := s.newWalker(ctx, CaptureInput{Parts: parts, Plain: plain})
	trees, x, err := w.walk(parts, nil, nil)
	trees.close()
	if err != nil {
		return nil, fault.Wrap(err, "scan")
	}
	if !x.racyFiles() {
		return x, nil
	}
	// Files were written just now, and a snapshot may hold them already: look
	// again when a later change can be told from them.
	select {
	case <-ctx.Done():
		return nil, fault.Wrap(ctx.Err(), "scan")
	case <-time.After(2 * racyWindow):
	}
	w = s.newWalker(ctx, CaptureInput{Parts: parts, Plain: plain})
	trees, x, err = w.walk(parts, nil, nil)
	trees.close()
	return x, fault.Wrap(err, "scan")
}

func (x *Index) racyFiles() bool {
	for i := range x.roots {
		if x.roots[i].node.racyFiles() {
			return true
		}
	}
	return false
}

func (d *dirNode) racyFiles() bool {
	for i := range d.ents {
		if e := &d.ents[i]; e.flags&entRacy != 0 && !e.isDir() {
			return true
		}
	}
	for _, k := range d.kids {
		if k.racyFiles() {
			return true
		}
	}
	return false
}

// forget drops all origins when there are too many to number. A racy entry
// without one is taken as changed.
func (x *Index) forget() {
	x.origins = nil
	for i := range x.roots {
		x.roots[i].node = x.roots[i].node.forget()
	}
}

func (d *dirNode) forget() *dirNode {
	n := &dirNode{names: d.names, ents: append([]ent(nil), d.ents...), kids: make([]*dirNode, len(d.kids))}
	for i := range n.ents {
		n.ents[i].origin = 0
	}
	for i, k := range d.kids {
		n.kids[i] = k.forget()
	}
	return n
}

func (s *Store) newWalker(ctx context.Context, in CaptureInput) *walker {
	now := in.Now
	if now.IsZero() {
		now = time.Now()
	}
	w := &walker{ctx: ctx, plain: in.Plain, racyFrom: now.UnixNano() - racyWindow}
	w.cuts = makeCuts(in.Parts)
	w.rootIsNews = in.Index == nil
	w.spare.Store(1)
	w.same = func(part int, dirs []string, dir int, name string, e *ent) bool {
		if e.origin == 0 || in.Index == nil || int(e.origin) > len(in.Index.origins) {
			return false
		}
		trees := []string{s.Dir(in.Index.origins[e.origin-1])}
		if !s.Has(in.Index.origins[e.origin-1]) && in.Head != nil {
			trees = in.Head()
		}
		for _, tree := range trees {
			same, err := sameAsCopy(tree, in.Parts[part].Path, dirs, dir, name, in.Plain)
			if !errors.Is(err, unix.ENOENT) {
				return err == nil && same
			}
		}
		return false
	}
	return w
}

// makeCuts finds, for each part, where other parts take over beneath it.
func makeCuts(parts []rootspec.Part) map[string]*cut {
	out := map[string]*cut{}
	for _, p := range parts {
		for _, q := range parts {
			rel, ok := below(p.Path, q.Path)
			if !ok || rel == "" {
				continue
			}
			c := out[p.Path]
			if c == nil {
				c = &cut{kids: map[string]*cut{}}
				out[p.Path] = c
			}
			for _, name := range strings.Split(rel, "/") {
				k := c.kids[name]
				if k == nil {
					k = &cut{kids: map[string]*cut{}}
					c.kids[name] = k
				}
				c = k
			}
			c.end = true
		}
	}
	return out
}

// below gives q relative to p when it is p or lies beneath it.
func below(p, q string) (string, bool) {
	p, q = path.Clean(p), path.Clean(q)
	if p == q {
		return "", true
	}
	if p != "/" {
		p += "/"
	}
	rel, ok := strings.CutPrefix(q, p)
	return rel, ok
}

// trees are what walking the parts chose.
type trees []tree

type tree struct {
	path  string
	fd    int
	delta *delta // nil: nothing
}

func (t trees) close() {
	for _, p := range t {
		closeAll(p.fd)
	}
}

func (t trees) empty() bool {
	for _, p := range t {
		if p.delta != nil {
			return false
		}
	}
	return true
}

// stats counts what emit would write.
func (t trees) stats() (s timeline.Stats) {
	for _, p := range t {
		p.delta.count(&s)
	}
	return s
}

func (d *delta) count(s *timeline.Stats) {
	if d == nil {
		return
	}
	if d.counts() {
		s.Paths++
	}
	s.Paths += len(d.items) + len(d.gone)
	for _, it := range d.items {
		if it.ent.isReg() {
			s.Bytes += it.ent.size
		}
	}
	for _, k := range d.kids {
		k.count(s)
	}
}

// keepRoot chooses the root directory alone, so that an empty layer has the
// right one.
func (t trees) keepRoot() {
	for i := range t {
		if t[i].path == "/" {
			t[i].delta = &delta{}
		}
	}
}

// counts says whether the directory itself is a changed path, rather than the
// place of some.
func (d *delta) counts() bool {
	return d.isNew || d.self || d.leaf && len(d.items)+len(d.gone)+len(d.kids) == 0
}

// walk compares all parts with the old index.
func (w *walker) walk(parts []rootspec.Part, old *Index, suspects []string) (trees, *Index, error) {
	next := &Index{}
	if old != nil {
		next.origins = old.origins
	}
	var ts trees
	for i, p := range parts {
		fd, err := openDirAt(unix.AT_FDCWD, p.Dir)
		if err != nil {
			return ts, nil, fault.Wrap(err, "open %s", p.Dir)
		}
		ts = append(ts, tree{path: path.Clean(p.Path), fd: fd})
		w.suspect(fd, p.Path, suspects)
		root := rootEnt{path: path.Clean(p.Path)}
		d := &delta{}
		on, err := w.root(fd, old.root(root.path), &root, d)
		if err != nil {
			return ts, nil, fault.Wrap(err, "read %s", p.Dir)
		}
		wk := &worker{walker: w, part: i}
		res := wk.dir(fd, 0, on, d, w.cuts[p.Path])
		ts[i].fd = res.fd
		if res.err != nil {
			return ts, nil, fault.Wrap(res.err, "walk %s", p.Dir)
		}
		root.node = res.node
		next.roots = append(next.roots, root)
		ts[i].delta = res.delta
	}
	return ts, next, nil
}

func (x *Index) root(p string) *rootEnt {
	if x == nil {
		return nil
	}
	for i := range x.roots {
		if x.roots[i].path == p {
			return &x.roots[i]
		}
	}
	return nil
}

// root reads the state of a part's own directory. It is never taken for another
// one: a part's root cannot be replaced from inside.
func (w *walker) root(fd int, old *rootEnt, next *rootEnt, d *delta) (*dirNode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	next.self.set(&st)
	a, err := readAttrs(xattrSource{fd: fd}, w.plain)
	if err != nil {
		return nil, err
	}
	next.self.size = a.sum()
	if old == nil {
		d.leaf, d.self = w.rootIsNews, w.rootIsNews
		return nil, nil
	}
	o, n := &old.self, &next.self
	d.self = o.mode != n.mode || o.uid != n.uid || o.gid != n.gid || o.size != n.size || o.flags&entDirty != 0
	d.leaf = d.self || o.mtime != n.mtime
	return old.node, nil
}

// suspect finds the files behind suspects that lie in a part.
func (w *walker) suspect(fd int, partPath string, suspects []string) {
	for _, sp := range suspects {
		rel, ok := below(partPath, sp)
		if !ok || rel == "" {
			continue
		}
		f, err := openBeneath(fd, rel, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			continue // not in this part: nothing there was written
		}
		var st unix.Stat_t
		if unix.Fstat(f, &st) == nil {
			if w.suspects == nil {
				w.suspects = map[devIno]struct{}{}
			}
			w.suspects[devIno{st.Dev, st.Ino}] = struct{}{}
		}
		unix.Close(f)
	}
}

// openBeneath opens a relative path of any length beneath dir, through no link.
func openBeneath(dir int, rel string, flags uint64) (int, error) {
	cur, own := dir, false
	for {
		head, tail := rel, ""
		if len(rel) > 2048 {
			i := strings.IndexByte(rel[2048:], '/')
			if i >= 0 {
				head, tail = rel[:2048+i], rel[2048+i+1:]
			}
		}
		how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
		if tail != "" {
			how.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
		}
		fd, err := unix.Openat2(cur, head, &how)
		for errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			fd, err = unix.Openat2(cur, head, &how)
		}
		if own {
			unix.Close(cur)
		}
		if err != nil || tail == "" {
			return fd, err
		}
		cur, own, rel = fd, true, tail
	}
}

// emit writes all trees beneath the layer's open fs directory.
func (t trees) emit(e *emitter, fs int) error {
	sorted := slices.Clone(t)
	slices.SortStableFunc(sorted, func(a, b tree) int { return len(a.path) - len(b.path) })
	for _, p := range sorted {
		if p.delta == nil {
			continue
		}
		dst, err := e.skeleton(fs, p.path)
		if err != nil {
			return err
		}
		src, err := openDirAt(p.fd, ".")
		if err != nil {
			unix.Close(dst)
			return err
		}
		prefix := p.path
		if prefix == "/" {
			prefix = ""
		}
		src, dst, err = e.dir(p.delta, src, dst, 0, prefix)
		closeAll(src, dst)
		if err != nil {
			return err
		}
	}
	if !e.rootDone {
		return e.s.fs.SetXattr(fs, xattrSkeleton, []byte("y"))
	}
	return nil
}

// skeleton makes the directories that lead to a part, marked as such, and opens
// the last, which is the part's own. Outer parts come before inner ones.
func (e *emitter) skeleton(fs int, p string) (int, error) {
	cur, err := openDirAt(fs, ".")
	if err != nil {
		return -1, err
	}
	if p == "/" {
		e.rootDone = true
		return cur, nil
	}
	if !e.rootDone {
		e.rootDone = true
		if err := e.s.fs.SetXattr(cur, xattrSkeleton, []byte("y")); err != nil {
			unix.Close(cur)
			return -1, err
		}
	}
	names := strings.Split(strings.Trim(p, "/"), "/")
	for i, name := range names {
		err := e.s.fs.Mkdir(cur, name, 0o755)
		fresh := err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			unix.Close(cur)
			return -1, err
		}
		next, err := openDirAt(cur, name)
		unix.Close(cur)
		if err != nil {
			return -1, err
		}
		cur = next
		if fresh && i < len(names)-1 {
			if err := e.s.fs.SetXattr(cur, xattrSkeleton, []byte("y")); err != nil {
				unix.Close(cur)
				return -1, err
			}
		}
	}
	return cur, nil
}

// building is a layer that is not visible yet.
type building struct {
	s     *Store
	id    timeline.LayerID
	tmp   string
	dir   int // layers/tmp/<id>
	fs    int // its fs
	links int // its links: first copies of files with several names
	undo  undo.Stack
}

// begin makes an empty layer in tmp. b.undo.Run must be deferred: it closes
// everything, and removes the layer unless finish was reached.
func (s *Store) begin(ctx context.Context, id timeline.LayerID) (b *building, err error) {
	if s.Has(id) {
		return nil, fault.New(fault.Exists, "layer %s exists", id)
	}
	b = &building{s: s, id: id, tmp: string(id), dir: -1, fs: -1, links: -1}
	if err := s.fs.Mkdir(s.tmp, b.tmp, 0o700); err != nil {
		return nil, err
	}
	b.undo.Push(func() error { return removeAt(context.WithoutCancel(ctx), s.fs, s.tmp, b.tmp) })
	b.undo.Push(func() error { closeAll(b.links, b.fs, b.dir); return nil })
	defer func() {
		if err != nil {
			b.undo.Run(&err)
		}
	}()
	if b.dir, err = openDirAt(s.tmp, b.tmp); err != nil {
		return b, err
	}
	for _, d := range []struct {
		name string
		fd   *int
	}{{"fs", &b.fs}, {"links", &b.links}} {
		if err = s.fs.Mkdir(b.dir, d.name, 0o700); err != nil {
			return b, err
		}
		if *d.fd, err = openDirAt(b.dir, d.name); err != nil {
			return b, err
		}
	}
	return b, nil
}

// finish makes the layer visible.
func (b *building) finish() error {
	unix.Close(b.links)
	b.links = -1
	if err := removeAt(context.Background(), b.s.fs, b.dir, "links"); err != nil {
		return err
	}
	if err := b.s.fs.Rename(b.s.tmp, b.tmp, b.s.top, string(b.id)); err != nil {
		return err
	}
	b.undo.Release()
	closeAll(b.fs, b.dir)
	return nil
}

// sameAsCopy compares an entry of a live part with its copy in a layer.
func sameAsCopy(tree, partPath string, dirs []string, dir int, name string, plain bool) (bool, error) {
	root, err := openDirAt(unix.AT_FDCWD, tree)
	if err != nil {
		return false, err
	}
	defer unix.Close(root)
	rel := strings.Join(append(strings.Split(strings.Trim(partPath, "/"), "/"), dirs...), "/")
	rel = strings.Trim(rel, "/")
	od := root
	if rel != "" {
		if od, err = openBeneath(root, rel, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			return false, err
		}
		defer unix.Close(od)
	}
	return sameEntry(dir, name, plain, od, name, false)
}

// sameEntry compares two entries that are no directories in everything that a
// snapshot keeps but their links.
func sameEntry(ad int, an string, aplain bool, bd int, bn string, bplain bool) (bool, error) {
	var a, b unix.Stat_t
	if err := lstatAt(ad, an, &a); err != nil {
		return false, err
	}
	if err := lstatAt(bd, bn, &b); err != nil {
		return false, err
	}
	if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || mtimeNs(&a) != mtimeNs(&b) || a.Rdev != b.Rdev || a.Size != b.Size {
		return false, nil
	}
	if a.Mode&unix.S_IFMT == unix.S_IFLNK {
		ta, err := readLinkAt(ad, an)
		if err != nil {
			return false, err
		}
		tb, err := readLinkAt(bd, bn)
		return ta == tb, err
	}
	if !isReg(&a) {
		return true, nil
	}
	fa, err := openFileAt(ad, an, &a)
	if err != nil {
		return false, err
	}
	defer unix.Close(fa)
	fb, err := openFileAt(bd, bn, &b)
	if err != nil {
		return false, err
	}
	defer unix.Close(fb)
	xa, err := readAttrs(xattrSource{fd: fa}, aplain)
	if err != nil {
		return false, err
	}
	xb, err := readAttrs(xattrSource{fd: fb}, bplain)
	if err != nil || !sameAttrs(&xa, &xb) {
		return false, err
	}
	return sameContent(fa, fb, a.Size)
}
