package layer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
	"github.com/coppice-dev/coppice/internal/timeline"
)

// trees is the result of walking the parts.
type trees []tree

type tree struct {
	path  string
	fd    int
	delta *delta // nil: nothing changed
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

// compare finds the new directories that are copies of those in head, which may be nil or return nil.
func (t trees) compare(ctx context.Context, head func() *View) error {
	if t.empty() || head == nil {
		return nil
	}
	known := head()
	for _, p := range t {
		if p.delta == nil || known == nil {
			continue
		}
		if err := noCopy(p.delta.compareRoot(ctx, known, p.path)); err != nil {
			return fault.Wrap(err, "compare %q with the last snapshot", p.path)
		}
	}
	return nil
}

// noCopy returns nil for the error of a directory of a snapshot that is missing or cannot be read: then nothing is a
// copy of it, and everything in it counts as changed. Any other error, such as a lack of descriptors, is not about
// the directory.
func noCopy(err error) error {
	if fault.Is(err, fault.NotFound) || unreadable(err) || moved(err) {
		return nil
	}
	return err
}

// compareRoot compares the delta of a part with the directory at a path of known.
func (d *delta) compareRoot(ctx context.Context, known *View, at string) error {
	return known.at(at, func(m *mdir, f *found) error {
		if !dirfd.IsDir(&f.st) {
			return nil
		}
		copied, err := d.isCopyOf(f)
		if err != nil || !copied {
			return err
		}
		if f.name == "." {
			return d.compare(ctx, m, 0)
		}
		sub, err := m.sub(f)
		if err != nil {
			return err
		}
		defer sub.close()
		return d.compare(ctx, sub, 0)
	})
}

// isCopyOf reports whether a directory is a copy of f. A directory that is not new always is. If it is not a copy,
// everything below it is new too.
func (d *delta) isCopyOf(f *found) (copied bool, err error) {
	if !d.isNew {
		return true, nil
	}
	if !d.opaque {
		d.copied, err = d.like(f)
	}
	return d.copied, err
}

// compare compares the directories in d with m, their previous state.
func (d *delta) compare(ctx context.Context, m *mdir, depth int) error {
	for _, k := range d.kids {
		if err := ctx.Err(); err != nil {
			return err
		}
		sub, err := k.known(m)
		if err = noCopy(err); err != nil {
			return err
		}
		if sub == nil {
			continue
		}
		// An error leaves m closed, so nothing more in it can be compared.
		err = m.inside(sub, depth, func() error { return k.compare(ctx, sub, depth+1) })
		sub.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// known opens the directory in m that d is a copy of; nil if there is none, or if d contains
// no directories to compare. The caller closes it.
func (d *delta) known(m *mdir) (*mdir, error) {
	f, err := m.child(d.name)
	if err != nil || f == nil || !dirfd.IsDir(&f.st) {
		return nil, err
	}
	copied, err := d.isCopyOf(f)
	if err != nil || !copied || len(d.kids) == 0 {
		return nil, err
	}
	return m.sub(f)
}

// like reports whether f is the same directory, except for its times.
func (d *delta) like(f *found) (bool, error) {
	a, err := f.attrs()
	return f.st.Mode == d.ent.mode && f.st.Uid == d.ent.uid && f.st.Gid == d.ent.gid && a.sum() == d.ent.size, err
}

// timesAlone reports whether only times of directories have changed.
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

// first returns up to n of the changed paths, of limit.NamedBytes in total, and which of them were removed.
func (t trees) first(n int) (out, gone []string) {
	l := namer{most: n, left: limit.NamedBytes}
	for _, p := range t {
		if p.delta != nil && !l.full {
			l.add(p.delta, &trail{name: strings.TrimSuffix(p.path, "/")})
		}
	}
	return l.out, l.gone
}

// keepRoot chooses only the root directory, so that an empty layer has its metadata.
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
		src, err := dirfd.OpenDir(p.fd, ".")
		if err != nil {
			unix.Close(dst)
			return err
		}
		prefix := p.path
		if prefix == "/" {
			prefix = ""
		}
		src, dst, err = e.dir(p.delta, src, dst, 0, &trail{name: prefix})
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

// skeleton makes the directories that lead to a part, marked as skeletons, and the part's own directory, which it
// opens. Outer parts come before inner ones.
func (e *emitter) skeleton(fs int, p string) (int, error) {
	cur, err := dirfd.OpenDir(fs, ".")
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
		next, err := dirfd.OpenDir(cur, name)
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
