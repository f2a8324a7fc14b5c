package layer

import (
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/timeline"
)

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

// compare finds the new directories that are copies of those in head, which may be
// nil, or give nil.
func (t trees) compare(head func() *View) {
	if t.empty() || head == nil {
		return
	}
	known := head()
	for _, p := range t {
		if p.delta != nil && known != nil {
			p.delta.compare(known, p.path)
		}
	}
}

func (d *delta) compare(known *View, at string) {
	if d.isNew {
		if d.copied = !d.opaque && d.isCopy(known, at); !d.copied {
			return // all below is new as well
		}
	}
	for _, k := range d.kids {
		k.compare(known, path.Join(at, k.name))
	}
}

// isCopy reports whether known has the same directory, but for its times.
func (d *delta) isCopy(known *View, at string) bool {
	same := false
	err := known.at(at, func(_ *mdir, f *found) error {
		a, err := f.attrs()
		same = f.st.Mode == d.ent.mode && f.st.Uid == d.ent.uid && f.st.Gid == d.ent.gid && a.sum() == d.ent.size
		return err
	})
	return err == nil && same
}

// timesAlone reports whether all that was chosen are directories of which nothing
// but a time has changed.
func (t trees) timesAlone() bool {
	for _, p := range t {
		if p.delta != nil && !p.delta.timesAlone() {
			return false
		}
	}
	return true
}

func (d *delta) timesAlone() bool {
	if d.opaque || d.self || d.isNew && !d.copied || len(d.items)+len(d.gone) > 0 {
		return false
	}
	for _, k := range d.kids {
		if !k.timesAlone() {
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

// first gives up to n of the changed paths, and which of them are removed.
func (t trees) first(n int) (out, gone []string) {
	for _, p := range t {
		if p.delta != nil {
			out, gone = p.delta.first(out, gone, strings.TrimSuffix(p.path, "/"), n)
		}
	}
	return out, gone
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
