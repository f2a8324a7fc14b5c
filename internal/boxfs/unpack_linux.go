package boxfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/archive"
	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// keptCost is the memory per remembered directory or link in addition to its name, in bytes.
const keptCost = 128

// TarFrom unpacks an archive, tar or tar compressed with gzip, zstd or xz, into the directory at p, which it creates
// if missing. Unpacked files belong to the user, without setuid and setgid bits. Names are relative to p. It skips
// and reports entries that would be outside of p, entries below a link that the archive itself contains, and devices.
// A file replaces an existing one of its name unless that is a directory. An existing directory is kept, also one
// behind a link.
//
// After an error, entries that were unpacked before it remain.
func (r *Root) TarFrom(ctx context.Context, p string, src io.Reader) (wire.UnpackResult, error) {
	if err := r.valid(p); err != nil {
		return wire.UnpackResult{}, err
	}
	plain, done, err := archive.Open(ctx, src, archive.Limits{Bytes: r.limits.Bytes, Window: limit.UnpackWindow})
	if err != nil {
		return wire.UnpackResult{}, fault.Wrap(err, "unpack into %q", p)
	}
	defer done()
	u := &unpack{r: r, ctx: ctx, base: strings.TrimRight(p, "/"), links: map[string]bool{}, parent: -1}
	defer u.leave()
	err = u.all(tar.NewReader(plain))
	if err == nil {
		// Data after the end of the archive is ignored, but read for the checksum of the compression format.
		if _, err = io.Copy(io.Discard, plain); err != nil {
			err = archive.Damaged(err)
		}
	}
	return u.res, errIs(err, "unpack into %q", p)
}

// unpack is one call of TarFrom.
type unpack struct {
	r    *Root
	ctx  context.Context
	base string // directory in the root; "" is the root itself
	res  wire.UnpackResult

	links  map[string]bool // links from the archive, by name
	dirs   []pending
	kept   int    // memory of links and dirs in bytes
	at     string // path of parent, relative to base
	parent int    // O_PATH descriptor of the last entered directory; -1: none
}

// pending is a directory that gets its mode and time at the end.
type pending struct {
	name  string
	mode  uint32
	mtime unix.Timespec
}

// all unpacks all entries. It reads the archive as this process, and writes as the user.
func (u *unpack) all(tr *tar.Reader) error {
	n := int64(0)
	for first := true; ; first = false {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && !first {
			return u.r.actor.act(u.finish)
		}
		if errors.Is(err, io.EOF) {
			return fault.New(fault.Invalid, "not a tar archive, or empty").
				WithHint("send tar, or tar compressed with gzip or zstd")
		}
		if err != nil {
			return archive.Damaged(err)
		}
		if n++; n > u.r.limits.Entries {
			return fault.New(fault.TooLarge, "the archive holds more than %d entries", u.r.limits.Entries).
				WithHint("send it in parts")
		}
		if err := u.entry(h, tr); err != nil {
			return errIs(err, "entry %.300q", h.Name)
		}
	}
}

// note adds an entry that was skipped or changed to the report.
func (u *unpack) note(name, format string, args ...any) {
	switch n := len(u.res.LeftOut); {
	case n < limit.UnpackReports:
		u.res.LeftOut = append(u.res.LeftOut, fmt.Sprintf("%.300q: ", name)+fmt.Sprintf(format, args...))
	case n == limit.UnpackReports:
		u.res.LeftOut = append(u.res.LeftOut, "and more")
	}
}

func (u *unpack) entry(h *tar.Header, src io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // git archive writes one
	}
	if err := archive.Fits(h.Name); err != nil {
		return err
	}
	parts, changed, ok := archive.Name(h.Name)
	if !ok {
		u.note(h.Name, "left out: its name leads outside the archive or is too long")
		return nil
	}
	if changed {
		u.note(h.Name, "taken as relative")
	}
	if len(parts) == 0 {
		return u.r.actor.act(func() error { _, err := u.enter(nil); return err })
	}
	if len(parts) > 1 && u.behindLink(parts[:len(parts)-1]) {
		u.note(h.Name, "left out: it is below a symbolic link of the archive")
		return nil
	}
	dir, name := parts[:len(parts)-1], parts[len(parts)-1]
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse || h.Typeflag == tar.TypeCont {
		return u.file(h, dir, name, src)
	}
	return u.r.actor.act(func() error {
		if ok, err := u.enter(dir); err != nil || !ok {
			if err == nil {
				u.noDir(h)
			}
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			return u.dir(h, parts, name)
		case tar.TypeSymlink:
			return u.symlink(h, parts, name)
		case tar.TypeLink:
			return u.hardlink(h, parts, name)
		case tar.TypeFifo:
			return u.fifo(h, parts, name)
		case tar.TypeChar, tar.TypeBlock:
			u.note(h.Name, "left out: device nodes are not unpacked")
		default:
			u.note(h.Name, "left out: unknown entry type %q", h.Typeflag)
		}
		return nil
	})
}

func (u *unpack) noDir(h *tar.Header) {
	u.note(h.Name, "left out: its parent is not a directory")
}

// behindLink reports whether a link of the archive is in the path of a directory.
func (u *unpack) behindLink(parts []string) bool {
	if len(u.links) == 0 {
		return false
	}
	name := strings.Join(parts, "/")
	for end := 0; end < len(name); end++ {
		if i := strings.IndexByte(name[end:], '/'); i >= 0 {
			end += i
		} else {
			end = len(name)
		}
		if u.links[name[:end]] {
			return true
		}
	}
	return false
}

func (u *unpack) leave() {
	if u.parent >= 0 {
		unix.Close(u.parent)
	}
	u.parent = -1
}

// path returns the path of a name in the root.
func (u *unpack) path(parts []string) string { return u.base + "/" + strings.Join(parts, "/") }

// enter opens a directory, and creates its missing parents.
func (u *unpack) enter(parts []string) (ok bool, err error) {
	name := strings.Join(parts, "/")
	if u.parent >= 0 && u.at == name {
		return true, nil
	}
	if u.down(name) {
		return true, nil
	}
	u.leave()
	fd, err := u.r.open(u.path(parts), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if err = u.r.makeAll(u.path(parts), 0o755); err == nil {
			fd, err = u.r.open(u.path(parts), unix.O_PATH|unix.O_DIRECTORY)
		}
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := u.r.admit(fd); err != nil {
		unix.Close(fd)
		return false, err
	}
	u.parent, u.at = fd, name
	return true, nil
}

// down enters a directory below the open one, if no link is in between: archives list directories level by level.
func (u *unpack) down(name string) bool {
	if u.parent < 0 || u.at != "" && !strings.HasPrefix(name, u.at+"/") {
		return false
	}
	rest := strings.TrimPrefix(name[len(u.at):], "/")
	if rest == "" {
		return false
	}
	fd, err := dirfd.OpenLong(u.parent, rest, unix.O_PATH|unix.O_DIRECTORY, dirfd.Beneath)
	if err != nil {
		return false
	}
	if u.r.admit(fd) != nil {
		unix.Close(fd)
		return false
	}
	u.leave()
	u.parent, u.at = fd, name
	return true
}

// clear removes the file at name, so that the entry can replace it. It keeps a directory.
func (u *unpack) clear(h *tar.Header, parts []string, name string) (ok bool, err error) {
	u.r.renames.Lock()
	if err = u.r.movable(u.parent, name); err == nil {
		err = unix.Unlinkat(u.parent, name, 0)
	}
	u.r.renames.Unlock()
	if errors.Is(err, unix.EISDIR) {
		u.note(h.Name, "left out: a directory of that name exists")
		return false, nil
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		delete(u.links, strings.Join(parts, "/"))
		return true, nil
	}
	return false, err
}

func (u *unpack) dir(h *tar.Header, parts []string, name string) error {
	err := unix.Mkdirat(u.parent, name, 0o755)
	if errors.Is(err, unix.EEXIST) {
		fd, oerr := u.r.open(u.path(parts), unix.O_PATH|unix.O_DIRECTORY)
		if oerr == nil { // also through a link, which is kept
			unix.Close(fd)
			return nil
		}
		if ok, cerr := u.clear(h, parts, name); cerr != nil || !ok {
			return cerr
		}
		err = unix.Mkdirat(u.parent, name, 0o755)
	}
	if err != nil {
		return err
	}
	fd, err := dirfd.Open(u.parent, name, dirfd.DirFlags, dirfd.Beneath)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := u.setXattrs(fd, h); err != nil {
		return err
	}
	at := strings.Join(parts, "/")
	if u.kept += len(at) + keptCost; u.kept > limit.ArchiveKept {
		u.note(h.Name, "its mode and time were left out: too many directories")
		return exactMode(fd, uint32(h.Mode)&0o1777)
	}
	u.dirs = append(u.dirs, pending{at, uint32(h.Mode) & 0o1777, unix.NsecToTimespec(h.ModTime.UnixNano())})
	return nil
}

// plainMode returns the permission bits of a header that an unpacked file may have.
func (u *unpack) plainMode(h *tar.Header) uint32 {
	if h.Mode&0o6000 != 0 {
		u.note(h.Name, "its setuid and setgid bits were left out")
	}
	return uint32(h.Mode) & 0o777
}

func (u *unpack) file(h *tar.Header, dir []string, name string, src io.Reader) error {
	if h.Size < 0 || h.Size > u.r.limits.Bytes-u.res.Bytes {
		return fault.New(fault.TooLarge, "the archive holds more than %d bytes", u.r.limits.Bytes).
			WithHint("send it in parts")
	}
	fd := -1
	err := u.r.actor.act(func() error {
		ok, err := u.enter(dir)
		if err != nil {
			return err
		}
		if !ok {
			u.noDir(h)
			return nil
		}
		if ok, err = u.clear(h, append(dir[:len(dir):len(dir)], name), name); err != nil || !ok {
			return err
		}
		fd, err = openFlags(u.parent, name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := u.content(fd, h.Size, src); err != nil {
		return err
	}
	u.res.Bytes += h.Size
	u.res.Files++
	return u.r.actor.act(func() error {
		if err := u.setXattrs(fd, h); err != nil {
			return err
		}
		if err := unix.Fchmod(fd, u.plainMode(h)); err != nil {
			return err
		}
		at := unix.NsecToTimespec(h.ModTime.UnixNano())
		return touch(fd, at)
	})
}

func touch(fd int, at unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), []unix.Timespec{at, at}, 0)
}

// content writes a file. Blocks of zeros become holes, so that a sparse file stays sparse.
func (u *unpack) content(fd int, size int64, src io.Reader) error {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	hole := false
	for off := int64(0); off < size; {
		if u.ctx.Err() != nil {
			return context.Cause(u.ctx)
		}
		b := (*bp)[:min(size-off, int64(len(*bp)))]
		if _, err := io.ReadFull(src, b); err != nil {
			return archive.Damaged(err)
		}
		if hole = len(b) >= 4096 && allZero(b); hole {
			if _, err := unix.Seek(fd, int64(len(b)), io.SeekCurrent); err != nil {
				return err
			}
		} else if err := writeAll(fd, b); err != nil {
			return err
		}
		off += int64(len(b))
	}
	if hole {
		return unix.Ftruncate(fd, size)
	}
	return nil
}

func allZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

func (u *unpack) symlink(h *tar.Header, parts []string, name string) error {
	if h.Linkname == "" || len(h.Linkname) > 4095 || strings.IndexByte(h.Linkname, 0) >= 0 {
		u.note(h.Name, "left out: its target is empty or too long")
		return nil
	}
	if ok, err := u.clear(h, parts, name); err != nil || !ok {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, u.parent, name); err != nil {
		return err
	}
	if err := u.made(parts); err != nil {
		return err
	}
	u.res.Files++
	return u.stamp(h, name)
}

// made remembers a link from the archive. It fails at the limit, since no link may be forgotten.
func (u *unpack) made(parts []string) error {
	at := strings.Join(parts, "/")
	if u.kept += len(at) + keptCost; u.kept > limit.ArchiveKept {
		return fault.New(fault.TooLarge, "the archive holds too many links and directories").WithHint("send it in parts")
	}
	u.links[at] = true
	return nil
}

// stamp sets the time of an entry without opening it.
func (u *unpack) stamp(h *tar.Header, name string) error {
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(u.parent, name, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

func (u *unpack) fifo(h *tar.Header, parts []string, name string) error {
	if ok, err := u.clear(h, parts, name); err != nil || !ok {
		return err
	}
	if err := unix.Mknodat(u.parent, name, unix.S_IFIFO|u.plainMode(h), 0); err != nil {
		return err
	}
	u.res.Files++
	return u.stamp(h, name)
}

// hardlink creates a hard link to another name below base.
func (u *unpack) hardlink(h *tar.Header, parts []string, name string) error {
	target, _, ok := archive.Name(h.Linkname)
	if !ok || len(target) == 0 || u.behindLink(target[:len(target)-1]) {
		u.note(h.Name, "left out: it links to %.300q, outside the archive", h.Linkname)
		return nil
	}
	from, err := u.r.parent(u.path(target))
	if err != nil {
		u.note(h.Name, "left out: it links to %.300q, which is missing", h.Linkname)
		return nil
	}
	defer from.close()
	st, err := dirfd.Lstat(from.dir, from.name)
	if err != nil || dirfd.IsDir(&st) {
		u.note(h.Name, "left out: it links to %.300q, which is not an earlier file", h.Linkname)
		return nil
	}
	if here, err := dirfd.Lstat(u.parent, name); err == nil && here.Ino == st.Ino && here.Dev == st.Dev {
		return nil // the same file
	}
	if ok, err := u.clear(h, parts, name); err != nil || !ok {
		return err
	}
	if dirfd.IsLink(&st) {
		if err := u.made(parts); err != nil {
			return err
		}
	}
	u.res.Files++
	return unix.Linkat(from.dir, from.name, u.parent, name, 0)
}

// setXattrs sets the attributes of users. It is not an error if the file system does not support them.
func (u *unpack) setXattrs(fd int, h *tar.Header) error {
	for _, k := range sorted(h.PAXRecords) {
		key, ok := strings.CutPrefix(k, xattrRecord)
		if !ok {
			continue
		}
		if !wanted(key) {
			u.note(h.Name, "attribute %.300q left out", key)
			continue
		}
		err := unix.Fsetxattr(fd, key, []byte(h.PAXRecords[k]), 0)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) ||
			errors.Is(err, unix.EPERM) {
			u.note(h.Name, "attribute %.300q left out: %v", key, err)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish sets times and modes of the created directories. Modes that deny the user access to a directory are set
// last, innermost directory first.
func (u *unpack) finish() error {
	var closing []pending
	for _, d := range u.dirs {
		last := d
		if d.mode&0o700 != 0o700 {
			closing = append(closing, d)
			last.mode |= 0o700
		}
		if err := u.finishOne(last); err != nil {
			return err
		}
	}
	for i := len(closing) - 1; i >= 0; i-- {
		if err := u.finishOne(closing[i]); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpack) finishOne(d pending) error {
	if u.ctx.Err() != nil {
		return context.Cause(u.ctx)
	}
	parts := strings.Split(d.name, "/")
	last := len(parts) - 1
	if ok, err := u.enter(parts[:last]); err != nil || !ok {
		return err
	}
	fd, err := dirfd.Open(u.parent, parts[last], dirfd.DirFlags, dirfd.Beneath)
	if gone(err) {
		return nil // another process removed it
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := exactMode(fd, d.mode); err != nil {
		return err
	}
	return touch(fd, d.mtime)
}
