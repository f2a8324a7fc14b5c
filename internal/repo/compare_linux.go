package repo

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/fault"
)

// file compares a regular file.
func (w *walk) file(ctx context.Context, dir *os.File, p string, st *unix.Stat_t) error {
	mode := ModeFile
	if st.Mode&0o100 != 0 {
		mode = ModeExecutable
	}
	if w.limits.Object < st.Size {
		return fault.New(fault.TooLarge, "%q has %d bytes, more than the limit of %d", clip(p), st.Size, w.limits.Object).
			WithHint(haveIgnored, clip(p))
	}
	before, has := w.base[p]
	if has && (before.mode == ModeFile || before.mode == ModeExecutable) {
		id, err := w.hashFile(ctx, dir, path.Base(p), st.Size)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if before == (entry{mode, id}) {
			w.seen[p] = true
			return nil
		}
	}
	return w.differs(found{path: p, mode: mode, size: st.Size})
}

// link compares a symbolic link by its target.
func (w *walk) link(dir *os.File, p string) error {
	target, err := dirfd.Readlink(int(dir.Fd()), path.Base(p))
	if gone(err) || errors.Is(err, unix.EINVAL) {
		return changing(p)
	}
	if err != nil {
		return fault.Wrap(err, "readlink %q", clip(p))
	}
	h := w.begin(int64(len(target)))
	io.WriteString(h, target) //nolint:errcheck // a hash accepts everything
	if w.base[p] == (entry{ModeLink, OID(hex.EncodeToString(h.Sum(nil)))}) {
		w.seen[p] = true
		return nil
	}
	return w.differs(found{path: p, mode: ModeLink, link: target})
}

// haveIgnored is the hint if a work tree has too much of something.
const haveIgnored = "have git ignore it, as in: echo /%s >>.gitignore"

func (w *walk) differs(f found) error {
	w.seen[f.path] = true
	if w.found = append(w.found, f); len(w.found) > w.limits.Changes {
		return fault.New(fault.TooLarge, "more than %d paths differ", w.limits.Changes).WithHint(haveIgnored, "build")
	}
	return w.hold(len(f.path) + len(f.link))
}

// begin starts the hash of a file's content, as git computes it.
func (w *walk) begin(size int64) hash.Hash {
	h := sha1.New()
	if w.format == SHA256 {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// hashFile returns the object ID of a file's content.
func (w *walk) hashFile(ctx context.Context, dir *os.File, name string, size int64) (OID, error) {
	w.calls++
	f, err := openFile(dir, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := w.begin(size)
	n, err := io.Copy(h, reader{ctx, io.LimitReader(f, size)})
	if err != nil {
		return "", err
	}
	if n < size {
		return "", changing(name)
	}
	return OID(hex.EncodeToString(h.Sum(nil))), nil
}

// reader ends with its context: a file that a sandbox wrote may be a terabyte of holes.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(b)
}

// openFile opens a regular file. It never blocks on a file of another type.
func openFile(dir *os.File, name string) (*os.File, error) {
	f, err := dirfd.OpenFile(dir, name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if gone(err) || errors.Is(err, unix.ELOOP) {
		return nil, changing(name)
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(changing(name), err)
	}
	return f, nil
}
