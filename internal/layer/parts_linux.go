package layer

import (
	"errors"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// walk compares all parts with the old index.
func (w *walker) walk(parts []rootspec.Part, old *Index) (trees, *Index, error) {
	next := &Index{}
	if old != nil {
		next.origins = old.origins
	}
	var ts trees
	for i, p := range parts {
		fd, err := dirfd.OpenDir(unix.AT_FDCWD, p.Dir)
		if err != nil {
			return ts, nil, fault.Wrap(err, "open %s", p.Dir)
		}
		ts = append(ts, tree{path: path.Clean(p.Path), fd: fd})
		if err := w.suspect(fd, p.Path); err != nil {
			return ts, nil, err
		}
		root, err := w.tree(&ts[i], i, old.root(ts[i].path))
		if err != nil {
			return ts, nil, fault.Wrap(err, "walk %s", p.Dir)
		}
		next.roots = append(next.roots, root)
	}
	return ts, next, nil
}

// tree compares one part. It does so twice if it must take more names of a file than those that have changed.
func (w *walker) tree(t *tree, part int, old *rootEnt) (root rootEnt, err error) {
	before := w.met.Load()
	for w.along = nil; ; {
		w.met.Store(before)
		root = rootEnt{path: t.path}
		at := &place{fd: t.fd, delta: &delta{}, cut: w.cuts[t.path]}
		if at.old, err = w.root(t.fd, old, &root, at.delta); err != nil {
			return root, err
		}
		root.node, t.delta, err = (&worker{walker: w, part: part}).dir(at)
		t.fd = at.fd
		if err != nil || at.old == nil || w.along != nil {
			return root, err
		}
		if w.along = t.delta.torn(root.node); w.along == nil {
			return root, nil
		}
		if _, err := unix.Seek(t.fd, 0, 0); err != nil {
			return root, err
		}
	}
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

// root reads the state of a part's root directory. It is always the same directory: a part's root cannot be replaced
// from inside.
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
	d.self = o.mode != n.mode || o.uid != n.uid || o.gid != n.gid || o.size != n.size
	d.leaf = d.self || o.mtime != n.mtime
	if d.leaf {
		w.seen.add(n.ctime)
	}
	return old.node, nil
}

// Suspects are files that processes have mapped shared and writable. A file that matches in any way is a
// suspect; too many suspects cost only time.
type Suspects struct {
	Paths  []string  // absolute, inside; those outside all parts are ignored
	Inodes []uint64  // of any part
	Since  time.Time // unless zero: also files that changed since then
}

// Any reports whether anything is suspected.
func (s Suspects) Any() bool { return len(s.Paths)+len(s.Inodes) > 0 || !s.Since.IsZero() }

// suspect finds the named suspects in a part. A file that does not exist has not been written.
func (w *walker) suspect(fd int, partPath string) error {
	for _, p := range w.named {
		rel, ok := below(partPath, p)
		if !ok || rel == "" {
			continue
		}
		f, err := dirfd.OpenLong(fd, rel, unix.O_PATH|unix.O_NOFOLLOW, dirfd.Beneath)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue
		}
		var st unix.Stat_t
		if err == nil {
			err = errors.Join(unix.Fstat(f, &st), unix.Close(f))
		}
		if err != nil {
			return fault.Wrap(err, "find the mapped files of %q", p)
		}
		w.suspects[st.Ino] = struct{}{}
	}
	return nil
}

// cut is the tree of paths at which another part begins.
type cut struct {
	end  bool
	kids map[string]*cut
}

// makeCuts finds, for each part, the paths below it at which other parts begin.
func makeCuts(parts []rootspec.Part) map[string]*cut {
	out := map[string]*cut{}
	for _, p := range parts {
		for _, q := range parts {
			rel, ok := below(p.Path, q.Path)
			if !ok || rel == "" {
				continue
			}
			at := path.Clean(p.Path)
			c := out[at]
			if c == nil {
				c = &cut{kids: map[string]*cut{}}
				out[at] = c
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

// below returns q relative to p, if it is p or below it.
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
