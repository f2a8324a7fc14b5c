//go:build linux

// Package ignored keeps the directories of ignored paths: paths of a sandbox whose content is in no snapshot. Each is a
// directory beside the generations of the sandbox, which the monitor mounts at the path inside. So captures, diffs and
// rewinds, which know the layers and the live root alone, neither read nor change it.
//
// It is imported by the engine; it imports fault, layer, rootspec, vfs and visible.
package ignored

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/fault"
	"github.com/coppice-dev/coppice/internal/layer"
	"github.com/coppice-dev/coppice/internal/rootspec"
	"github.com/coppice-dev/coppice/internal/vfs"
	"github.com/coppice-dev/coppice/internal/visible"
)

// DirName is the name of the directory with the directories of a sandbox's ignored paths. It is beside the generations
// of the sandbox, so that a project quota of theirs counts it.
const DirName = "ignored"

// Look returns the entry of a root at a clean absolute path, without following links, or a fault.NotFound error.
type Look func(p string) (layer.Entry, error)

// owner is what a new directory gets: IDs as stored, and the permission bits.
type owner struct{ uid, gid, mode uint32 }

// Check refuses a path at which no directory can be mounted: if it is, or leads through, something that exists and is
// not a directory. Its errors are of kind fault.Invalid, or those of look.
func Check(look Look, p string) error {
	_, err := ownerOf(look, p)
	return err
}

// ownerOf returns owner and mode of the directory p, to which its owner may write, or, if it does not exist, the owner
// of the innermost directory around it that does.
func ownerOf(look Look, p string) (owner, error) {
	o := owner{mode: 0o755}
	for d := "/"; ; d = next(d, p) {
		e, err := look(d)
		switch {
		case fault.Is(err, fault.NotFound):
			o.mode = 0o755
			return o, nil
		case err != nil:
			return o, err
		case e.Mode&unix.S_IFMT == unix.S_IFLNK:
			return o, fault.New(fault.Invalid, "cannot ignore %s: %s is a symbolic link, which could change", p, d).
				WithHint("ignore its target: --ignore %s", visible.Word(path.Join(target(e, d), strings.TrimPrefix(p, d))))
		case !e.IsDir():
			return o, fault.New(fault.Invalid, "cannot ignore %s: %s is not a directory", p, d).
				WithHint("remove it from history.ignore and --ignore: only directories can be ignored")
		}
		o = owner{e.UID, e.GID, e.Mode&0o1777 | 0o700}
		if d == p {
			return o, nil
		}
	}
}

// next returns the parent directory of p, or p itself, that is directly in d.
func next(d, p string) string {
	below := strings.TrimPrefix(strings.TrimPrefix(p, d), "/")
	first, _, _ := strings.Cut(below, "/")
	return path.Join(d, first)
}

// target returns the path that the link e at p leads to.
func target(e layer.Entry, p string) string {
	if path.IsAbs(e.Link) {
		return path.Clean(e.Link)
	}
	return path.Join(path.Dir(p), e.Link)
}

// Prepare creates the missing directories of ignored paths in dir, and returns the mounts with their directories on the
// host, without symbolic links. A new directory is empty, with owner and mode of the directory at its path inside, or
// the owner of the innermost existing directory around it. It is the caller's if the caller cannot give it to that
// owner. Existing ones stay as they are: the sandbox owns them. The caller has the lock of the sandbox.
func Prepare(fsys vfs.FS, dir string, look Look, paths []rootspec.HostMount) ([]rootspec.HostMount, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	if err := vfs.MkdirAll(fsys, dir); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(paths)
	for i := range out {
		out[i].From = filepath.Join(dir, nameOf(out[i].To))
		_, err := os.Lstat(out[i].From)
		if errors.Is(err, fs.ErrNotExist) {
			err = create(fsys, out[i].From, look, out[i].To)
		}
		if err != nil {
			return nil, fault.Wrap(err, "prepare the ignored path %s", out[i].To)
		}
	}
	return out, nil
}

// create creates the directory at of the ignored path p. It has its name once it is complete.
func create(fsys vfs.FS, at string, look Look, p string) error {
	o, err := ownerOf(look, p)
	if err != nil {
		return err
	}
	tmp := at + ".tmp"
	if err := vfs.MkdirAll(fsys, tmp); err != nil {
		return err
	}
	parent, err := unix.Open(filepath.Dir(tmp), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	name := filepath.Base(tmp)
	err = fsys.ChownAt(parent, name, o.uid, o.gid)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) { // EINVAL: the caller's user namespace has no such ID
		err = fsys.ChownAt(parent, name, uint32(os.Geteuid()), uint32(os.Getegid()))
	}
	if err != nil {
		return err
	}
	if err := fsys.ChmodAt(parent, name, o.mode); err != nil {
		return err
	}
	return vfs.Rename(fsys, tmp, at)
}

// nameOf returns the name of the directory of an ignored path: it is unique, and short enough for every path.
func nameOf(p string) string {
	sum := sha256.Sum256([]byte(p))
	return hex.EncodeToString(sum[:16])
}
