package format

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

const (
	tarWhiteout = ".wh."
	tarOpaque   = ".wh..wh..opq"
	// escapedXattr is the prefix under which a layer stores attributes that a program set under overlayfs's
	// own names; skeletonXattr, and skeleton1Xattr in older layers, are marks of Coppice.
	escapedXattr   = "user.overlay.overlay."
	overlayXattr   = "user.overlay."
	skeletonXattr  = "user.overlay.coppice.skeleton"
	skeleton1Xattr = "user.coppice.skeleton"
	// Attributes of root emulation: the requested owner, "uid:gid", and, on an empty file, the device that it
	// represents, "c MAJOR:MINOR" or "b ...".
	ownerXattr  = "user.coppice.owner"
	deviceXattr = "user.coppice.device"
	// The largest device number of Linux. A program in a sandbox can store any number in deviceXattr.
	maxMajor = 1<<12 - 1
	maxMinor = 1<<20 - 1
)

// ErrMark is the error of an entry that readers of a layer would take for a mark: OCI reserves names that begin with
// ".wh." and has no escape for them.
var ErrMark = errors.New("its name is reserved for whiteouts in an OCI layer")

// NoHeader is the error of an entry that tar has no header for: the header would be larger
// than readers of tar accept, a number in it has too many digits, or readers would take its
// name for a mark.
type NoHeader struct {
	Path string
	Err  error // ErrMark, or the error of package archive/tar
}

// Error implements error.
func (n *NoHeader) Error() string { return fmt.Sprintf("tar has no header for %q: %v", n.Path, n.Err) }

// Unwrap returns Err.
func (n *NoHeader) Unwrap() error { return n.Err }

// WriteTar writes the layer as an OCI image layer. The same entries and contents give the same bytes. open
// returns a file's content, which must have the entry's size. Sockets cannot be represented in tar and are
// left out, as are attributes whose name contains "=". It stops with *NoHeader at the first entry that tar
// has no header for; if readers would take that entry for a mark, nothing is written.
func WriteTar(ctx context.Context, w io.Writer, entries []Entry, open func(*Entry) (io.ReadCloser, error)) error {
	if err := Expressible(entries); err != nil {
		return err
	}
	out := &sink{w: w}
	tw := tar.NewWriter(out)
	sockets := map[string]bool{}
	buf := make([]byte, 64<<10) // for all files: most are smaller
	for i := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		e := &entries[i]
		if e.Type == Socket || e.Type == Hardlink && sockets[e.Link] {
			sockets[e.Path] = true
			e = &Entry{Type: Whiteout, Path: e.Path} // otherwise lower layers would show through
		}
		h := header(e)
		if h == nil {
			continue
		}
		if err := out.header(tw, h, e.Path); err != nil {
			return err
		}
		switch e.Type {
		case Opaque:
			name := tarOpaque
			if e.Path != "" {
				name = e.Path + "/" + tarOpaque
			}
			if err := out.header(tw, marker(name), name); err != nil {
				return err
			}
		case File:
			if err := content(tw, e, open, buf); err != nil {
				return fmt.Errorf("tar content of %q: %w", e.Path, err)
			}
		}
	}
	return tw.Close()
}

// Expressible returns a *NoHeader with ErrMark for the first entry that readers of the tar stream would
// misread: a name that begins with ".wh.", or a whiteout (also of a socket) that would be written as the mark
// of an opaque directory.
func Expressible(entries []Entry) error {
	if i := slices.IndexFunc(entries, readAsMark); i >= 0 {
		return &NoHeader{Path: entries[i].Path, Err: ErrMark}
	}
	return nil
}

func readAsMark(e Entry) bool {
	_, name, _ := cutLast(e.Path)
	switch e.Type {
	case Whiteout, Socket:
		return tarWhiteout+name == tarOpaque
	}
	return strings.HasPrefix(name, tarWhiteout)
}

// sink remembers whether writing failed.
type sink struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (n int, err error) {
	n, err = s.w.Write(p)
	s.err = cmp.Or(s.err, err)
	return n, err
}

// header writes a header to s through tw.
func (s *sink) header(tw *tar.Writer, h *tar.Header, path string) error {
	if err := tw.Flush(); err != nil { // complete the previous entry
		return fmt.Errorf("tar content before %q: %w", path, err)
	}
	err := tw.WriteHeader(h)
	switch {
	case err == nil:
		return nil
	case s.err != nil:
		return fmt.Errorf("tar header of %q: %w", path, err)
	}
	return &NoHeader{Path: path, Err: err}
}

func content(w io.Writer, e *Entry, open func(*Entry) (io.ReadCloser, error), buf []byte) error {
	if e.Size == 0 {
		return nil
	}
	r, err := open(e)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(w, r, buf)
	if e := r.Close(); err == nil {
		err = e
	}
	return err
}

func marker(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
}

// header returns the tar header of an entry; nil if tar has none for its type.
func header(e *Entry) *tar.Header {
	h := &tar.Header{
		Name: e.Path, Mode: int64(e.Mode), Uid: int(e.UID), Gid: int(e.GID),
		ModTime: time.Unix(0, e.Mtime), Format: tar.FormatPAX,
	}
	switch e.Type {
	case Dir, Opaque:
		h.Typeflag, h.Name = tar.TypeDir, e.Path+"/"
		if e.Path == "" {
			h.Name = "./"
		}
	case File:
		h.Typeflag, h.Size = tar.TypeReg, e.Size
	case Hardlink:
		h.Typeflag, h.Linkname = tar.TypeLink, e.Link
		h.ModTime = time.Unix(0, 0)
	case Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
	case FIFO:
		h.Typeflag = tar.TypeFifo
	case Char, Block:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(e.Major), int64(e.Minor)
		if e.Type == Block {
			h.Typeflag = tar.TypeBlock
		}
	case Whiteout:
		dir, name, nested := cutLast(e.Path)
		if nested {
			dir += "/"
		}
		return marker(dir + tarWhiteout + name)
	default:
		return nil
	}
	for _, x := range e.Xattrs {
		key := x.Key
		if key == skeletonXattr || key == skeleton1Xattr {
			continue
		}
		if strings.HasPrefix(key, escapedXattr) {
			key = overlayXattr + key[len(escapedXattr):]
		}
		if emulated(h, e, key, x.Value) || strings.Contains(key, "=") {
			continue
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+key] = x.Value
	}
	return h
}

// emulated adds the information of an attribute of root emulation to the header, and reports whether it did.
func emulated(h *tar.Header, e *Entry, key, value string) bool {
	switch key {
	case ownerXattr:
		var uid, gid uint32
		if n, err := fmt.Sscanf(value, "%d:%d", &uid, &gid); n != 2 || err != nil {
			return false
		}
		h.Uid, h.Gid = int(uid), int(gid)
		return true
	case deviceXattr:
		var kind byte
		var major, minor uint32
		n, err := fmt.Sscanf(value, "%c %d:%d", &kind, &major, &minor)
		if n != 3 || err != nil || e.Type != File || e.Size != 0 || kind != 'c' && kind != 'b' || major > maxMajor ||
			minor > maxMinor {
			return false
		}
		h.Typeflag = tar.TypeChar
		if kind == 'b' {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(major), int64(minor)
		return true
	}
	return false
}
