package layer

import (
	"context"
	"errors"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/rootspec"
)

// RewindInput describes a Rewind.
type RewindInput struct {
	// Root is the live root as its processes see it: an open directory. No process may write to it meanwhile. If one
	// does, the result is wrong, but nothing outside the root is changed.
	Root int
	// Parts are the mount points, inside, of the file systems of the root whose content has a history; see
	// rootspec.Part.
	Parts []string
	// Kept are mount points of the sandbox, which are neither removed nor replaced.
	Kept []string
	// Target is the new content of the root. Touched are the trees in which it can differ from the present content:
	// the layers that only the target's stack or only the present stack has.
	Target  *View
	Touched []rootspec.Part
	Owners  Owners
	// Mapped reports whether a process may have the file mapped or run it; such a file is replaced and not written
	// to. nil: no file is.
	Mapped func(path string, ino uint64) bool
}

// Owners maps stored ids to ids in a live root: N below Size to Shift+N, others to the overflow id. The zero value
// leaves them as they are.
type Owners struct{ Shift, Size uint32 }

// seen returns id as it appears in the live root.
func (o Owners) seen(id uint32) uint32 {
	switch {
	case o.Size == 0:
		return id
	case id < o.Size:
		return o.Shift + id
	}
	return overflowID // not mapped in the sandbox
}

const overflowID = 65534

// Rewind makes a live root equal to a snapshot while processes have files of it open, and returns how many
// paths it changed. Directories that exist on both sides keep their inodes, so working directories and
// watches stay valid. So do files, which are written in place: a process that appends to one continues in the
// visible file. But a file that is mapped, or has several names, is replaced by a new one.
//
// After a failure the root is between the two states; a Rewind to either completes it. Names of a file that are not
// in Touched are not linked again.
//
// Files that the calling thread creates must be stored with owner id 0.
func (s *Store) Rewind(ctx context.Context, in RewindInput) (paths int, err error) {
	r := &rewinder{s: s, ctx: ctx, RewindInput: in, first: map[fileKey]placed{}, claimed: map[devIno]bool{}}
	m, err := in.Target.root()
	if err != nil {
		return 0, fault.Wrap(err, "rewind")
	}
	defer m.close()
	t, err := newTouched(in.Touched)
	defer t.close()
	if err != nil {
		return 0, fault.Wrap(err, "rewind")
	}
	fd, err := dirfd.OpenDir(in.Root, ".")
	if err != nil {
		return 0, fault.Wrap(err, "rewind")
	}
	at := standing{kept: newPlaces(in.Kept), parts: newPlaces(in.Parts)}
	if fd, err = r.dir(fd, m, t, at, 0); err == nil {
		var f *found
		if f, err = m.self(); err == nil {
			err = r.dirMeta(fd, f, at, false)
		}
	}
	closeAll(fd)
	return r.paths, fault.Wrap(err, "rewind")
}

type rewinder struct {
	RewindInput
	s     *Store
	ctx   context.Context
	paths int // changed so far

	// first has the files of the target with several names, and where the first of them is in the live root.
	first map[fileKey]placed
	// claimed has the files of the live root with several names that a file of the target has taken: another file of
	// the target needs a separate one.
	claimed map[devIno]bool
}

// fileKey identifies a file of a view.
type fileKey struct {
	src int
	ino uint64
}

// placed is the place of a file in the live root.
type placed struct {
	dir  *mdir
	name string
	id   devIno
}

// standing is the position of a directory relative to the sandbox's mount points and the parts.
type standing struct {
	kept, parts places
	within      bool // in a part, or its root
}

// in returns the standing of the entry name.
func (s standing) in(name string) standing {
	next := standing{within: s.within || s.parts.here()}
	next.kept = s.kept.below(name)
	next.parts = s.parts.below(name)
	return next
}

// dir makes the content of the open directory live equal to m. It owns live and returns it, reopened if the tree is
// deep.
func (r *rewinder) dir(live int, m *mdir, t touchedDir, at standing, depth int) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return live, err
	}
	names, err := r.names(live, m, t)
	if err != nil {
		return live, fault.Wrap(err, "list %q", m)
	}
	var touched map[string]*found
	if !t.all {
		if touched, err = t.names(r.ctx, math.MaxInt); err != nil {
			return live, fault.Wrap(err, "list %q", m)
		}
	}
	for _, name := range names {
		if err := r.ctx.Err(); err != nil {
			return live, err
		}
		f, err := m.child(name)
		in := at.in(name)
		switch {
		case err != nil:
		case f == nil:
			err = r.remove(live, name, in)
		case dirfd.IsDir(&f.st):
			live, err = r.subdir(live, f, t, touched[name], in, depth)
		case in.kept.here():
			err = fault.New(fault.Conflict, "it is a mount point").
				WithHint("drop --in-place, so that the sandbox is stopped and mounted again")
		default:
			err = r.entry(live, f, in)
		}
		if err != nil {
			return live, stuckAt(err, &found{m: m, name: name})
		}
	}
	return live, nil
}

// stuck is an error with the place where it happened.
type stuck struct{ error }

func (s stuck) Unwrap() error { return s.error }

// stuckAt adds the place where err happened, once, and not in each directory above.
func stuckAt(err error, f *found) error {
	if _, known := errors.AsType[stuck](err); known {
		return err
	}
	return stuck{fault.Wrap(err, "restore %q", f)}
}

// names returns the names in which live and m can differ, sorted.
func (r *rewinder) names(live int, m *mdir, t touchedDir) ([]string, error) {
	var names []string
	if !t.all {
		touched, err := t.names(r.ctx, math.MaxInt)
		for name := range touched {
			names = append(names, name)
		}
		slices.Sort(names)
		return names, err
	}
	rd := dirfd.NewReader()
	defer rd.Close()
	if err := rd.Start(live); err != nil {
		return nil, err
	}
	names, err := rd.Names()
	if err != nil {
		return nil, err
	}
	list, err := m.list(r.ctx, math.MaxInt)
	for i := range list {
		names = append(names, list[i].name)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// subdir restores the directory f of live.
func (r *rewinder) subdir(live int, f *found, t touchedDir, tf *found, at standing, depth int) (int, error) {
	st, err := dirfd.Lstat(live, f.name)
	if err == nil && !dirfd.IsDir(&st) {
		if err = r.s.fs.Unlink(live, f.name); err == nil {
			err = unix.ENOENT
		}
	}
	fresh := errors.Is(err, unix.ENOENT)
	if fresh {
		r.paths++
		err = r.s.fs.Mkdir(live, f.name, 0o700)
	}
	if err != nil {
		return live, err
	}
	fd, err := r.open(live, f.name, at)
	if errors.Is(err, unix.EXDEV) {
		return live, nil // a mount of the sandbox
	}
	if err != nil {
		return live, err
	}
	defer func() { closeAll(fd) }()
	next := touchedDir{all: true}
	if !t.all && !fresh {
		if next, err = t.sub(tf, f.name); err != nil {
			return live, err
		}
	}
	defer next.close()
	sub, err := f.m.sub(f)
	if err != nil {
		return live, err
	}
	defer sub.close()
	deep := depth >= viewHeld
	if deep {
		if err := unix.Fstat(live, &st); err != nil {
			return live, err
		}
		if err := errors.Join(f.m.park(sub), t.park(next)); err != nil {
			return live, err
		}
		closeAll(live)
		live = -1
	}
	if fd, err = r.dir(fd, sub, next, at, depth+1); err != nil {
		return live, err
	}
	if deep {
		back, err := dirfd.OpenAbove(fd, st.Dev, st.Ino)
		live = back
		if err = errors.Join(err, f.m.unpark(sub), t.unpark(next)); err != nil {
			return live, err
		}
	}
	return live, r.dirMeta(fd, f, at, fresh)
}

// open opens a directory of the live root. It follows no link, and enters no mount except a part.
func (r *rewinder) open(dir int, name string, at standing) (int, error) {
	if at.parts.here() {
		return dirfd.OpenDir(dir, name)
	}
	return dirfd.Open(dir, name, dirfd.DirFlags, dirfd.Beneath|dirfd.OneMount)
}

// remove removes an entry that the target does not have.
func (r *rewinder) remove(dir int, name string, at standing) error {
	if at.kept.here() {
		return nil // the sandbox needs it
	}
	if !at.kept.none() {
		return fault.New(fault.Conflict, "it contains the mount point %s", at.kept.rest(at.kept.list[0])).
			WithHint("drop --in-place, so that the sandbox is stopped and mounted again")
	}
	err := removeAt(r.ctx, r.s.fs, dir, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	r.paths++
	return err
}

// dirMeta sets the metadata of a directory to the target's, its time last.
func (r *rewinder) dirMeta(fd int, f *found, at standing, fresh bool) error {
	root := at.parts.here()
	if at.kept.here() && !root || !root && !at.within {
		return nil // not in the history: a mount point, or a directory above a part
	}
	var st unix.Stat_t
	want, err := f.dirAttrs(&st)
	if err != nil {
		return err
	}
	changed, err := r.meta(node{fd: fd}, &st, &want, root)
	if changed && !fresh {
		r.paths++
	}
	return err
}
