package hook

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-dev/coppice/internal/fault"
)

// maxConfig is the largest file that is merged into, in bytes.
const maxConfig = 4 << 20

// Install merges the hooks into the harness's file below dir, and returns the file's path. The file is replaced
// atomically and keeps its mode; a symbolic link is followed as long as it stays below dir. A file that cannot be
// parsed is left unchanged, with an error.
func (h Harness) Install(dir string, user bool) (path string, changed bool, err error) {
	name := h.Project
	if user {
		name = h.User
	}
	path = filepath.Join(dir, filepath.FromSlash(name))
	defer func() { err = fault.Wrap(err, "install hooks in %s", path) }()
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return path, false, err
	}
	real, err := target(dir, name)
	if err != nil {
		return path, false, err
	}
	mode := fs.FileMode(0o644)
	var old []byte
	st, err := os.Stat(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return path, false, err
	case !st.Mode().IsRegular() || st.Size() > maxConfig:
		return path, false, fault.New(fault.Invalid, "it is not a regular file of at most %d bytes", maxConfig)
	default:
		mode = st.Mode().Perm()
		if old, err = os.ReadFile(real); err != nil {
			return path, false, err
		}
	}
	text, err := h.Merge(old)
	if err != nil {
		var f *fault.Error
		if errors.As(err, &f) && f.Hint == "" {
			f.Hint = "fix it, or add the output of this command manually: coppice hook " + h.Name
		}
		return path, false, err
	}
	if string(text) == string(old) {
		return path, false, nil
	}
	return path, true, replace(real, text, mode)
}

// target returns the path of a file below dir, with existing symbolic links resolved.
func target(dir, name string) (string, error) {
	at := dir
	parts := strings.Split(name, "/")
	for i, part := range parts {
		next, err := filepath.EvalSymlinks(filepath.Join(at, part))
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Lstat(filepath.Join(at, part)); err == nil {
				return "", fault.New(fault.Invalid, "%s is a dangling symbolic link", filepath.Join(at, part)).WithHint("remove it")
			}
			return filepath.Join(at, filepath.Join(parts[i:]...)), nil
		}
		if err != nil {
			return "", err
		}
		if rel, err := filepath.Rel(dir, next); err != nil || !filepath.IsLocal(rel) {
			return "", fault.New(fault.Denied, "%s is a symbolic link out of %s", filepath.Join(at, part), dir).
				WithHint("install at its target, with --project DIR or --user")
		}
		at = next
	}
	return at, nil
}

// replace writes a file under a temporary name and renames it.
func replace(path string, text []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".coppice-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
