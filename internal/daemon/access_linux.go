package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
)

// regained is what was changed to use a home whose modes another process of the same user had set.
type regained struct {
	paths []string               // what the daemon could not read or write
	keys  map[string]fs.FileMode // secrets that others could read, with their modes
}

// regain gives the daemon access to its own files and directories in the home, and closes its keys to others. A command
// in a locked workspace that runs as the daemon's user cannot open them, but Landlock does not keep it from changing
// modes by path. Files of the sandboxes themselves, and layers, are left alone; package ledger reaches its own.
func (h *home) regain() (r regained, err error) {
	each := func(dir string, do func(name string)) {
		entries, rerr := os.ReadDir(filepath.Join(h.path, dir))
		if rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if !accessible(e) {
				changed, oerr := dirfd.OwnAccess(h.path, name)
				r.paths, err = append(r.paths, changed...), errors.Join(err, oerr)
			}
			do(name)
		}
	}
	nothing := func(string) {}
	each(".", nothing)
	each("memory", nothing)
	each("sandboxes", func(sandbox string) { each(sandbox, nothing) })
	r.keys = map[string]fs.FileMode{}
	for _, name := range []string{"seal.key", "ledger/key"} { // package ports replaces preview.key
		path := filepath.Join(h.path, name)
		mode, cerr := closeKey(path)
		if mode&0o077 != 0 {
			r.keys[path] = mode
		}
		err = errors.Join(err, cerr)
	}
	return r, err
}

// accessible reports whether the mode of an entry lets its owner use it. It costs one system call for each of the many
// entries of a home, which a start of the daemon reads.
func accessible(e fs.DirEntry) bool {
	info, err := e.Info()
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	need := fs.FileMode(0o600)
	if info.IsDir() {
		need = 0o700
	}
	return info.Mode().Perm()&need == need
}

// closeKey removes the permissions of others from a file of the user, and returns its permissions before. It leaves
// anything else alone.
func closeKey(path string) (was fs.FileMode, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o077 == 0 {
		return 0, nil
	}
	return fs.FileMode(st.Mode & 0o777), f.Chmod(0o600)
}

// tell logs what was regained.
func (r *regained) tell(log *slog.Logger) {
	for _, path := range r.paths {
		log.Warn("the daemon had no access to its own file or directory; its mode is restored", "path", path)
	}
	for path, mode := range r.keys {
		log.Error("a key was readable by other users; its mode is restored. If the home was open to them as well, they "+
			"may have the key", "path", path, "mode", mode.String(), "hint", "docs/guides/daemon.md: Modes in the home")
	}
}
