package boxfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/limit"
)

// Item is a file to add to an archive.
type Item struct {
	Name     string // relative, without a trailing slash; "." is the top directory
	Mode     uint32 // as in stat(2), with the type bits
	UID, GID uint32 // as seen inside
	Size     int64
	Mtime    time.Time
	Target   string            // of a symbolic link
	Same     FileID            // if Links > 1, identifies the file that its names share
	Links    uint64            // number of hard links
	Xattrs   map[string][]byte // Add writes only user.*, without Coppice's own
}

// FileID identifies a file.
type FileID struct{ Dev, Ino uint64 }

// maxSame is the maximum number of files with several links that a Packer remembers. Other files are added once for
// each link.
const maxSame = 1 << 20

// Packer writes an archive in the format PAX. It is not safe for concurrent use.
type Packer struct {
	tw   *tar.Writer
	same map[FileID]string
}

// NewPacker returns a Packer that writes to w. Close ends the archive.
func NewPacker(w io.Writer) *Packer { return &Packer{tar.NewWriter(w), map[FileID]string{}} }

// Close ends the archive. It does not close the underlying writer.
func (p *Packer) Close() error { return p.tw.Close() }

// Add adds an item. It calls open for a regular file. If the file is shorter by then, it is padded with zeros, and if
// it is longer, truncated. Add skips sockets and devices.
//
// A name longer than limit.ArchiveName is TooLarge: an archive with one could not be unpacked again, and the total
// length of the names of nested directories grows with the square of their number.
func (p *Packer) Add(ctx context.Context, it Item, open func() (io.ReadCloser, error)) error {
	if len(it.Name) > limit.ArchiveName {
		return fault.New(fault.TooLarge, "a path has %d bytes, more than the limit of %d: %.60q...", len(it.Name),
			limit.ArchiveName, it.Name).
			WithHint("copy its subdirectories one by one")
	}
	h := &tar.Header{Name: it.Name, Mode: int64(it.Mode & 0o7777), Uid: int(it.UID), Gid: int(it.GID), ModTime: it.Mtime,
		Format: tar.FormatPAX}
	switch it.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
	case unix.S_IFLNK:
		h.Typeflag, h.Linkname = tar.TypeSymlink, it.Target
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, it.Size
	default:
		return nil
	}
	if it.Links > 1 && h.Typeflag == tar.TypeReg {
		if first, ok := p.same[it.Same]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tw.WriteHeader(h)
		}
		if len(p.same) < maxSame {
			p.same[it.Same] = it.Name
		}
	}
	for k, v := range it.Xattrs {
		if !wanted(k) {
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[xattrRecord+k] = string(v)
	}
	if h.Typeflag != tar.TypeReg || h.Size == 0 {
		return p.tw.WriteHeader(h)
	}
	src, err := open()
	if err != nil {
		return err
	}
	defer src.Close()
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	return exactly(ctx, p.tw, src, h.Size)
}

const xattrRecord = "SCHILY.xattr."

// wanted reports whether an extended attribute is packed: only attributes of users are. PAX cannot represent a name
// with "=".
func wanted(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") &&
		!strings.HasPrefix(name, "user.coppice.") && !strings.ContainsAny(name, "=\x00")
}

// exactly copies size bytes, padded with zeros at EOF.
func exactly(ctx context.Context, w io.Writer, r io.Reader, size int64) error {
	bp := copyBufs.Get().(*[]byte)
	defer copyBufs.Put(bp)
	for size > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b := (*bp)[:min(size, int64(len(*bp)))]
		n, err := fill(r, b)
		if errors.Is(err, io.EOF) {
			clear(b[n:])
			r, err = zeros{}, nil
		}
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		size -= int64(len(b))
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TarTo writes an archive of the directory at p, with names relative to it, or of the single file at p, under its own
// name. Links are packed as links. It skips file systems of the kernel, sockets and devices, and may skip entries
// that are removed meanwhile.
func (r *Root) TarTo(ctx context.Context, p string, w io.Writer) error {
	pk := NewPacker(w)
	err := r.do("pack", p, func() error {
		fd, err := r.open(p, unix.O_PATH)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err != nil {
			return err
		}
		if !dirfd.IsDir(&st) {
			return r.packOne(ctx, pk, p)
		}
		return r.packAll(ctx, pk, p)
	})
	if err != nil {
		return err
	}
	return pk.Close()
}

// packOne packs the file that p resolves to.
func (r *Root) packOne(ctx context.Context, pk *Packer, p string) error {
	fd, err := r.open(p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	f, err := r.openRegular(fd, &st)
	if err != nil {
		return err
	}
	defer unix.Close(f)
	it := r.item(path.Base(p), &st)
	it.Xattrs, it.Links = attributes(f), 1
	return pk.Add(ctx, it, func() (io.ReadCloser, error) { return reader(f), nil })
}

func (r *Root) packAll(ctx context.Context, pk *Packer, p string) error {
	d, err := r.start(p)
	if err != nil {
		return err
	}
	defer d.close()
	top := r.item(".", &d.st)
	top.Xattrs = attributes(d.fd)
	if err := pk.Add(ctx, top, nil); err != nil {
		return err
	}
	n := int64(0)
	return r.walk(ctx, d, maxNames, func(d *dir, name string, st *unix.Stat_t) (bool, error) {
		if n++; n > r.limits.Entries {
			return false, fault.New(fault.TooLarge, "the directory has more than %d entries", r.limits.Entries).
				WithHint("pack its subdirectories one by one")
		}
		return true, r.packEntry(ctx, pk, d, name, st)
	})
}

func (r *Root) packEntry(ctx context.Context, pk *Packer, d *dir, name string, st *unix.Stat_t) (err error) {
	it := r.item(d.at(name), st)
	switch {
	case dirfd.IsLink(st):
		if it.Target, err = dirfd.Readlink(d.fd, name); err != nil {
			return skip(err)
		}
	case dirfd.IsDir(st), dirfd.IsRegular(st):
		fd, err := dirfd.Open(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW, dirfd.Beneath)
		if err != nil {
			return skip(err)
		}
		defer unix.Close(fd)
		return r.packOpen(ctx, pk, fd, it)
	}
	return pk.Add(ctx, it, nil)
}

// packOpen packs a directory or regular file that is open with O_PATH.
func (r *Root) packOpen(ctx context.Context, pk *Packer, fd int, it Item) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if dirfd.IsDir(&st) {
		if st.Dev != r.dev && r.admit(fd) != nil {
			return nil
		}
		it = r.item(it.Name, &st)
		if f, err := reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY); err == nil { // else not readable: packed empty
			it.Xattrs = attributes(f)
			unix.Close(f)
		}
		return pk.Add(ctx, it, nil)
	}
	f, err := r.openRegular(fd, &st)
	if err != nil {
		return skip(err)
	}
	defer unix.Close(f)
	it = r.item(it.Name, &st)
	it.Xattrs = attributes(f)
	return pk.Add(ctx, it, func() (io.ReadCloser, error) { return reader(f), nil })
}

// skip ignores the error for an entry that was removed or replaced.
func skip(err error) error {
	if gone(err) || errors.Is(err, errKernel) || fault.Is(err, fault.Invalid) || errors.Is(err, unix.ESTALE) ||
		errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func (r *Root) item(name string, st *unix.Stat_t) Item {
	return Item{
		Name: name, Mode: st.Mode, Size: st.Size, Mtime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec),
		UID: inside(r.user.UIDs, st.Uid), GID: inside(r.user.GIDs, st.Gid),
		Same: FileID{st.Dev, st.Ino}, Links: uint64(st.Nlink), //nolint:unconvert // it is shorter on arm64
	}
}

// reader reads from a descriptor that it does not own.
type reader int

func (r reader) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(r), b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (reader) Close() error { return nil }

// attributes returns the packed attributes of an open file, without those that cannot be read.
func attributes(fd int) map[string][]byte {
	var small [1024]byte
	n, err := unix.Flistxattr(fd, small[:])
	list := small[:max(n, 0)]
	if errors.Is(err, unix.ERANGE) {
		list = make([]byte, 64<<10) // XATTR_LIST_MAX
		if n, err = unix.Flistxattr(fd, list); err == nil {
			list = list[:n]
		}
	}
	if err != nil || len(list) == 0 {
		return nil
	}
	out := map[string][]byte{}
	for k := range bytes.SplitSeq(list, []byte{0}) {
		if !wanted(string(k)) {
			continue
		}
		v := make([]byte, 64<<10) // XATTR_SIZE_MAX
		if n, err := unix.Fgetxattr(fd, string(k), v); err == nil {
			out[string(k)] = bytes.Clone(v[:n])
		}
	}
	return out
}

// sorted returns the names of attributes in order.
func sorted(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
