package boxfs

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// held is the depth to which a walk keeps the descriptor of each directory open. Below it, descriptors are closed on
// the way down and reopened through "..", so that a tree of any depth is walked with a bounded number of them.
const held = 64

// dir is a directory on a walk.
type dir struct {
	fd    int
	st    unix.Stat_t
	depth int
	// up and name locate the directory; the start of the walk has neither. The path is joined on demand: stored paths
	// would take memory that grows with the square of the depth.
	up   *dir
	name string
	size int // length of the path in bytes
}

func (d *dir) close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	d.fd = -1
}

// at returns the path of an entry, relative to the start of the walk.
func (d *dir) at(name string) string {
	n := d.sizeAt(name)
	b := make([]byte, n)
	for {
		n -= len(name)
		copy(b[n:], name)
		if d.up == nil {
			return string(b)
		}
		n--
		b[n] = '/'
		d, name = d.up, d.name
	}
}

// sizeAt returns the length of at(name).
func (d *dir) sizeAt(name string) int {
	if d.up == nil {
		return len(name)
	}
	return d.size + 1 + len(name)
}

// sub opens a directory in d. It never follows a link, and refuses file systems of the kernel.
func (r *Root) sub(d *dir, name string) (*dir, error) {
	if d.depth >= limit.Depth {
		return nil, fault.New(fault.TooLarge, "directories are nested more than %d deep", limit.Depth).
			WithHint("remove them in the sandbox: coppice exec NAME -- rm -rf DIRECTORY")
	}
	fd, err := dirfd.Open(d.fd, name, dirfd.DirFlags, dirfd.Beneath)
	if err != nil {
		return nil, err
	}
	s := &dir{fd: fd, depth: d.depth + 1, up: d, name: name, size: d.sizeAt(name)}
	if err = unix.Fstat(fd, &s.st); err == nil && s.st.Dev != d.st.Dev {
		err = r.admit(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// inside runs fn for a directory s in d, and ensures that d is open again afterwards.
func (d *dir) inside(s *dir, fn func() error) error {
	if d.depth < held {
		return fn()
	}
	d.close()
	err := fn()
	if err != nil {
		return err
	}
	d.fd, err = dirfd.OpenAbove(s.fd, d.st.Dev, d.st.Ino)
	return err
}

// start opens the directory at p for a walk; links are followed.
func (r *Root) start(p string) (*dir, error) {
	fd, err := r.open(p, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := r.admit(fd); err != nil {
		return nil, err
	}
	d := &dir{}
	if d.fd, err = reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return nil, err
	}
	if err := unix.Fstat(d.fd, &d.st); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// names returns the names in a directory, sorted. It fails if there are more than most.
func (d *dir) names(ctx context.Context, most int) ([]string, error) {
	r := dirfd.NewReader()
	defer r.Close()
	if err := r.Start(d.fd); err != nil {
		return nil, err
	}
	var all []string
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		name, _, ok, err := r.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			slices.Sort(all)
			return all, nil
		}
		if all = append(all, string(name)); len(all) > most {
			return nil, tooMany(most)
		}
	}
}

func tooMany(most int) error {
	return fault.New(fault.TooLarge, "the directory has more than %d entries", most).
		WithHint("list a subdirectory, or with less depth; or get it as an archive (files/tar)")
}

// gone reports that an entry was moved or removed since its name was read.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// walk calls fn for each entry below d, parents before children, sorted by name; fn returns whether to descend into
// the entry. walk skips entries that are removed meanwhile.
func (r *Root) walk(
	ctx context.Context, d *dir, most int, fn func(d *dir, name string, st *unix.Stat_t) (into bool, err error),
) error {
	names, err := d.names(ctx, most)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		st, err := dirfd.Lstat(d.fd, name)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		if r.decoys[st.Dev] {
			continue
		}
		into, err := fn(d, name, &st)
		if err != nil {
			return err
		}
		if !into || !dirfd.IsDir(&st) {
			continue
		}
		s, err := r.sub(d, name)
		if gone(err) || errors.Is(err, errKernel) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return err
		}
		err = d.inside(s, func() error { return r.walk(ctx, s, most, fn) })
		s.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// List lists the directory p, depth levels down: 0 means 1, and a negative value means all. Directories that the user
// may not read, and those of the kernel, are listed without their content. It returns TooLarge if the result exceeds
// the bounds of a Listing.
func (r *Root) List(ctx context.Context, p string, depth int) (wire.FileList, error) {
	if depth == 0 {
		depth = 1
	}
	list := NewListing(r.limits.List)
	err := r.do("list", p, func() error {
		d, err := r.start(p)
		if err != nil {
			return err
		}
		defer d.close()
		base := strings.Trim(p, "/")
		if base == "." {
			base = ""
		}
		return r.walk(ctx, d, r.limits.List, func(d *dir, name string, st *unix.Stat_t) (bool, error) {
			at := d.at(name)
			if base != "" {
				at = base + "/" + at
			}
			i := r.info(at, st)
			if dirfd.IsLink(st) {
				i.Target, _ = dirfd.Readlink(d.fd, name) // it may have been removed
			}
			return depth < 0 || d.depth+1 < depth, list.Add(i)
		})
	})
	return list.FileList, err
}

// Listing is a list of files with bounds: on the number of entries, and limit.ListBytes on their paths and
// targets.
type Listing struct {
	wire.FileList
	most, size int
}

// NewListing returns an empty list of at most most entries.
func NewListing(most int) *Listing {
	return &Listing{FileList: wire.FileList{Files: []wire.FileInfo{}}, most: most}
}

// Add adds a file, or returns an error of kind fault.TooLarge.
func (l *Listing) Add(i wire.FileInfo) error {
	if len(l.Files) >= l.most {
		return tooMany(l.most)
	}
	if l.size += len(i.Path) + len(i.Raw) + len(i.Target); l.size > limit.ListBytes {
		return fault.New(fault.TooLarge, "the paths and link targets exceed %d bytes", limit.ListBytes).
			WithHint("list a subdirectory, or with less depth")
	}
	l.Files = append(l.Files, i)
	return nil
}
