package ledger

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/dirfd"
	"github.com/coppice-dev/coppice/internal/vfs"
)

// files is the directory of a ledger, written through a vfs.FS.
type files struct {
	fs   vfs.FS
	path string
}

// reach calls fn, which uses the file or directory name. If access is denied, it gives the user access to it, and to
// the directories above it, and calls fn once more. Only the user's own modes can deny it: a process of a locked
// workspace that runs as the daemon's user may have set them.
func (f files) reach(name string, fn func() error) error {
	err := fn()
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	changed, aerr := dirfd.OwnAccess(f.path, name)
	if aerr != nil || len(changed) == 0 {
		return errors.Join(err, aerr)
	}
	return fn()
}

// open opens a file or directory of the ledger. The caller closes it.
func (f files) open(name string, flags int) (file *os.File, err error) {
	err = f.reach(name, func() (err error) {
		file, err = openAt(f.path, name, flags)
		return err
	})
	return file, err
}

// dir opens a directory of the ledger. The caller closes it.
func (f files) dir(name string) (*os.File, error) { return f.open(name, os.O_RDONLY|unix.O_DIRECTORY) }

// names lists a directory of the ledger.
func (f files) names(name string) (names []fs.DirEntry, err error) {
	err = f.reach(name, func() (err error) {
		names, err = os.ReadDir(filepath.Join(f.path, name))
		return err
	})
	return names, err
}

// stat returns the state of a file of the ledger.
func (f files) stat(name string) (info fs.FileInfo, err error) {
	err = f.reach(name, func() (err error) {
		info, err = os.Lstat(filepath.Join(f.path, name))
		return err
	})
	return info, err
}

// in calls fn with the directory of a file, and the name of the file in it.
func (f files) in(name string, fn func(dir int, base string) error) error {
	parent := filepath.Dir(name)
	d, err := f.dir(parent)
	if err != nil {
		return err
	}
	defer d.Close()
	return f.reach(parent, func() error { return fn(int(d.Fd()), filepath.Base(name)) })
}

// mkdir makes a directory durably, unless it exists.
func (f files) mkdir(name string) error {
	return f.in(name, func(dir int, base string) error {
		if err := f.fs.Mkdir(dir, base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return f.fs.Sync(dir)
	})
}

// edit calls fn with a file that is open for writing. If the file is missing, edit calls fresh and creates it.
func (f files) edit(name string, fresh func(), fn func(fd int) error) error {
	file, err := f.open(name, os.O_RDWR)
	if err == nil {
		defer file.Close()
		return fn(int(file.Fd()))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if fresh != nil {
		fresh()
	}
	return f.in(name, func(dir int, base string) error {
		fd, err := f.fs.Create(dir, base, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(fn(fd), unix.Close(fd))
	})
}

// replace writes a whole file durably: after a crash it has either the old or the new content.
func (f files) replace(name string, content []byte) error {
	return f.in(name, func(dir int, base string) error {
		return vfs.Replace(f.fs, dir, base, func(w *vfs.Writer) error {
			_, err := w.Write(content)
			return err
		})
	})
}

func (f files) sync(name string) error {
	file, err := f.open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	return f.fs.Sync(int(file.Fd()))
}

// read returns the content of a file; nil if it does not exist.
func (f files) read(name string) (b []byte, err error) {
	err = f.reach(name, func() (err error) {
		b, err = readFile(f.path, name)
		return err
	})
	return b, err
}

func (f files) unlink(name string) error {
	return f.in(name, func(dir int, base string) error { return ignore(f.fs.Unlink(dir, base), fs.ErrNotExist) })
}

// aside stores bytes that do not belong to a file in a new file beside it, and returns its name.
func (f files) aside(name string, content []byte) (kept string, err error) {
	for i := 1; ; i++ {
		kept = name + ".torn-" + itoa(i)
		if _, err := f.stat(kept); errors.Is(err, fs.ErrNotExist) {
			return kept, f.replace(kept, content)
		} else if err != nil {
			return "", err
		}
	}
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}
