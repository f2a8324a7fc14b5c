package layer

import (
	"context"
	"errors"
	"os"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// Visit is an entry that View.Below passes to fn. It is valid while fn runs.
type Visit struct {
	f     *found
	start int // depth of the directory that the walk began in
}

// Below calls fn for every entry below the directory p, parents before children, names in order. If fn
// returns fs.SkipDir for a directory, everything below it is skipped; any other error ends the walk. Each
// entry is opened from its directory, whatever its depth.
func (v *View) Below(ctx context.Context, p string, fn func(Visit) error) error {
	m, err := v.dir(p)
	if err != nil {
		return err
	}
	defer m.close()
	return m.walk(ctx, 0, func(_ *mdir, f *found) error { return fn(Visit{f, m.depth}) })
}

// Entry describes the entry. Only the depth of the tree limits the length of its path.
func (x Visit) Entry() Entry { return x.f.entry() }

// Level is 1 for the entries of the directory that the walk began in.
func (x Visit) Level() int { return x.f.m.depth - x.start + 1 }

// Open is View.Open of the entry.
func (x Visit) Open() (*os.File, error) { return x.f.openFile() }

// Xattrs is View.Xattrs of the entry.
func (x Visit) Xattrs() (map[string][]byte, error) { return x.f.xattrs() }

// openFile opens a regular file for reading. The caller closes it.
func (f *found) openFile() (*os.File, error) {
	if !dirfd.IsRegular(&f.st) {
		return nil, fault.New(fault.Invalid, "%q is not a regular file", f)
	}
	fd, err := f.open()
	if err != nil {
		return nil, fault.Wrap(err, "open %q", f)
	}
	return os.NewFile(uintptr(fd), f.String()), nil
}

// xattrs reads the extended attributes as programs inside see them.
func (f *found) xattrs() (map[string][]byte, error) {
	a, err := f.attrs()
	if err := errors.Join(err, a.whole()); err != nil {
		return nil, fault.Wrap(err, "read attributes of %q", f)
	}
	out := map[string][]byte{}
	for _, x := range a.list {
		if !isMark(x) {
			out[unescape(x.Key)] = x.Value
		}
	}
	return out, nil
}
