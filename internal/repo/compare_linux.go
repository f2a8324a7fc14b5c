package repo

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
)

// file compares a regular file.
func (w *walk) file(sub *os.Root, p string, info fs.FileInfo) error {
	mode := ModeFile
	if info.Mode()&0o100 != 0 {
		mode = ModeExecutable
	}
	if w.limits.Object < info.Size() {
		return fault.New(fault.Invalid, "%q has %d bytes, more than %d", clip(p), info.Size(), w.limits.Object)
	}
	before, has := w.base[p]
	if has && (before.mode == ModeFile || before.mode == ModeExecutable) {
		id, err := w.hashFile(sub, path.Base(p), info.Size())
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
	return w.differs(found{path: p, mode: mode, size: info.Size()})
}

// link compares a link, by its words.
func (w *walk) link(sub *os.Root, p string) error {
	target, err := sub.Readlink(path.Base(p))
	if gone(err) || errors.Is(err, unix.EINVAL) {
		return changing(p)
	}
	if err != nil {
		return err
	}
	h := w.begin(int64(len(target)))
	io.WriteString(h, target) //nolint:errcheck // a hash takes everything
	if w.base[p] == (entry{ModeLink, OID(hex.EncodeToString(h.Sum(nil)))}) {
		w.seen[p] = true
		return nil
	}
	return w.differs(found{path: p, mode: ModeLink, link: target})
}

func (w *walk) differs(f found) error {
	w.seen[f.path] = true
	if w.found = append(w.found, f); len(w.found) > w.limits.Changes {
		return fault.New(fault.Invalid, "more than %d paths differ", w.limits.Changes)
	}
	return nil
}

// begin begins the name of a file's content, as git makes it.
func (w *walk) begin(size int64) hash.Hash {
	h := sha1.New()
	if w.format == SHA256 {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// hashFile gives the name of a file's content.
func (w *walk) hashFile(sub *os.Root, name string, size int64) (OID, error) {
	f, err := openFile(sub, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := w.begin(size)
	n, err := io.Copy(h, io.LimitReader(f, size))
	if err != nil {
		return "", err
	}
	if n < size {
		return "", changing(name)
	}
	return OID(hex.EncodeToString(h.Sum(nil))), nil
}

// openFile opens what is a regular file, and waits for nobody who is not one.
func openFile(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
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
