package ledger

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/vfs"
)

// files is the directory of a ledger, written through a vfs.FS.
type files struct {
	fs   vfs.FS
	path string
}

// dir opens a directory of the ledger. The caller closes it.
func (f files) dir(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(f.path, name), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// in calls fn with the directory of a file, and the name of the file in it.
func (f files) in(name string, fn func(dir int, base string) error) error {
	d, err := f.dir(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(int(d.Fd()), filepath.Base(name))
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
	file, err := openAt(f.path, name, os.O_RDWR)
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
	file, err := openAt(f.path, name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer file.Close()
	return f.fs.Sync(int(file.Fd()))
}

// read returns the content of a file; nil if it does not exist.
func (f files) read(name string) ([]byte, error) { return readFile(f.path, name) }

func (f files) unlink(name string) error {
	return f.in(name, func(dir int, base string) error { return ignore(f.fs.Unlink(dir, base), fs.ErrNotExist) })
}

// aside stores bytes that do not belong to a file in a new file beside it, and returns its name.
func (f files) aside(name string, content []byte) (kept string, err error) {
	for i := 1; ; i++ {
		kept = name + ".torn-" + itoa(i)
		if _, err := os.Lstat(filepath.Join(f.path, kept)); errors.Is(err, fs.ErrNotExist) {
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
