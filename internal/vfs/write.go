package vfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The functions that take a path are for Coppice's own files: no sandbox may write to a directory of the path. Their
// errors name the operation and the path.

// Writer appends to an open file that was empty.
type Writer struct {
	FS  FS
	FD  int
	off int64
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.FS.WriteAt(w.FD, p, w.off); err != nil {
		return 0, err
	}
	w.off += int64(len(p))
	return len(p), nil
}

// Replace calls write to fill a new file, 0600, and renames it to name in an open directory. It is durable
// when Replace returns. Until then, and after an error or a crash, name is either the old file or the
// complete new one. Concurrent calls for the same name are not allowed.
func Replace(fsys FS, dir int, name string, write func(w *Writer) error) error {
	err := replace(fsys, dir, name, func(w *Writer) error {
		if err := write(w); err != nil {
			return err
		}
		return fsys.Sync(w.FD)
	})
	if err != nil {
		return err
	}
	return fsys.Sync(dir)
}

// replace is Replace without a flush.
func replace(fsys FS, dir int, name string, write func(w *Writer) error) error {
	tmp := name + ".tmp"
	if err := unlink(fsys, dir, tmp); err != nil { // left by a killed process
		return err
	}
	fd, err := fsys.Create(dir, tmp, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), tmp)
	if err = errors.Join(write(&Writer{FS: fsys, FD: fd}), file.Close()); err == nil {
		err = fsys.Rename(dir, tmp, dir, name)
	}
	if err != nil {
		return errors.Join(err, unlink(fsys, dir, tmp))
	}
	return nil
}

// unlink removes a name; a missing one is not an error.
func unlink(fsys FS, dir int, name string) error {
	if err := fsys.Unlink(dir, name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Create makes a file with mode 0600, open for reading and writing. It fails if the file exists.
func Create(fsys FS, path string) (f *os.File, err error) {
	err = in("create", path, func(dir int, name string) error {
		fd, err := fsys.Create(dir, name, 0o600)
		if err == nil {
			f = os.NewFile(uintptr(fd), path)
		}
		return err
	})
	return f, err
}

// WriteFile is Replace by path.
func WriteFile(fsys FS, path string, content []byte) error {
	return in("write", path, func(dir int, name string) error { return Replace(fsys, dir, name, all(content)) })
}

// WriteUnsynced is WriteFile without a flush, for files that may be lost: after a power loss the file may be missing,
// old or torn.
func WriteUnsynced(fsys FS, path string, write func(w *Writer) error) error {
	return in("write", path, func(dir int, name string) error { return replace(fsys, dir, name, write) })
}

// NoteUnsynced is WriteUnsynced for given content.
func NoteUnsynced(fsys FS, path string, content []byte) error {
	return WriteUnsynced(fsys, path, all(content))
}

func all(content []byte) func(w *Writer) error {
	return func(w *Writer) error {
		_, err := w.Write(content)
		return err
	}
}

// MkdirAll makes a directory with mode 0700, and the missing directories above it.
func MkdirAll(fsys FS, path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if up := filepath.Dir(path); up != path {
		if err := MkdirAll(fsys, up); err != nil {
			return err
		}
	}
	err := in("mkdir", path, func(dir int, name string) error { return fsys.Mkdir(dir, name, 0o700) })
	if info, e := os.Stat(path); errors.Is(err, fs.ErrExist) && e == nil && info.IsDir() {
		return nil // another process created it
	}
	return err
}

// Rename moves a file or directory.
func Rename(fsys FS, from, to string) error {
	return in("rename", from, func(fromDir int, fromName string) error {
		return in("rename to", to, func(toDir int, toName string) error {
			return fsys.Rename(fromDir, fromName, toDir, toName)
		})
	})
}

// Link creates a second name for a file; it must not exist.
func Link(fsys FS, from, to string) error {
	return in("link", from, func(fromDir int, fromName string) error {
		return in("link to", to, func(toDir int, toName string) error {
			return fsys.Link(fromDir, fromName, toDir, toName)
		})
	})
}

// Chmod sets the permission bits of a file.
func Chmod(fsys FS, path string, mode fs.FileMode) error {
	return in("chmod", path, func(dir int, name string) error { return fsys.ChmodAt(dir, name, uint32(mode.Perm())) })
}

// Remove removes a file that is not a directory. A missing one is not an error.
func Remove(fsys FS, path string) error {
	err := in("remove", path, func(dir int, name string) error { return unlink(fsys, dir, name) })
	if errors.Is(err, fs.ErrNotExist) { // its directory is missing too
		return nil
	}
	return err
}

// Sync flushes a file or directory.
func Sync(fsys FS, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return pathError("sync", path, errors.Join(fsys.Sync(int(f.Fd())), f.Close()))
}

// in calls fn with the opened directory of a path, and the name in it.
func in(op, path string, fn func(dir int, name string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return pathError(op, path, errors.Join(fn(int(dir.Fd()), filepath.Base(path)), dir.Close()))
}

// pathError names the operation and the path, unless err does.
func pathError(op, path string, err error) error {
	if _, named := errors.AsType[*fs.PathError](err); err == nil || named {
		return err
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
