package memory

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/coppice-dev/coppice/internal/vfs"
)

// power is a file system whose process dies at a chosen call: that call and all
// later ones do nothing. After that, cut takes back what was never flushed, as a
// power loss may: contents of files, and names in directories.
type power struct {
	vfs.FS
	left  atomic.Int64 // calls until it dies
	grave string       // a directory outside the store, for what was unlinked

	mu    sync.Mutex
	clean map[uint64]bool // guarded by mu: files, by inode, whose contents were flushed
	held  []int           // guarded by mu: descriptors of directories, for undoing
	names []change        // guarded by mu: of names, in order, that were not flushed
}

// change is one of a name, which flushing its directory makes durable.
type change struct {
	dir  uint64
	undo func()
}

func newPower(grave string, calls int) *power {
	p := &power{FS: vfs.OS(), grave: grave, clean: map[uint64]bool{}}
	p.left.Store(int64(calls))
	return p
}

// dies counts a call.
func (p *power) dies() bool { return p.left.Add(-1) < 0 }

func inode(fd int) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(fd, &st)
	return st.Ino
}

// path gives where a name is, wherever its directory will have been moved to, from
// a descriptor of its own.
func (p *power) path(dir int, name string) func() string {
	fd, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	p.held = append(p.held, fd)
	p.mu.Unlock()
	return func() string { return vfs.FDPath(fd) + "/" + name }
}

func (p *power) note(dir int, undo func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, change{inode(dir), undo})
}

func (p *power) soil(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.clean, inode(fd))
}

func (p *power) Create(dir int, name string, mode uint32) (int, error) {
	if p.dies() {
		return -1, unix.EIO
	}
	fd, err := p.FS.Create(dir, name, mode)
	if err == nil {
		p.soil(fd)
		at := p.path(dir, name)
		p.note(dir, func() { os.Remove(at()) })
	}
	return fd, err
}

func (p *power) Mkdir(dir int, name string, mode uint32) error {
	if p.dies() {
		return unix.EIO
	}
	err := p.FS.Mkdir(dir, name, mode)
	if err == nil {
		at := p.path(dir, name)
		p.note(dir, func() { os.RemoveAll(at()) })
	}
	return err
}

func (p *power) Link(fromDir int, from string, toDir int, to string) error {
	if p.dies() {
		return unix.EIO
	}
	err := p.FS.Link(fromDir, from, toDir, to)
	if err == nil {
		at := p.path(toDir, to)
		p.note(toDir, func() { os.Remove(at()) })
	}
	return err
}

// buried is a name for what is unlinked.
func (p *power) buried() string {
	return filepath.Join(p.grave, scratch("file"))
}

func (p *power) Rename(fromDir int, from string, toDir int, to string) error {
	if p.dies() {
		return unix.EIO
	}
	was, is := p.path(fromDir, from), p.path(toDir, to)
	if _, err := os.Lstat(is()); err == nil {
		if b := p.buried(); os.Rename(is(), b) == nil {
			p.note(toDir, func() { os.Rename(b, is()) })
		}
	}
	err := p.FS.Rename(fromDir, from, toDir, to)
	if err == nil {
		p.note(toDir, func() { os.Rename(is(), was()) })
	}
	return err
}

func (p *power) Unlink(dir int, name string) error {
	if p.dies() {
		return unix.EIO
	}
	at, b := p.path(dir, name), p.buried()
	err := os.Rename(at(), b)
	if err == nil {
		p.note(dir, func() { os.Rename(b, at()) })
	}
	return err
}

func (p *power) Rmdir(dir int, name string) error {
	if p.dies() {
		return unix.EIO
	}
	err := p.FS.Rmdir(dir, name)
	if err == nil {
		at := p.path(dir, name)
		p.note(dir, func() { os.Mkdir(at(), 0o700) })
	}
	return err
}

func (p *power) WriteAt(fd int, b []byte, off int64) error {
	if p.dies() {
		return unix.EIO
	}
	p.soil(fd)
	return p.FS.WriteAt(fd, b, off)
}

func (p *power) Truncate(fd int, size int64) error {
	if p.dies() {
		return unix.EIO
	}
	p.soil(fd)
	return p.FS.Truncate(fd, size)
}

func (p *power) Punch(fd int, off, n int64) error {
	if p.dies() {
		return unix.EIO
	}
	return p.FS.Punch(fd, off, n)
}

func (p *power) Sync(fd int) error {
	if p.dies() {
		return unix.EIO
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ino := inode(fd)
	p.clean[ino] = true
	rest := p.names[:0]
	for _, c := range p.names {
		if c.dir != ino {
			rest = append(rest, c)
		}
	}
	p.names = rest
	return nil
}

// What a crash loses: nothing that was written; contents, since names may reach the
// disk earlier; contents and names.
const (
	process    = "the process"
	contents   = "contents"
	everything = "contents and names"
)

// cut loses what was not flushed below a directory.
func (p *power) cut(dir, loss string) error {
	for i := len(p.names) - 1; i >= 0 && loss == everything; i-- {
		p.names[i].undo()
	}
	for _, fd := range p.held {
		unix.Close(fd)
	}
	if loss == process {
		return nil
	}
	return filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil || p.clean[st.Ino] {
			return err
		}
		if err := os.Truncate(at, 0); err != nil {
			return err
		}
		return os.Truncate(at, info.Size())
	})
}
