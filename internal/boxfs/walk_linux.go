package boxfs

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// held is how deep a walk keeps each directory's descriptor. Below that it closes
// them on the way down and comes back by "..", so that a tree of any depth is
// walked with a bounded number of them.
const held = 64

const openDir = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK

// dir is a directory on a walk.
type dir struct {
	fd    int
	st    unix.Stat_t
	depth int
	// up and name locate the directory; where the walk began has neither. The path is
	// joined on demand: if held, paths would take memory with the square of a tree's depth.
	up   *dir
	name string
	size int // bytes of the path
}

func (d *dir) close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	d.fd = -1
}

// at gives the path of an entry.
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

// sizeAt is the length of at.
func (d *dir) sizeAt(name string) int {
	if d.up == nil {
		return len(name)
	}
	return d.size + 1 + len(name)
}

// sub opens a directory in d, never through a link, and only where the files are
// not the kernel's.
func (r *Root) sub(d *dir, name string) (*dir, error) {
	if d.depth >= limit.Depth {
		return nil, fault.New(fault.TooLarge, "more than %d directories lie one in another", limit.Depth).
			WithHint("remove them in the sandbox, as in: coppice exec NAME -- rm -rf DIRECTORY")
	}
	fd, err := openAt(d.fd, name, openDir)
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

// inside runs fn for a directory below d, and has d open again afterwards.
func (d *dir) inside(s *dir, fn func() error) error {
	if d.depth < held {
		return fn()
	}
	d.close()
	err := fn()
	if err != nil {
		return err
	}
	fd, err := openFlags(s.fd, "..", openDir, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (st.Ino != d.st.Ino || st.Dev != d.st.Dev) {
		err = unix.ESTALE // it was moved meanwhile
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	d.fd = fd
	return nil
}

// openAt opens an entry of a directory. No name can lead out of it.
func openAt(dir int, name string, flags int) (int, error) {
	return openat2(dir, name, uint64(flags), unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
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

var dirBufs = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// names reads the names in a directory, in order; most is how many it may have.
func (d *dir) names(ctx context.Context, most int) ([]string, error) {
	bp := dirBufs.Get().(*[]byte)
	defer dirBufs.Put(bp)
	if _, err := unix.Seek(d.fd, 0, 0); err != nil {
		return nil, err
	}
	var out []string
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		n, err := unix.Getdents(d.fd, *bp)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			slices.Sort(out)
			return out, nil
		}
		if out, err = entries(out, (*bp)[:n]); err != nil {
			return nil, err
		}
		if len(out) > most {
			return nil, tooMany(most)
		}
	}
}

// entries adds the names in what getdents64(2) gave.
func entries(out []string, b []byte) ([]string, error) {
	const head = 19 // ino, off, reclen, type
	for len(b) > 0 {
		if len(b) < head {
			return nil, unix.EIO
		}
		size := int(binary.NativeEndian.Uint16(b[16:]))
		if size < head || size > len(b) {
			return nil, unix.EIO
		}
		name, _, _ := strings.Cut(string(b[head:size]), "\x00")
		if b = b[size:]; name == "" || strings.Contains(name, "/") {
			return nil, unix.EIO
		}
		if name != "." && name != ".." {
			out = append(out, name)
		}
	}
	return out, nil
}

func tooMany(most int) error {
	return fault.New(fault.TooLarge, "there are more than %d entries", most).
		WithHint("look at a directory further down, or less deep; or get it as an archive (files/tar)")
}

// gone reports that something was moved or removed since its name was read.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// walk calls fn for each entry below d, parents before children, names in order;
// fn says whether to go into it. What is removed meanwhile is left out.
func (r *Root) walk(ctx context.Context, d *dir, most int, fn func(d *dir, name string, st *unix.Stat_t) (into bool, err error)) error {
	names, err := d.names(ctx, most)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		var st unix.Stat_t
		if err := lstat(d.fd, name, &st); gone(err) {
			continue
		} else if err != nil {
			return err
		}
		if r.decoys[st.Dev] {
			continue
		}
		into, err := fn(d, name, &st)
		if err != nil {
			return err
		}
		if !into || !isDir(&st) {
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

// List gives what is in the directory p, depth levels down: 0 is 1, below 0 is all.
// Directories that the user may not read, and those of the kernel, are listed and
// not entered. TooLarge when there is more than a Listing holds.
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
			if isLink(st) {
				i.Target, _ = readLink(d.fd, name) // it may be gone
			}
			return depth < 0 || d.depth+1 < depth, list.Add(i)
		})
	})
	return list.FileList, err
}

// Listing is a list of files with bounds: on the number of entries, and limit.ListBytes on
// their paths and targets.
type Listing struct {
	wire.FileList
	most, size int
}

// NewListing returns an empty list of at most that many entries.
func NewListing(most int) *Listing {
	return &Listing{FileList: wire.FileList{Files: []wire.FileInfo{}}, most: most}
}

// Add adds a file, or returns an error of kind fault.TooLarge.
func (l *Listing) Add(i wire.FileInfo) error {
	if len(l.Files) >= l.most {
		return tooMany(l.most)
	}
	if l.size += len(i.Path) + len(i.Raw) + len(i.Target); l.size > limit.ListBytes {
		return fault.New(fault.TooLarge, "the paths and link targets have more than %d bytes", limit.ListBytes).WithHint("look at a directory further down, or less deep")
	}
	l.Files = append(l.Files, i)
	return nil
}
