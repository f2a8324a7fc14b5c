package vfs

import (
	"sync"
	"syscall"
)

// Faulty passes calls to FS, counts them, and lets one of them fail. With it, tests reach the failure of every write
// of a store.
type Faulty struct {
	FS FS // the underlying file system

	mu    sync.Mutex
	count int           // calls so far
	at    int           // the call that fails, from 1; 0: none
	after bool          // later calls fail as well
	dead  bool          // also those for which a full disk has room
	errno syscall.Errno // error of failing calls
	ops   map[Op]int    // calls by kind
	match Op            // only calls of this kind count towards at; "": all
}

// FailAt makes the k-th call from now (from 1) fail with errno and, if stay is set, all later ones too, as on a full
// disk. With k of 0 no call fails. The counters start again at zero.
func (f *Faulty) FailAt(k int, errno syscall.Errno, stay bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count, f.at, f.errno, f.after, f.dead, f.match, f.ops = 0, k, errno, stay, false, "", nil
}

// CrashAt makes the k-th call from now (from 1) and all later ones fail with EIO: the effects of the calls before it
// are what a process killed at that moment leaves.
func (f *Faulty) CrashAt(k int) {
	f.FailAt(k, syscall.EIO, true)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
}

// FailOp is FailAt for calls of kind op only.
func (f *Faulty) FailOp(op Op, k int, errno syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count, f.at, f.errno, f.after, f.dead, f.match, f.ops = 0, k, errno, false, false, op, nil
}

// Calls returns the number of calls since the last FailAt or FailOp.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// Ops returns the number of calls of a kind since the last FailAt or FailOp.
func (f *Faulty) Ops(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops[op]
}

// Failed reports whether the chosen call was reached.
func (f *Faulty) Failed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at > 0 && f.count >= f.at
}

func (f *Faulty) step(op Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ops == nil {
		f.ops = map[Op]int{}
	}
	f.ops[op]++
	if f.match != "" && f.match != op {
		return nil
	}
	f.count++
	if f.at > 0 && (f.count == f.at || f.after && f.count > f.at) {
		// On a full disk, entries can still be removed, and moved back.
		if f.after && !f.dead && (op == OpUnlink || op == OpRmdir || op == OpRename && f.count > f.at) {
			return nil
		}
		return f.errno
	}
	return nil
}

var _ FS = (*Faulty)(nil)

// Create implements FS.
func (f *Faulty) Create(dir int, name string, mode uint32) (int, error) {
	if err := f.step(OpCreate); err != nil {
		return -1, err
	}
	return f.FS.Create(dir, name, mode)
}

// Mkdir implements FS.
func (f *Faulty) Mkdir(dir int, name string, mode uint32) error {
	if err := f.step(OpMkdir); err != nil {
		return err
	}
	return f.FS.Mkdir(dir, name, mode)
}

// Symlink implements FS.
func (f *Faulty) Symlink(target string, dir int, name string) error {
	if err := f.step(OpSymlink); err != nil {
		return err
	}
	return f.FS.Symlink(target, dir, name)
}

// Mknod implements FS.
func (f *Faulty) Mknod(dir int, name string, mode uint32, dev uint64) error {
	if err := f.step(OpMknod); err != nil {
		return err
	}
	return f.FS.Mknod(dir, name, mode, dev)
}

// Link implements FS.
func (f *Faulty) Link(fromDir int, from string, toDir int, to string) error {
	if err := f.step(OpLink); err != nil {
		return err
	}
	return f.FS.Link(fromDir, from, toDir, to)
}

// Rename implements FS.
func (f *Faulty) Rename(fromDir int, from string, toDir int, to string) error {
	if err := f.step(OpRename); err != nil {
		return err
	}
	return f.FS.Rename(fromDir, from, toDir, to)
}

// Unlink implements FS.
func (f *Faulty) Unlink(dir int, name string) error {
	if err := f.step(OpUnlink); err != nil {
		return err
	}
	return f.FS.Unlink(dir, name)
}

// Rmdir implements FS.
func (f *Faulty) Rmdir(dir int, name string) error {
	if err := f.step(OpRmdir); err != nil {
		return err
	}
	return f.FS.Rmdir(dir, name)
}

// WriteAt implements FS.
func (f *Faulty) WriteAt(fd int, p []byte, off int64) error {
	if err := f.step(OpWrite); err != nil {
		return err
	}
	return f.FS.WriteAt(fd, p, off)
}

// CopyRange implements FS.
func (f *Faulty) CopyRange(dst, src int, off, n int64) (int64, error) {
	if err := f.step(OpCopy); err != nil {
		return 0, err
	}
	return f.FS.CopyRange(dst, src, off, n)
}

// Clone implements FS.
func (f *Faulty) Clone(dst, src int) error {
	if err := f.step(OpCopy); err != nil {
		return err
	}
	return f.FS.Clone(dst, src)
}

// Truncate implements FS.
func (f *Faulty) Truncate(fd int, size int64) error {
	if err := f.step(OpTruncate); err != nil {
		return err
	}
	return f.FS.Truncate(fd, size)
}

// Punch implements FS.
func (f *Faulty) Punch(fd int, off, n int64) error {
	if err := f.step(OpPunch); err != nil {
		return err
	}
	return f.FS.Punch(fd, off, n)
}

// Chmod implements FS.
func (f *Faulty) Chmod(fd int, mode uint32) error {
	if err := f.step(OpChmod); err != nil {
		return err
	}
	return f.FS.Chmod(fd, mode)
}

// ChmodAt implements FS.
func (f *Faulty) ChmodAt(dir int, name string, mode uint32) error {
	if err := f.step(OpChmod); err != nil {
		return err
	}
	return f.FS.ChmodAt(dir, name, mode)
}

// ChownAt implements FS.
func (f *Faulty) ChownAt(dir int, name string, uid, gid uint32) error {
	if err := f.step(OpChown); err != nil {
		return err
	}
	return f.FS.ChownAt(dir, name, uid, gid)
}

// SetXattr implements FS.
func (f *Faulty) SetXattr(fd int, key string, value []byte) error {
	if err := f.step(OpXattr); err != nil {
		return err
	}
	return f.FS.SetXattr(fd, key, value)
}

// SetXattrAt implements FS.
func (f *Faulty) SetXattrAt(dir int, name, key string, value []byte) error {
	if err := f.step(OpXattr); err != nil {
		return err
	}
	return f.FS.SetXattrAt(dir, name, key, value)
}

// RemoveXattr implements FS.
func (f *Faulty) RemoveXattr(fd int, key string) error {
	if err := f.step(OpXattr); err != nil {
		return err
	}
	return f.FS.RemoveXattr(fd, key)
}

// RemoveXattrAt implements FS.
func (f *Faulty) RemoveXattrAt(dir int, name, key string) error {
	if err := f.step(OpXattr); err != nil {
		return err
	}
	return f.FS.RemoveXattrAt(dir, name, key)
}

// Utimes implements FS.
func (f *Faulty) Utimes(dir int, name string, mtime int64) error {
	if err := f.step(OpTimes); err != nil {
		return err
	}
	return f.FS.Utimes(dir, name, mtime)
}

// Sync implements FS.
func (f *Faulty) Sync(fd int) error {
	if err := f.step(OpSync); err != nil {
		return err
	}
	return f.FS.Sync(fd)
}

// SyncFS implements FS.
func (f *Faulty) SyncFS(fd int) error {
	if err := f.step(OpSync); err != nil {
		return err
	}
	return f.FS.SyncFS(fd)
}
