package boxfs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// scratch is the prefix of temporary files, which Watch does not report.
const scratch = ".coppice-part-"

// maxLinks is the maximum number of links that are followed in the last component of a path, as in open(2).
const maxLinks = 40

// WriteFile replaces the content of the file at p with src, completely or not at all: it writes a temporary file
// beside it and renames that. It creates missing directories. A link in the last component is followed, and its
// target replaced. Only regular files are replaced. Nothing is synced.
func (r *Root) WriteFile(ctx context.Context, p string, src io.Reader, opt wire.WriteOptions) (wire.FileInfo, error) {
	var info wire.FileInfo
	if opt.Mode != nil && *opt.Mode&^0o7777 != 0 {
		return info, fault.New(fault.Invalid, "invalid mode %#o for %q", *opt.Mode, p).
			WithHint("use permission bits, such as 0644")
	}
	var d *draft
	err := r.do("write", p, func() (err error) {
		d, err = r.draft(p, opt)
		return err
	})
	if err != nil {
		return info, err
	}
	defer d.close()
	defer func() {
		if d.part != "" { // it was not renamed
			_ = r.actor.act(func() error { return r.unlink(d.dir, d.part) }) // the first error is returned
		}
	}()
	// The source belongs to this process, so it is not read as the user.
	if err := copyTo(ctx, d.fd, src); err != nil {
		return info, errIs(err, "write %q", p)
	}
	err = r.do("write", p, func() error { return r.publish(d, opt) })
	if err != nil {
		return info, err
	}
	return r.info(p, &d.st), nil
}

// draft is a file that is being written.
type draft struct {
	place
	fd   int
	part string      // its temporary name; "" while it has none
	st   unix.Stat_t // after the write
}

func (d *draft) close() {
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	d.place.close()
}

// draft opens a temporary file beside the one to be written. It has no name if the file system supports that, so that
// it is invisible and a crash leaves nothing behind.
func (r *Root) draft(p string, opt wire.WriteOptions) (*draft, error) {
	at, was, err := r.target(p)
	if err != nil {
		return nil, err
	}
	d := &draft{place: at, fd: -1}
	if err = meets(was, opt); err == nil {
		d.fd, err = openFlags(at.dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOENT) ||
			errors.Is(err, unix.EINVAL) {
			d.part = scratchName()
			d.fd, err = openFlags(at.dir, d.part, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		}
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func openFlags(dir int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func scratchName() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return scratch + hex.EncodeToString(b)
}

// target resolves links in the last component of p, and creates the parent directories. was is the existing file, or
// nil.
func (r *Root) target(p string) (at place, was *unix.Stat_t, err error) {
	for range maxLinks {
		dir, name, err := splitPath(p)
		if err != nil {
			return at, nil, err
		}
		if at, err = r.parent(p); errors.Is(err, unix.ENOENT) {
			if err = r.makeAll(dir, 0o755); err == nil {
				at, err = r.parent(p)
			}
		}
		if err != nil {
			return at, nil, err
		}
		st, err := dirfd.Lstat(at.dir, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return at, nil, nil
		case err != nil:
			at.close()
			return at, nil, err
		case !dirfd.IsLink(&st):
			return at, &st, nil
		}
		to, err := dirfd.Readlink(at.dir, name)
		at.close()
		if err != nil {
			return at, nil, err
		}
		if !path.IsAbs(to) {
			to = dir + to // not cleaned: dir may end in a link
		}
		if p = to; len(p) > 1<<16 {
			return at, nil, unix.ENAMETOOLONG
		}
	}
	return at, nil, unix.ELOOP
}

// meets fails unless the existing file may be replaced.
func meets(was *unix.Stat_t, opt wire.WriteOptions) error {
	switch {
	case was == nil && opt.Match != "":
		return changed("it does not exist")
	case was == nil:
		return nil
	case dirfd.IsDir(was):
		return fault.New(fault.Invalid, "it is a directory").WithHint("use the path of a file in it")
	case !dirfd.IsRegular(was):
		return fault.New(fault.Invalid, "it is not a regular file but a %s", typeOf(was)).WithHint("remove it first")
	case opt.New:
		return fault.New(fault.Exists, "it already exists").WithHint("to replace it, omit If-None-Match")
	case opt.Match != "" && opt.Match != "*" && opt.Match != etag(was):
		return changed("it is " + etag(was) + " now")
	}
	return nil
}

func changed(how string) error {
	return fault.New(fault.Conflict, "it has changed: %s", how).
		WithHint("read it again, then write it with the new ETag")
}

// publish gives a draft its final name.
func (r *Root) publish(d *draft, opt wire.WriteOptions) error {
	r.renames.Lock()
	defer r.renames.Unlock()
	var was *unix.Stat_t
	if st, err := dirfd.Lstat(d.dir, d.name); err == nil {
		was = &st
	} else if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := meets(was, opt); err != nil {
		return err
	}
	if err := r.movable(d.dir, d.name); err != nil {
		return err
	}
	if err := unix.Fchmod(d.fd, modeOf(was, opt.Mode)); err != nil {
		return err
	}
	if was == nil && d.part == "" {
		err := linkFD(d.fd, d.dir, d.name)
		if err == nil {
			return unix.Fstat(d.fd, &d.st)
		}
		if !errors.Is(err, unix.EEXIST) || opt.New {
			return err
		}
	}
	if d.part == "" {
		part := scratchName()
		if err := linkFD(d.fd, d.dir, part); err != nil {
			return err
		}
		d.part = part
	}
	flags := uint(0)
	if opt.New {
		flags = unix.RENAME_NOREPLACE
	}
	if err := unix.Renameat2(d.dir, d.part, d.dir, d.name, flags); err != nil {
		return err
	}
	d.part = ""
	return unix.Fstat(d.fd, &d.st)
}

// modeOf returns the mode of the file: the requested one, or the one that it had. As with write(2), setuid and setgid
// bits that were not requested are cleared.
func modeOf(was *unix.Stat_t, asked *uint32) uint32 {
	switch {
	case asked != nil:
		return *asked
	case was != nil:
		return was.Mode & 0o1777
	}
	return 0o644
}

// linkFD gives a file a name that does not exist yet.
func linkFD(fd, dir int, name string) error {
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
}

const copySize = 512 << 10

var copyBufs = sync.Pool{New: func() any { b := make([]byte, copySize); return &b }}

// copyTo copies src to EOF.
func copyTo(ctx context.Context, fd int, src io.Reader) error {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	for {
		n, err := fill(src, *bp)
		if cerr := ctx.Err(); cerr != nil {
			return context.Cause(ctx)
		}
		if werr := writeAll(fd, (*bp)[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fault.New(fault.Cancelled, "the content ended early").Because(err)
		}
	}
}

// fill reads until b is full or err is not nil.
func fill(src io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = src.Read(b[n:])
		n += m
	}
	return n, err
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// makeAll creates the directory at p and its missing parents. An existing directory, also one behind a link, is not
// changed.
func (r *Root) makeAll(p string, mode uint32) error {
	parts := names(p)
	// A binary search finds the directories that exist: if one exists, so do its parents.
	have, want := 0, len(parts)
	for have < want {
		mid := (have + want + 1) / 2
		fd, err := r.open(strings.Join(parts[:mid], "/"), unix.O_PATH|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			want = mid - 1
			continue
		}
		if err != nil {
			return err
		}
		unix.Close(fd)
		have = mid
	}
	if slices.Contains(parts[have:], "..") {
		return fault.New(fault.Invalid, "%q does not exist, so it has no parent", strings.Join(parts[:have+1], "/")).
			WithHint("use a path without .. after a missing directory")
	}
	cur, err := r.open(strings.Join(parts[:have], "/"), unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		if err = r.admit(cur); err != nil {
			unix.Close(cur)
		}
	}
	if err != nil {
		return err
	}
	for _, name := range parts[have:] {
		next, err := makeOne(cur, name, mode)
		unix.Close(cur)
		if err != nil {
			return err
		}
		cur = next
	}
	unix.Close(cur)
	return nil
}

// makeOne creates a directory unless it exists, and opens it with O_PATH.
func makeOne(dir int, name string, mode uint32) (int, error) {
	if name == ".." || strings.Contains(name, "/") {
		return -1, unix.EINVAL // it would not be in dir
	}
	made := unix.Mkdirat(dir, name, mode)
	if made != nil && !errors.Is(made, unix.EEXIST) {
		return -1, made
	}
	fd, err := dirfd.Open(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, dirfd.Beneath)
	if err != nil || made != nil {
		return fd, err
	}
	if err := exactMode(fd, mode); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// exactMode sets the mode of a new directory, regardless of the umask. It keeps a setgid bit inherited from the
// parent.
func exactMode(fd int, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	mode |= st.Mode & unix.S_ISGID
	if st.Mode&0o7777 == mode {
		return nil
	}
	return chmodFD(fd, mode)
}

// chmodFD is fchmod(2) for an O_PATH descriptor, which must not refer to a link.
func chmodFD(fd int, mode uint32) error {
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), mode, 0)
}

// names splits a path into its components, including "..".
func names(p string) []string {
	var out []string
	for c := range strings.SplitSeq(p, "/") {
		if c != "" && c != "." {
			out = append(out, c)
		}
	}
	return out
}
