package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/coppice-dev/coppice/client/wire"
	"github.com/coppice-dev/coppice/internal/fault"
)

// unpacker unpacks an archive from a sandbox below a local directory. Names, links and sizes are untrusted: what
// os.Root refuses is skipped and reported. Nothing is written through a link of the archive.
type unpacker struct {
	root  *os.Root
	fresh bool // the directory was created for the archive
	res   wire.UnpackResult
	links map[string]bool // symbolic links from the archive
	dirs  []*tar.Header   // directories, which get their modes and times at the end
	buf   []byte
}

const maxLeftOut = 1000

func (u *unpacker) note(name, format string, args ...any) {
	if len(u.res.LeftOut) < maxLeftOut {
		u.res.LeftOut = append(u.res.LeftOut, fmt.Sprintf("%.300q: ", name)+fmt.Sprintf(format, args...))
	}
}

func (u *unpacker) all(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, tr); err != nil {
			return fault.Wrap(err, "write %q", h.Name)
		}
	}
}

// local checks whether a name of an archive is valid on this system, and returns it cleaned.
func local(name string) (string, bool) {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if name == "" || name == "." {
		return ".", true
	}
	p := filepath.FromSlash(name)
	ok := filepath.IsLocal(p) && path.Clean(name) == name && strings.IndexByte(name, 0) < 0
	return p, ok && (filepath.Separator == '/' || !strings.ContainsAny(name, `\:`))
}

// behindLink reports whether a link of the archive is in the path of a name.
func (u *unpacker) behindLink(name string) bool {
	for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
		if u.links[dir] {
			return true
		}
	}
	return false
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	name, ok := local(h.Name)
	switch {
	case !ok:
		u.note(h.Name, "skipped: invalid file name on this host")
		return nil
	case len(u.links) > 0 && u.behindLink(name):
		u.note(h.Name, "skipped: it is below a symbolic link")
		return nil
	case name == ".":
		if u.fresh {
			u.keep(h, name)
		}
		return nil
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(h, name)
	case tar.TypeReg:
		err = u.file(h, name, r)
	case tar.TypeSymlink:
		if err = u.clear(name); err == nil {
			err = u.root.Symlink(h.Linkname, name)
		}
		if err == nil {
			u.made(name)
			u.res.Files++
		}
	case tar.TypeLink:
		err = u.hardlink(h, name)
	default:
		u.note(h.Name, "skipped: not a file, directory or link")
	}
	return err
}

func (u *unpacker) made(name string) {
	if u.links == nil {
		u.links = map[string]bool{}
	}
	u.links[name] = true
}

// clear removes what exists at the path of a file or link.
func (u *unpacker) clear(name string) error {
	if dir := filepath.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	st, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fault.New(fault.Conflict, "a directory of that name exists").
			WithHint("remove it, or choose another destination")
	}
	delete(u.links, name)
	return u.root.Remove(name)
}

func (u *unpacker) keep(h *tar.Header, name string) {
	h.Name = name
	u.dirs = append(u.dirs, h)
}

func (u *unpacker) dir(h *tar.Header, name string) error {
	st, err := u.root.Stat(name)
	if err == nil && st.IsDir() { // also through a link that the user created
		return nil
	}
	if st, err := u.root.Lstat(name); err == nil && !st.IsDir() {
		if err := u.clear(name); err != nil {
			return err
		}
	}
	if err := u.root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	u.keep(h, name)
	return nil
}

func (u *unpacker) file(h *tar.Header, name string, r io.Reader) error {
	if err := u.clear(name); err != nil {
		return err
	}
	// The umask reduces the mode.
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(h.Mode)&0o777)
	if err != nil {
		return err
	}
	n, err := u.content(f, r)
	u.res.Bytes += n
	u.res.Files++
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.root.Chtimes(name, time.Time{}, h.ModTime)
}

// content copies to EOF. Blocks of zeros become holes, so that a sparse file uses only the space of its data.
func (u *unpacker) content(f *os.File, r io.Reader) (n int64, err error) {
	if u.buf == nil {
		u.buf = make([]byte, 512<<10)
	}
	hole := false
	for {
		m, rerr := fill(r, u.buf)
		b := u.buf[:m]
		if m > 0 {
			if hole = m >= 4096 && zero(b); hole {
				_, err = f.Seek(int64(m), io.SeekCurrent)
			} else {
				_, err = f.Write(b)
			}
			if err != nil {
				return n, err
			}
			n += int64(m)
		}
		switch {
		case errors.Is(rerr, io.EOF) && hole:
			return n, f.Truncate(n)
		case errors.Is(rerr, io.EOF):
			return n, nil
		case rerr != nil:
			return n, rerr
		}
	}
}

// fill reads until b is full or err is not nil. Unlike io.ReadFull, it returns io.EOF also after some bytes, not
// io.ErrUnexpectedEOF.
func fill(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = r.Read(b[n:])
		n += m
	}
	return n, err
}

func zero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

func (u *unpacker) hardlink(h *tar.Header, name string) error {
	to, ok := local(h.Linkname)
	if !ok || to == "." || u.behindLink(to) || u.links[to] {
		u.note(h.Name, "skipped: it links to %.300q", h.Linkname)
		return nil
	}
	if !u.isFile(to) {
		u.note(h.Name, "skipped: it links to %.300q, which is not a file", h.Linkname)
		return nil
	}
	if to == name {
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	u.res.Files++
	return u.root.Link(to, name)
}

func (u *unpacker) isFile(name string) bool {
	st, err := u.root.Lstat(name)
	return err == nil && st.Mode().IsRegular()
}

// finish sets the modes and times of directories, innermost first. It makes none writable for group and others.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		h := u.dirs[i]
		if err := u.root.Chmod(h.Name, fs.FileMode(h.Mode)&0o755); err != nil {
			return fault.Wrap(err, "change %q", h.Name)
		}
		if err := u.root.Chtimes(h.Name, time.Time{}, h.ModTime); err != nil {
			return fault.Wrap(err, "change %q", h.Name)
		}
	}
	return nil
}
